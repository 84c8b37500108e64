"""How long does the worst single input hold the loop?

    python -m bench.stalls

A sidecar runs in this process, everything on: schema, a condition, redaction of every class. Bodies of callers and
answers of servers, each as large and as odd as the bounds allow, come one at a time; a watch looks at the loop every
millisecond. Of each input the shortest of five stalls is shown, in time that passed and in CPU time of the loop's
thread: the rest is what else this machine does. The table goes to `bench/stalls.json`.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import statistics
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import click
import uvloop

from sidecar.app.application import Application
from sidecar.cli.serve import settle_interpreter
from sidecar.settings.shipped_files import shipped

OUT = Path(__file__).parent / "stalls.json"
VERSION = "2026-07-28"
ROUNDS, LOOK_S = 5, 0.001
MIB, VALUES = 2**20, 99_000
SETTINGS = """\
version: 1
server: {{listen: "127.0.0.1:0"}}
admin: {{listen: "127.0.0.1:0"}}
local: [{{listen: "127.0.0.1:0", principal: "nhi:bench"}}]
upstreams:
  odd:
    mcp: {{url: "{url}"}}
    probe: {{enabled: false}}
    responses:
      redact: [{{classes: [email, card, bearer, jwt, api_key, private_key, iban, ssn, ipv4], prefixes: [acme_]}}]
      check_output: true
