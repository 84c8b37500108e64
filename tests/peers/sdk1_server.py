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
from mcp import types
from mcp.server.fastmcp import Context, FastMCP
from mcp.server.lowlevel import NotificationOptions
from pydantic import AnyUrl, BaseModel

server = FastMCP("old", log_level="CRITICAL")
cancelled: list[str] = []


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


@server.tool()
async def think(text: str, ctx: Context) -> str:
    """Asks the client's model."""
    prompt = types.SamplingMessage(role="user", content=types.TextContent(type="text", text=text))
    thought = await ctx.session.create_message([prompt], max_tokens=8, related_request_id=ctx.request_id)
    return f"{text} {getattr(thought.content, 'text', '')}"


@server.tool()
async def places(ctx: Context) -> str:
    """Asks where the client works, on the session's own stream: this SDK cannot do it on the call's."""
    return " ".join(str(root.uri) for root in (await ctx.session.list_roots()).roots)


@server.tool()
async def slow(tag: str) -> str:
    """Never ends."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        cancelled.append(tag)
        raise
    return tag


@server.tool()
def stopped() -> str:
    """Which call was cancelled last."""
    return cancelled[-1] if cancelled else ""


@server.tool()
async def touch(uri: str, ctx: Context) -> str:
    """Says that a resource and the tools have changed."""
    await ctx.session.send_resource_updated(AnyUrl(uri))
    await ctx.session.send_tool_list_changed()
    return uri


@server.resource("note://welcome")
def welcome() -> str:
    return "welcome"


@server.resource("note://by/{name}")
def by(name: str) -> str:
    return f"by {name}"


@server.prompt()
def review(code: str) -> str:
    return f"please review {code}"


@server.completion()
async def complete(ref: object, argument: types.CompletionArgument, context: object) -> types.Completion:
    return types.Completion(values=[word for word in ("python", "perl") if word.startswith(argument.value)])


def add_what_the_high_level_server_leaves_out() -> None:
    """Levels, subscriptions, and a server that says so."""
    lowlevel = server._mcp_server

    @lowlevel.set_logging_level()
    async def set_level(level: types.LoggingLevel) -> None:
        pass

    @lowlevel.subscribe_resource()
    async def subscribe(uri: AnyUrl) -> None:
        pass

    @lowlevel.unsubscribe_resource()
    async def unsubscribe(uri: AnyUrl) -> None:
        pass

    plain = lowlevel.get_capabilities

    def announcing(
        options: NotificationOptions, experimental: dict[str, dict[str, object]]
    ) -> types.ServerCapabilities:
        told = plain(NotificationOptions(tools_changed=True), experimental)
        assert told.resources is not None
        told.resources.subscribe = True
        return told

    lowlevel.get_capabilities = announcing


def _die_with_parent() -> None:
    sys.stdin.read()
    os._exit(0)


def main() -> None:
    add_what_the_high_level_server_leaves_out()
    sock = socket.socket()
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # asyncio looks at the protocol, which is 0 here
    sock.bind(("127.0.0.1", 0))
    sock.listen(64)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    print(sock.getsockname()[1], flush=True)
    config = uvicorn.Config(server.streamable_http_app(), log_level="critical", access_log=False)
    asyncio.run(uvicorn.Server(config).serve(sockets=[sock]))


if __name__ == "__main__":
    main()
