"""MCP messages of every revision as typed values."""
