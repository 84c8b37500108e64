"""The data that operators read: metric series, their registry, and the log of outages."""
