"""How does an agent come to be reached, and how does a test know what reached it?

`serve` binds both ports before the card is written that names them, prints them as one line of JSON, and ends with
standard input.
"""

import argparse
import asyncio
import json
import logging
import os
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any
from urllib.parse import parse_qs

import grpc.aio
import uvicorn

App = Callable[[MutableMapping[str, Any], Any, Any], Awaitable[None]]
Build = Callable[[str, str, grpc.aio.Server], App]


def arguments(*flags: str) -> argparse.Namespace:
    """The command line of an agent; each flag is a thing that it may be."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--http", type=int, default=0, help="0 is a free port")
    parser.add_argument("--grpc", type=int, default=0)
    for flag in flags:
        parser.add_argument(flag, action="store_true")
    return parser.parse_args()


class Watched(grpc.aio.ServerInterceptor):
    """An agent's application, before which everything that arrives is written down."""

    def __init__(self) -> None:
        self.app: App | None = None
        self._seen: list[dict[str, Any]] = []

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http" or self.app is None:
            return
        if scope["path"] == "/seen":
            await self._show(scope, send)
            return
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        query = scope["query_string"].decode()
        entry = {"verb": scope["method"], "path": scope["path"], "query": query, "headers": headers, "body": ""}
        self._seen.append(entry)

        async def noted() -> Any:
            event = await receive()
            entry["body"] += event.get("body", b"").decode(errors="replace")
            return event

        await self.app(scope, noted, send)

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        headers = {name: str(value) for name, value in details.invocation_metadata or ()}
        self._seen.append({"grpc": details.method, "headers": headers})
        return await continuation(details)

    async def _show(self, scope: MutableMapping[str, Any], send: Any) -> None:
        since = int(parse_qs(scope["query_string"].decode()).get("since", ["0"])[0])
        body = json.dumps(self._seen[since:]).encode()
        head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": body})


async def serve(ports: argparse.Namespace, build: Build) -> None:
    """Serve what `build(url, grpc_address, grpc_server)` makes."""
    watched = Watched()
    remote = grpc.aio.server(interceptors=[watched])
    listening = socket.create_server(("127.0.0.1", ports.http))
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # asyncio looks at the protocol, which is 0 here
    http, far = listening.getsockname()[1], remote.add_insecure_port(f"127.0.0.1:{ports.grpc}")
    watched.app = build(f"http://127.0.0.1:{http}", f"127.0.0.1:{far}", remote)
    await remote.start()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    print(json.dumps({"http": http, "grpc": far}), flush=True)
    await uvicorn.Server(uvicorn.Config(watched, log_level="critical", lifespan="off")).serve([listening])


def run(ports: argparse.Namespace, build: Build) -> None:
    """Serve until standard input ends, and say nothing of what callers do wrong."""
    logging.disable(logging.CRITICAL)
    asyncio.run(serve(ports, build))


def skills(names: Sequence[str]) -> list[dict[str, Any]]:
    """One skill for each play, in the form that both lines of the SDK take."""
    return [{"id": name, "name": name, "description": f"It can {name}.", "tags": ["play"]} for name in names]


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)
