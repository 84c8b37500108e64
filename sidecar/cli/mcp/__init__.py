"""`sidecar mcp`: inspects and switches MCP servers. One file per command."""
