"""How is a tool called without MCP: by curl, by a script?

    GET  /mcp/{server}/tools            → {"tools": [McpTool]}
    POST /mcp/{server}/tools/{tool}     {"arguments": {…}} → McpCallResult, or McpError

front.py    from a path and a body to the very intent that a stateless message would be, and from its answer to theirs
models.py   what is said at these addresses: the seed's models

Nothing is decided here: policy, limits, arguments, evidence and what may pass of an answer are the one pipeline's.
"""

from sidecar.plain.front import Plain

__all__ = ["Plain"]
