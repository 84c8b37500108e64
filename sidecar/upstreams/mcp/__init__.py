"""MCP servers as upstreams: transports, sessions, the bridge between MCP revisions, the tool catalogue and pins."""
