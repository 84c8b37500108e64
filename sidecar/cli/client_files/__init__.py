"""Reads and rewrites the configuration files of MCP clients."""
