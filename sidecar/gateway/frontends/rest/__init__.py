"""Plain HTTP access to tools, for people and scripts.

    GET  /mcp/{server}/tools            → {"tools": [McpTool]}
    POST /mcp/{server}/tools/{tool}     {"arguments": {…}} → McpCallResult, or McpError

frontend.py       from a path and a body to the very intent that a stateless message would be, and from its answer to
                    theirs
models.py   what is said at these addresses: the seed's models

Nothing is decided here: policy, limits, arguments, evidence and what may pass of an answer are the one pipeline's.
"""

from sidecar.gateway.frontends.rest.frontend import RestFrontend

__all__ = ["RestFrontend"]
