"""The protocols of callers. Each frontend reads a request into one operation and writes the answer."""
