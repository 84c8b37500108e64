"""Which messages do we keep as files, good and hostile, and what should become of each?

bodies/           request bodies, byte for byte; `bodies.tsv` says what becomes of each: `taken`, or the JSON-RPC code
a2a_wrong.json      messages of A2A with a fault, and its place
cards.json          agents' cards in both formats
content_types.json  values of Content-Type
egress/             addresses that callbacks may and may not go to
event_streams.json  event streams, and the events in them
headers.json        values of Accept, Origin and Host
hidden_text.json    texts with characters that people do not see, without them, and their kind
methods.json        names of methods that MCP does not have
parameter_headers.json  `Mcp-Param-*` headers that do not mirror these arguments
paths.json          request targets: `served`, `elsewhere` (404) or `refused` (400)
secrets.json        texts with secrets of a class, and what is left of them
responses.json      HTTP responses that two readers could read differently
routing.json        MCP routing headers against bodies: the era, or the JSON-RPC code
"""

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def bodies() -> dict[str, str]:
    """Name of each body → what should become of it."""
    lines = (HERE / "bodies.tsv").read_text(encoding="utf-8").splitlines()
    return {name: verdict for verdict, name in (line.split("\t") for line in lines)}


def body(name: str) -> bytes:
    return (HERE / "bodies" / f"{name}.json").read_bytes()


def table(name: str) -> Any:
    return json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))
