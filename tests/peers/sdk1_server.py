"""What is a server of the official 1.x SDK like? It knows sessions only.

Runs under an interpreter that has `mcp` 1.x; prints its port and serves `/mcp` there until its standard input ends.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading

import uvicorn
from mcp.server.fastmcp import Context, FastMCP
from pydantic import BaseModel

server = FastMCP("old", log_level="CRITICAL")


class Answer(BaseModel):
    """What the user is asked for."""

    word: str


@server.tool()
async def greet(text: str, ctx: Context) -> str:
    """Reports, logs, asks the user."""
    await ctx.report_progress(1, 2)
    await ctx.info(f"about {text}")
    answer = await ctx.elicit(f"a word for {text}", Answer)
    return f"{text} {getattr(answer, 'data', Answer(word='')).word}"


def _die_with_parent() -> None:
    sys.stdin.read()
    os._exit(0)


def main() -> None:
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.listen(64)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    print(sock.getsockname()[1], flush=True)
    config = uvicorn.Config(server.streamable_http_app(), log_level="critical", access_log=False)
    asyncio.run(uvicorn.Server(config).serve(sockets=[sock]))


if __name__ == "__main__":
    main()
