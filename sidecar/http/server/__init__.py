"""The HTTP server side: listeners, connection and stream limits, load shedding, and response bodies."""
