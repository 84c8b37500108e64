"""What do the official suites of MCP and of A2A say through the sidecar, beside what they say directly?"""
