"""Who are alice and bob, and how do they hold sessions?

gateway     a sidecar that knows both of them
opened      a session of one of them; `stream` its own stream, `get` and `post` one request of it
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.flow.idp import SETTINGS, Idp, bearer
from tests.flow.streams import Ear, Emitter, hearing
from tests.flow.talk import Talk
from tests.flow.world import Upstream, World, world

IDP = Idp()
ALICE, BOB = (bearer(IDP.api_key(name)) for name in ("user:alice", "user:bob"))
RULES = """\
p, user:alice, tool:github/*, use, -, -, -, allow
p, user:bob, tool:github/*, use, -, -, -, allow
p, user:alice, nhi:github, sampling/createMessage, -, -, -, allow
p, user:bob, nhi:github, sampling/createMessage, -, -, -, allow
"""
GOOD = {"repo": "acme/site"}
NOTIFICATION = {"jsonrpc": "2.0", "method": "notifications/initialized"}


@asynccontextmanager
async def gateway(folder: Path, *, sessions: str = "", rules: str = RULES, **options: Any) -> AsyncIterator[World]:
    """A sidecar whose callers are alice and bob, with API keys and tokens."""
    settings = SETTINGS + (f"sessions: {{{sessions}}}\n" if sessions else "") + options.pop("settings", "")
    async with world(folder, rules=rules, settings=settings, files=IDP.files(), principal="", **options) as running:
        yield running


async def gone(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
    return web.Response(status=204)


def emitter(running: World) -> Emitter:
    listen: Any = running.upstream.script["GET"]
    found: Emitter = listen.__self__
    return found


async def opened(running: World, who: dict[str, str] = ALICE, **more: Any) -> Talk:
    talk = Talk(running, "session", dict(who), **more)
    status, _, headers = await talk.open()
    assert status == 200 and talk.session == headers["Mcp-Session-Id"]
    return talk


@asynccontextmanager
async def stream(talk: Talk, **more: Any) -> AsyncIterator[Ear]:
    """The session's own stream."""
    async with talk.hearing(**more) as ear:
        yield ear


async def get(talk: Talk, **headers: str) -> tuple[int, Any, Any]:
    """A GET whose stream, if it opens, is left at once."""
    sent = {**talk.headers, **talk.in_session, **headers}
    async with hearing(talk.world.http, f"{talk.world.url}/mcp/github", sent) as ear:
        body = b"" if ear.status == 200 else await ear.response.read()
        return ear.status, body, dict(ear.response.headers)


async def post(talk: Talk, message: Any) -> tuple[int, Any, Any]:
    return await talk.world.post(message, headers={**talk.headers, **talk.in_session})


def result_of(message: dict[str, Any], result: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


def error_in(message: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32602, "message": "no"}}


def deletes(upstream: Upstream) -> list[tuple[str, str]]:
    return [(verb, headers.get("Mcp-Session-Id", "")) for verb, headers in upstream.verbs if verb == "DELETE"]


def listening() -> Upstream:
    """A server whose sessions may be listened to and left."""
    return Upstream(script={"GET": Emitter().listen, "DELETE": gone})
