"""An MCP server on pipes that can do what one must not: `python -I -S program.py MOOD...`.

It is started in milliseconds, speaks the session era, and its tools say what it is: `count`, `repeat`, `whoami`
(environment, descriptors, folder, umask, arguments), `misbehave` (any of `MOODS`, in the middle of a call), `say` (the
bytes of a file as its answer, with the call's id in place of `ID`). Moods on its command line come at once.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

LINE = "x" * 1000
ID = 987654321


def say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def flood_line() -> None:
    while True:
        os.write(1, b"x" * 65536)


def flood_noise() -> None:
    while True:
        os.write(1, b"not json\n" * 1000)


def flood(method: str = "", id: int | None = None, **params: Any) -> None:
    """The same message again and again: a notification, with an id a request, without a method an answer."""
    message: dict[str, Any] = {"jsonrpc": "2.0"} if id is None else {"jsonrpc": "2.0", "id": id}
    message |= {"method": method, "params": params} if method else {"result": {}}
    lines = (json.dumps(message) + "\n").encode() * 100
    while True:
        os.write(1, lines)


def flood_errors() -> None:
    for _ in range(2000):
        os.write(2, b"\x1b]52;c;evil\x07" + LINE.encode() + b"\n")


def some_noise() -> None:
    os.write(1, b"Server listening on port 3000\n\n[1]\n\xff\xfe\n")


def partial_line() -> None:
    os.write(1, b'{"jsonrpc": "2.0", "id": 1, "res')
    os._exit(0)


def orphans() -> None:
    """One grandchild that ignores SIGTERM, one in a session of its own, one that was orphaned at once."""
    ignores = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    apart = "import os, time; os.setsid(); os.fork() and os._exit(0); time.sleep(600)"
    for code in (ignores, "import os, time; os.setsid(); time.sleep(600)", apart):
        subprocess.Popen([sys.executable, "-I", "-S", "-c", code])


def close_output() -> None:
    os.close(1)
    time.sleep(600)


def deaf() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


MOODS: dict[str, Callable[[], object]] = {
    "flood_line": flood_line,
    "flood_noise": flood_noise,
    "flood_errors": flood_errors,
    "flood_notes": lambda: flood("notifications/message", level="info", data=LINE),
    "flood_progress": lambda: flood("notifications/progress", progressToken=2, progress=1),
    "flood_changes": lambda: flood("notifications/tools/list_changed"),
    "flood_pings": lambda: flood("ping", id=1),
    "flood_questions": lambda: flood("sampling/createMessage", id=1, messages=[]),
    "flood_answers": lambda: flood(id=999),
    "some_noise": some_noise,
    "partial_line": partial_line,
    "orphans": orphans,
    "deaf": deaf,
    "exit": lambda: os._exit(1),
    "crash": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "hang": lambda: time.sleep(600),
    "close_output": close_output,
}
TOOLS = [
    {"name": "count", "inputSchema": {"type": "object"}},
    {"name": "repeat", "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}}},
    {"name": "whoami", "inputSchema": {"type": "object"}},
    {"name": "misbehave", "inputSchema": {"type": "object", "properties": {"how": {"enum": sorted(MOODS)}}}},
    {"name": "say", "inputSchema": {"type": "object", "properties": {"file": {"type": "string"}}}},
]
_counted = 0


def whoami() -> dict[str, Any]:
    umask = os.umask(0o077)
    fds = {}
    for fd in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd") else []:
        try:
            fds[int(fd)] = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue  # the one that lists
    told = {"env": dict(os.environ), "fds": fds, "cwd": os.getcwd(), "umask": umask, "argv": sys.argv[1:]}
    return {**told, "files": os.listdir("."), "pid": os.getpid(), "leads": os.getpgid(0) == os.getsid(0) == os.getpid()}


def call(name: str, arguments: dict[str, Any]) -> str:
    global _counted
    if name == "misbehave":
        MOODS[arguments["how"]]()
        return "behaved"
    if name == "repeat":
        return str(arguments["text"])
    if name == "whoami":
        return json.dumps(whoami())
    _counted += 1
    return f"{_counted} {os.getpid()}"


def answer(message: dict[str, Any]) -> dict[str, Any]:
    method, params = message["method"], message.get("params", {})
    if method == "initialize":
        info = {"name": "program", "version": "1"}
        return {
            "result": {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
        }
    if method == "tools/list":
        return {"result": {"tools": TOOLS}}
    if method == "tools/call":
        return {"result": {"content": [{"type": "text", "text": call(params["name"], params.get("arguments", {}))}]}}
    return {"error": {"code": -32601, "message": "Method not found"}}


for mood in sys.argv[1:]:
    MOODS[mood]()
for line in sys.stdin:
    heard = json.loads(line)
    if heard.get("method") == "tools/call" and heard["params"]["name"] == "say":
        with open(heard["params"]["arguments"]["file"], "rb") as said:
            sys.stdout.buffer.write(said.read().replace(b"%d" % ID, b"%d" % heard["id"]) + b"\n")
        sys.stdout.flush()
    elif "id" in heard and "method" in heard:
        say({"id": heard["id"], **answer(heard)})
