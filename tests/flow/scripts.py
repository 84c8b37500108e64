"""Ways in which a scripted upstream answers: `Upstream(script={"tools/call": hang})`."""

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp import web

from tests.flow.streams import EVENT_STREAM, event
from tests.flow.world import Respond, Upstream


def body(content: bytes = b"", media_type: str = "application/json", code: int = 200, **headers: str) -> Respond:
    async def respond(asked: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        kind = {"Content-Type": media_type} if content else {}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(body=content, status=code, headers={**kind, **named})

    return respond


def status(code: int, **headers: str) -> Respond:
    """Only a status, and headers: `status(307, location="/elsewhere")`."""
    return body(code=code, **headers)


def answer(code: int = 200, **members: Any) -> Respond:
    """A JSON-RPC response with `result=` or `error=`."""

    async def respond(asked: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"jsonrpc": "2.0", "id": message.get("id", 1), **members}, status=code)

    return respond


def giving(result: dict[str, Any]) -> Respond:
    """A result, which is said to be complete where the request is of the stateless era."""

    async def respond(asked: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        stateless = "io.modelcontextprotocol/protocolVersion" in message.get("params", {}).get("_meta", {})
        complete = {"resultType": "complete"} if stateless else {}
        return await answer(result={**result, **complete})(asked, message)

    return respond


NO_SUCH_METHOD = answer(error={"code": -32601, "message": "?"})


async def hang(asked: web.Request, message: dict[str, Any]) -> web.StreamResponse:
    await asyncio.sleep(60)
    return web.Response(status=500)


async def hang_up(asked: web.Request, message: dict[str, Any]) -> web.StreamResponse:
    asked.transport.abort()
    return web.Response()


Piece = bytes | asyncio.Event | Callable[[dict[str, Any]], Any]


def stream(*pieces: Piece, then: Respond | None = None) -> Respond:
    """An event stream of bytes, and of messages made of the request; at an event it waits."""

    async def respond(asked: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers=EVENT_STREAM)
        await response.prepare(asked)
        for piece in pieces:
            if isinstance(piece, asyncio.Event):
                await piece.wait()
            else:
                await response.write(piece if isinstance(piece, bytes) else event(piece(message)))
        if then is not None:
            await then(asked, message)
        return response

    return respond


def after(wait: asyncio.Event | float, then: Respond | None = None, begun: asyncio.Event | None = None) -> Respond:
    """Answers as a good server, or as `then` does, after an event or some seconds; `begun` is set when it is asked."""

    async def respond(asked: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        if begun is not None:
            begun.set()
        await (wait.wait() if isinstance(wait, asyncio.Event) else asyncio.sleep(wait))
        return Upstream().answer(message) if then is None else await then(asked, message)

    return respond
