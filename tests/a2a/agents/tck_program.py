"""What does a program on pipes say to the official TCK? What agents on the SDKs say (`sdk1.py`, `sdk03.py`).

    python -I -S tests/a2a/agents/tck_program.py 1.0|0.3

It is a JSON-RPC agent of `agents:` in sidecar.yaml, and knows nothing but the standard library.
"""

import base64
import json
import sys
import time
from typing import Any

SUBSCRIBED_S = 4.0  # the TCK subscribes to this one while it works
WORKS_S = 3.0
FILE = {"filename": "output.txt", "mediaType": "text/plain"}
RAW = {"raw": base64.b64encode(b"tck").decode(), **FILE}
URL = {"url": "https://example.com/output.txt", **FILE}

# What messages' ids begin with → the artifacts' parts.
SHOWN: dict[str, dict[str, Any]] = {
    "tck-stream-artifact-text": {"text": "Streamed text content"},
    "tck-stream-artifact-file": RAW,
    "tck-stream-ordering-001": {"text": "Ordered output"},
    "tck-stream-001": {"text": "Stream hello from TCK"},
    "tck-stream-003": {"text": "Stream task lifecycle"},
    "tck-artifact-file-url": URL,
    "tck-artifact-file": RAW,
    "tck-artifact-text": {"text": "Generated text content"},
    "tck-artifact-data": {"data": {"key": "value", "count": 42}},
}


def say(message: dict[str, Any]) -> None:
    """One line."""
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def chunk(text: str, **flags: bool) -> None:
    """A part of an artifact that comes in several."""
    say({"method": "artifact", "params": {"artifact": {"artifactId": "chunked", "parts": [{"text": text}]}, **flags}})


def new(message_id: str, text: str) -> Any:
    """What the TCK of 1.0 expects of a message."""
    if message_id.startswith("tck-stream-artifact-chunked"):
        chunk("chunk-1 ")
        chunk("chunk-2", append=True, lastChunk=True)
        return {}
    if message_id.startswith("test-resubscribe-message-id"):
        time.sleep(SUBSCRIBED_S)
        return {}
    if message_id.startswith("tck-message-response"):
        return {"message": {"parts": [{"text": "Direct message response"}]}}
    if message_id.startswith("tck-input-required"):
        return {"state": "input-required"}
    if message_id.startswith("tck-reject-task"):
        return {"state": "rejected", "text": "rejected"}
    shown = next((part for prefix, part in SHOWN.items() if message_id.startswith(prefix)), None)
    if shown is not None:
        say({"method": "artifact", "params": {"artifact": {"artifactId": "shown", "parts": [shown]}}})
        return {}
    return text


def old(message_id: str, text: str) -> Any:
    """What the TCK of 0.3 expects of any message: it cancels and subscribes while a task works."""
    say({"method": "progress", "params": {"message": "Processing your question"}})
    time.sleep(WORKS_S)
    return {"state": "input-required", "text": "Hello world!"}


def main(version: str) -> None:
    """Answer each request, until nobody asks any more."""
    play = new if version == "1.0" else old
    for line in sys.stdin:
        asked = json.loads(line)
        if asked.get("method") == "message/send":
            params = asked["params"]
            say({"id": asked["id"], "result": play(params["message"].get("messageId", ""), params["text"])})


if __name__ == "__main__":
    main(sys.argv[1])
