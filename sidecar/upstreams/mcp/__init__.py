"""MCP servers as upstreams: transports, sessions, the bridge between eras, the tool catalogue and pins."""
