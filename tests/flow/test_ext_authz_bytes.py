"""Checks of ext_authz that are damaged, or strange, are answered or refused, and never break the service."""

import asyncio
import base64
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from grpc import StatusCode, aio

from sidecar.protocols.ext_authz import CHECK, CheckRequest, CheckResponse
from tests.flow.enforcement import SECRET, asked_world, decisions
from tests.flow.world import STATELESS, World, stateless

SETTINGS = 'server: {listen: "127.0.0.1:0", grpc: "127.0.0.1:0"}\n'
METADATA = (("x-pdp-key", SECRET),)
DAMAGED = 2000


def check_of(key: str) -> dict[str, Any]:
    """A check about one call with an API key, in its JSON form."""
    message = stateless("tools/call", {"name": "search_code", "arguments": {"repo": "acme/site"}})
    headers = {"content-type": "application/json", "mcp-method": "tools/call", "mcp-name": "search_code"}
    headers |= {"mcp-protocol-version": STATELESS, "x-api-key": key}
    http = {"method": "POST", "path": "/mcp/github", "headers": headers}
    body = {"rawBody": base64.b64encode(json.dumps(message).encode()).decode()}
    address = {"socketAddress": {"address": "2001:db8::1"}}
    source = {"address": address, "principal": "spiffe://acme.example/planner"}
    request = {"request": {"http": {**http, **body}}}
    return {"attributes": {**request, "source": source, "contextExtensions": {"charge": "true"}}}


def damaged(whole: bytes, random_: random.Random) -> bytes:
    """A message with some bytes changed, removed or repeated."""
    data = bytearray(whole)
    for _ in range(random_.randint(1, 4)):
        at = random_.randrange(len(data))
        match random_.randrange(3):
            case 0:
                data[at] = random_.randrange(256)
            case 1:
                del data[at : at + random_.randint(1, 8)]
            case _:
                data[at:at] = data[at : at + random_.randint(1, 64)]
    return bytes(data)


async def test_a_damaged_check_is_answered_or_unreadable(tmp_path: Path) -> None:
    drawn = random.Random(19)
    async with asked_world(tmp_path, settings=SETTINGS) as (running, keys), channel(running) as line:
        whole = ParseDict(check_of(keys["nhi:planner"]), CheckRequest()).SerializeToString()
        found = []
        for _ in range(DAMAGED):
            try:
                raw = await line.unary_unary(CHECK)(damaged(whole, drawn), metadata=METADATA)
            except aio.AioRpcError as error:
                assert error.code() is StatusCode.INVALID_ARGUMENT, error
            else:
                told = CheckResponse.FromString(raw)
                found.append(told.HasField("ok_response"))
        records = decisions(running)
        assert True in found and False in found
        assert "internal" not in {record["reason"] for record in records}
        allowed = sum(record["event"] == "decision" for record in records)
        assert allowed == sum(found) and len(records) <= len(found)  # some refusals of strangers are counted together


def channel(running: World) -> aio.Channel:
    return aio.insecure_channel(f"127.0.0.1:{running.app.grpc_ports['']}")


async def test_a_check_that_does_not_arrive_has_an_end(tmp_path: Path) -> None:
    settings = SETTINGS.replace("}", ", body_timeout_s: 0.2s}")
    async with asked_world(tmp_path, settings=settings) as (running, _), channel(running) as line:
        for metadata, code, words in (
            (METADATA, StatusCode.INVALID_ARGUMENT, "the message did not arrive in time"),
            ((), StatusCode.UNAUTHENTICATED, "a credential of the role pdp is needed in x-pdp-key"),
        ):
            with pytest.raises(aio.AioRpcError) as raised:
                await line.stream_unary(CHECK)(never(), metadata=metadata)
            assert (raised.value.code(), raised.value.details()) == (code, words)
        with pytest.raises(aio.AioRpcError) as raised:
            await line.unary_unary(CHECK.replace("Check", "Decide"))(b"", metadata=METADATA)
        assert raised.value.code() is StatusCode.UNIMPLEMENTED


async def never() -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""