"""
RULES = "p, nhi:bench, tool:odd/*, use, -, -, \"!has(args.never) || args.never == 'x'\", allow\n"
ANY: Mapping[str, Any] = {"type": "object"}
STRICT: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "list": {
            "type": "array",
            "items": {
                "anyOf": [
                    {"type": "string", "pattern": "^([a-z]+[0-9]*)+$", "maxLength": 40},
                    {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}},
                    {"type": "integer", "multipleOf": 3},
                ]
            },
        },
        "unique": {"type": "array", "uniqueItems": True},
    },
    "additionalProperties": False,
}
OUTPUT: Mapping[str, Any] = {"type": "object", "properties": {"rows": {"type": "array", "items": {"type": "object"}}}}


def bodies() -> Mapping[str, tuple[str, str]]:
    """What callers send: name → (tool, arguments as JSON). 100,000 values, 10,000 names and 32 levels may come."""
    return {
        "99,000 integers": ("any", _list("7", VALUES)),
        "99,000 fractions": ("any", _list("0.1", VALUES)),
        "45,000 long fractions": ("any", _list("1.2345678901234567e-7", VALUES)),
        "50,000 integers of 19 digits": ("any", _list("9007199254740993123", VALUES)),
        "99,000 strings": ("any", _list('"abcdef"', VALUES)),
        "50,000 strings beyond ASCII": ("any", _list('"\u00e9\u4e2d\u6587"', VALUES)),
        "99,000 empty objects": ("any", _list("{}", VALUES)),
        "9,900 names": ("any", "{" + ",".join(f'"{"n" * 90}{n}":0.5' for n in range(9_900)) + "}"),
        "9,900 names beyond ASCII": ("any", "{" + ",".join(f'"\u00e9\U0001f600{n}":0' for n in range(9_900)) + "}"),
        "1 MiB of escapes": ("any", '{"a":"' + "\\u0061" * 170_000 + '"}'),
        "1 MiB of escapes beyond ASCII": ("any", '{"a":"' + "\\u4e2d" * 170_000 + '"}'),
        "1 MiB of pairs of surrogates": ("any", '{"a":"' + "\\ud83d\\ude00" * 85_000 + '"}'),
        "1 MiB of one string": ("any", '{"a":"' + "x" * 1_040_000 + '"}'),
        "1 MiB of blanks": ("any", '{"a":' + " " * 1_040_000 + "1}"),
        "25 levels, again and again": ("any", '{"a":[' + ",".join(["[" * 25 + "]" * 25] * 3_800) + "]}"),
        "a million brackets": ("any", '{"a":' + "[" * 1_000_000),
        "an integer of 5,000 digits": ("any", '{"a":' + "9" * 5_000 + "}"),
        "an integer of a million digits": ("any", '{"a":' + "9" * 1_000_000 + "}"),
        "the same name 9,900 times": ("any", "{" + ",".join(['"a":1'] * 9_900) + "}"),
        "99,000 that fit no branch": ("strict", _list('"UPPER"', VALUES, "list")),
        "9,900 that fit the second branch": ("strict", _list('{"a":1}', 9_900, "list")),
        "99,000 that fit the last branch": ("strict", _list("333", VALUES, "list")),
        "99,000 to be unique": ("strict", '{"unique":[' + ",".join(map(str, range(VALUES))) + "]}"),
        "9,900 objects to be unique": ("strict", '{"unique":[' + ",".join(f'{{"a":{n}}}' for n in range(9_900)) + "]}"),
        "strings that a pattern backs up on": ("strict", _list('"' + "a" * 38 + '!"', VALUES, "list")),
    }


def answers() -> Mapping[str, str]:
    """What a server answers: name → result as JSON."""
    ten = 10 * MIB - 4096
    return {
        "10 MiB of one text": _text("x" * ten),
        "10 MiB of digits": _text(("4111 1111 1111 1112 " * (ten // 20 + 1))[:ten]),
        "10 MiB of nearly addresses": _text(("a.b@c " * (ten // 6 + 1))[:ten]),
        "10 MiB of addresses": _text(("a@example.org " * (ten // 14 + 1))[:ten]),
        "10 MiB of dots and numbers": _text(("1.2.3.999 " * (ten // 10 + 1))[:ten]),
        "10 MiB of nearly tokens": _text(("eyJhbGciOiJI.eyJ " * (ten // 17 + 1))[:ten]),
        "10 MiB of keys that never end": _text(("-----BEGIN PRIVATE KEY----- " * (ten // 28 + 1))[:ten]),
        "10 MiB of capitals": _text(("DE89370400440532013 " * (ten // 20 + 1))[:ten]),
        "10 MiB of escapes": '{"resultType":"complete","content":[{"type":"text","text":"'
        + "\\u0061" * (ten // 6)
        + '"}]}',
        "95,000 texts": _result('"content":[' + ",".join(['{"type":"text"}'] * 95_000) + "]"),
        "190,000 values": _result('"content":[],"structuredContent":{"rows":[' + ",".join(["{}"] * 190_000) + "]}"),
        "60,000 rows with text": _result(
            '"content":[],"structuredContent":{"rows":[' + ",".join(['{"a":"some words here","b":1}'] * 60_000) + "]}"
        ),
        "95,000 names": _result(
            '"content":[],"structuredContent":{' + ",".join(f'"n{n}":0' for n in range(95_000)) + "}"
        ),
        "JSON in a text, twice": _result(
            '"content":[{"type":"text","text":' + json.dumps(json.dumps({"rows": [{"a": 1}] * 90_000})) + "}]"
        ),
        "10 MiB in base64": _result(
            '"content":[{"type":"image","mimeType":"image/png","data":"' + "QUJD" * (ten // 4) + '"}]'
        ),
        "a million brackets": _result('"content":[],"structuredContent":{"a":' + "[" * 1_000_000),
    }


def _list(item: str, count: int, name: str = "a") -> str:
    return f'{{"{name}":[' + ",".join([item] * min(count, (MIB - 2_000) // (len(item) + 1))) + "]}"


def _text(text: str) -> str:
    return _result('"content":[{"type":"text","text":' + json.dumps(text) + "}]")


def _result(members: str) -> str:
    return '{"resultType":"complete",' + members + "}"


class Outside:
    """A process of its own that is both: the caller, and the server, so that what they cost holds nobody's loop here.

    Told (tool, arguments, result) it makes ready; told None it calls, and says status and milliseconds."""

    def __init__(self) -> None:
        self._ours, theirs = Pipe()
        self._process = get_context("fork").Process(target=_outside, args=(theirs,), daemon=True)
        self._process.start()
        self.port: int = self._ours.recv()

    def tell(self, what: object) -> Any:
        """Say it, and wait for what is said in return."""
        self._ours.send(what)
        return self._ours.recv()

    def end(self) -> None:
        self._process.terminate()
        self._process.join()


def _outside(told: Connection) -> None:
    server = _Server(("127.0.0.1", 0), _Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    told.send(server.server_address[1])
    url = told.recv()
    told.send(None)
    body = b""
    while True:
        if what := told.recv():
            tool, arguments, server.result = what
            body = _called(tool, arguments)
            told.send(None)
            continue
        began = time.perf_counter()
        request = urllib.request.Request(url, body, {**_HEADERS, "Mcp-Name": tool})
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                status = response.status
                response.read()
        except urllib.error.HTTPError as error:
            status = error.code
        told.send((status, (time.perf_counter() - began) * 1e3))


_HEADERS = {
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
    "MCP-Protocol-Version": VERSION,
    "Mcp-Method": "tools/call",
}
_META = {"io.modelcontextprotocol/protocolVersion": VERSION, "io.modelcontextprotocol/clientCapabilities": {}}


def _called(tool: str, arguments: bytes) -> bytes:
    head = f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"_meta":{json.dumps(_META)},"name":"{tool}",'
    return head.encode() + b'"arguments":' + arguments + b"}}"


class _Server(ThreadingHTTPServer):
    result = b"{}"


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        server = self.server
        assert isinstance(server, _Server)
        if b'"tools/call"' in body[:200]:
            answer = b'{"jsonrpc":"2.0","id":' + _ID.search(body[:200])[1] + b',"result":' + server.result + b"}"  # type: ignore[index]
        else:
            answer = json.dumps({"jsonrpc": "2.0", "id": json.loads(body)["id"], "result": _LISTED}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Nothing."""


