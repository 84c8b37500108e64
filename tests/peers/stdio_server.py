"""An MCP server of the official SDK, on standard input and output.

`python -m tests.peers.stdio_server` keeps one counter for whoever it serves; with `everything` it is the server of
`everything.py`. Neither knows of us.
"""

import asyncio
import os
import sys
import warnings

from mcp.server.mcpserver import Context, MCPServer

from tests.peers.everything import Notes, build

server = MCPServer("counter")
_counts: list[str] = []


@server.tool()
def count(name: str = "x") -> str:
    """How often this was called, in this process."""
    _counts.append(name)
    return f"{len(_counts)} {os.getpid()}"


@server.tool()
def crash() -> str:
    """Ends the process in the middle of a call."""
    os.kill(os.getpid(), 11)
    return "never"


@server.tool()
async def slow(context: Context, steps: int = 2) -> str:
    """Reports progress, then answers."""
    for step in range(steps):
        await context.report_progress(step, steps)
        await asyncio.sleep(0.01)
    return "done"


@server.tool()
async def hang() -> str:
    """Does not answer for a while."""
    await asyncio.sleep(60)
    return "late"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    (build(Notes()) if sys.argv[1:] == ["everything"] else server).run("stdio")
