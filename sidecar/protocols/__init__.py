"""What do the bytes say? Messages in and out of typed values; no I/O, no clock."""
