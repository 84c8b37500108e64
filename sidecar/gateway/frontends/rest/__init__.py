"""Plain HTTP access to tools, for people and scripts.

    GET  /mcp/{server}/tools            → {"tools": [McpTool]}
    POST /mcp/{server}/tools/{tool}     {"arguments": {…}} → McpCallResult, or McpError

frontend.py    translates a path and a body into a stateless MCP request, and the answer back
models.py      the seed's models for these addresses

Policy, limits, argument checks, audit and response filtering are those of the pipeline.
"""

from sidecar.gateway.frontends.rest.frontend import RestFrontend

__all__ = ["RestFrontend"]
