"""What do the official suites say of MCP through the sidecar, beside what they say of it directly?"""
