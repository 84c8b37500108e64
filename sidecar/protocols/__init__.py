"""Converts between bytes and typed messages of each protocol; no I/O, no clock."""
