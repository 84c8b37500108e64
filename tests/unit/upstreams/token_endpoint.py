"""A token endpoint on a real socket, that counts, refuses, hangs and lies as a test wants it."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from aiohttp import web

from tests.flow.world import listening


@dataclass
class Issuing:
    """`answer` overrides what a good one would say, `status` and `media` how; `forms` are what it was asked, with the
    headers. While `gate` is not set, it hangs."""

    answer: Any = None
    raw: bytes | None = None
    status: int = 200
    media: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    expires_in: Any = 600
    forms: list[tuple[dict[str, str], Mapping[str, str]]] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""

    @property
    def asked(self) -> int:
        return len(self.forms)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.forms.append((dict(parse_qsl((await request.read()).decode())), dict(request.headers)))
        number = self.asked
        await self.gate.wait()
        said = {"access_token": f"granted-{number}", "token_type": "Bearer", "expires_in": self.expires_in}
        said = said if self.answer is None else self.answer
        if isinstance(said, dict):
            said = {name: value for name, value in said.items() if value is not ...}
        body = json.dumps(said).encode() if self.raw is None else self.raw
        return web.Response(status=self.status, body=body, headers={"Content-Type": self.media, **self.headers})


@asynccontextmanager
async def issuing() -> AsyncIterator[Issuing]:
    endpoint = Issuing()
    endpoint.gate.set()
    async with listening(endpoint.handle) as base:
        endpoint.url = f"{base}/token"
        yield endpoint