_ID = re.compile(rb'"id":([^,}]+)')
_LISTED = {
    "resultType": "complete",
    "supportedVersions": [VERSION],
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "odd", "version": "1"},
    "tools": [
        {"name": "any", "inputSchema": ANY},
        {"name": "rows", "inputSchema": ANY, "outputSchema": OUTPUT},
        {"name": "strict", "inputSchema": STRICT},
    ],
    "ttlMs": 3_600_000,
    "cacheScope": "public",
}


class Watch:
    """The longest that the loop was held since it was set to nothing: in milliseconds that passed, and of its CPU."""

    def __init__(self) -> None:
        self.longest_ms = self.longest_cpu_ms = 0.0

    async def run(self) -> None:
        while True:
            due, before = time.perf_counter() + LOOK_S, time.thread_time()  # the loop's own clock counts milliseconds
            await asyncio.sleep(LOOK_S)
            self.longest_ms = max(self.longest_ms, (time.perf_counter() - due) * 1e3)
            self.longest_cpu_ms = max(self.longest_cpu_ms, (time.thread_time() - before) * 1e3)


@click.command()
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), default=OUT, show_default=True)
@click.option("--only", default="", help="Inputs whose name holds this.")
def main(out: Path, only: str) -> None:
    """Send each odd input alone, and see how long the loop is held."""
    outside = Outside()
    try:
        with tempfile.TemporaryDirectory(prefix="stalls") as folder:
            told = uvloop.run(_measure(Path(folder), outside, only))
    finally:
        outside.end()
    out.write_text(json.dumps(told, indent=1) + "\n")
    for name, one in sorted(told.items(), key=lambda item: -item[1]["stall_ms"]):
        click.echo(
            f"{one['stall_ms']:8.1f} ms {one['stall_cpu_ms']:8.1f} ms CPU  {one['kb']:6} KB  {one['status']}  {name}"
        )


async def _measure(folder: Path, outside: Outside, only: str) -> dict[str, Any]:
    _write(folder, f"http://127.0.0.1:{outside.port}/mcp")
    app, watch = await Application.start(folder / "sidecar.yaml", {}), Watch()
    settle_interpreter()
    watching = asyncio.create_task(watch.run())
    outside.tell(f"http://127.0.0.1:{app.listeners[1].port}/mcp/odd")
    done = _text("done")
    inputs = {f"call: {name}": (*called, done) for name, called in bodies().items()}
    inputs |= {
        f"answer: {name}": ("rows" if "structuredContent" in result[:99] else "any", "{}", result)
        for name, result in answers().items()
    }
    told: dict[str, Any] = {}
    try:
        await _stall(watch, outside, ("any", b"{}", done.encode()))
        for name, (tool, arguments, result) in inputs.items():
            if only in name:
                told[name] = await _stall(watch, outside, (tool, arguments.encode(), result.encode()))
    finally:
        watching.cancel()
        await app.stop()
    return told


async def _stall(watch: Watch, outside: Outside, sent: tuple[str, bytes, bytes]) -> dict[str, Any]:
    found, spent, took_ms, status = [], [], [], 0
    for _ in range(ROUNDS):
        await asyncio.to_thread(outside.tell, sent)
        await asyncio.sleep(0.05)
        watch.longest_ms = watch.longest_cpu_ms = 0.0
        status, ms = await asyncio.to_thread(outside.tell, None)
        await asyncio.sleep(0.02)
        found.append(watch.longest_ms)
        spent.append(watch.longest_cpu_ms)
        took_ms.append(ms)
    return {
        "stall_ms": round(min(found), 1),
        "stall_cpu_ms": round(min(spent), 1),
        "took_ms": round(statistics.median(took_ms), 1),
        "status": status,
        "kb": max(len(sent[1]), len(sent[2])) // 1000,
    }


def _write(folder: Path, url: str) -> None:
    (folder / "policies").mkdir()
    shutil.copytree(shipped("models"), folder / "models")
    (folder / "sidecar.yaml").write_text(SETTINGS.format(url=url))
    (folder / "policies" / "agent_to_tool.csv").write_text(RULES)


if __name__ == "__main__":
    main()
