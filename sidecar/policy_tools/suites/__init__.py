"""Runs a policy's own tests, on the engine and the limiter that serve calls."""
