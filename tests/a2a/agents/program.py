"""An agent that is a program: JSON-RPC on its pipes, one request after the other.

`python -I -S program.py` acts as the first word of a message says, as `plays.py` does behind the SDK: `echo: hello`.
With a file's name it writes there what it says otherwise as text. Nothing but the standard library is in it, so that a
test can afford many of them.
"""

import json
import select
import sys
from pathlib import Path

STEP_S = 0.02


def say(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def tell(method, **params):
    say(method=method, params=params)


def chunks(text):
    """One artifact, word by word."""
    words = text.split()
    for number, word in enumerate(words, 1):
        is_last = number == len(words)
        artifact = {"artifactId": "words", "name": "words", "parts": [{"text": word if is_last else f"{word} "}]}
        tell("artifact", artifact=artifact, append=number > 1, lastChunk=is_last)
    return {"state": "completed"}


def forever(text):
    """Works until it is cancelled."""
    tell("progress", message="on it")
    while "cancel" not in sys.stdin.readline():
        pass
    return {"state": "canceled"}


def ticks(text):
    """Works until it is cancelled, and keeps saying so."""
    number = 0
    while not select.select([sys.stdin], [], [], STEP_S)[0]:
        number += 1
        tell("progress", message=f"tick {number}")
    sys.stdin.readline()
    return {"state": "canceled"}


PLAYS = {
    "echo": lambda text: {"state": "completed", "text": text},
    "reply": lambda text: {"message": text},
    "ask": lambda text: {"state": "input-required", "text": f"{text}?"},
    "fail": lambda text: {"state": "failed", "text": text},
    "reject": lambda text: {"state": "rejected", "text": text},
    "chunks": chunks,
    "forever": forever,
    "ticks": ticks,
}

while line := sys.stdin.readline():
    request = json.loads(line)
    if request.get("method") == "message/send":
        word, _, rest = request["params"]["text"].partition(":")
        result = PLAYS.get(word, PLAYS["echo"])(rest.strip() or word)
        if len(sys.argv) > 1:
            Path(sys.argv[1]).write_text(result.pop("text", ""))
        say(id=request["id"], result=result)
