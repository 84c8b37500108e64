"""The protocols that callers speak. Each frontend reads a request into one operation and writes the answer."""
