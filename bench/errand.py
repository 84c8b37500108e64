"""What does a program behind the sidecar do in the laboratory, and what does it know of it?

Run as a file of its own, `python -I -S errand.py HOW`: told `TRACE DEED SECONDS` on its standard input, in a file, over
JSON-RPC or line by line. What it began and ended it writes down, a line each, in the file that $JOURNAL names: so what
is said of a run can be laid beside what its program did. One that writes ($LOCK) says so when it met another.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time

FAILS_FOR_NOW = 75
DEEDS = ("works", "fails", "again", "hangs", "stubborn", "leaves")


class Fails(Exception):
    """It could not do it. The text is the exit code."""


def done(told: str) -> str:
    """Do it; what there is to say of it."""
    trace, deed, seconds = told.split()
    if lock := os.environ.get("LOCK"):
        held = os.open(lock, os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            note("met", trace)
    note("began", trace)
    if deed == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if deed == "leaves":
        leave_one()
    if deed == "hangs":
        time.sleep(600)
    time.sleep(float(seconds))
    if deed == "fails":
        raise Fails("1")
    if deed == "again":
        raise Fails(str(FAILS_FOR_NOW))
    note("ended", trace)
    return f"did {trace}"


def note(what: str, trace: str) -> None:
    """Put it on record, whole or not at all."""
    file = os.open(os.environ["JOURNAL"], os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    os.write(file, f"{what} {trace} {os.getpid()}\n".encode())
    os.close(file)


def leave_one() -> None:
    """A child that left its session and heeds no SIGTERM."""
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for stream in (0, 1, 2):
            os.close(stream)
        time.sleep(600)
        os._exit(0)


def answered(line: str) -> None:
    """One request of JSON-RPC."""
    asked = json.loads(line)
    if "id" not in asked:
        return
    try:
        told: dict[str, object] = {"result": done(asked["params"]["text"])}
    except Fails as fails:
        again = {"data": {"category": "transient"}} if str(fails) == str(FAILS_FOR_NOW) else {}
        told = {"error": {"code": -32000, "message": "it could not", **again}}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **told}), flush=True)


def main(how: str, *files: str) -> None:
    """Be told, and answer."""
    try:
        if how == "file":
            with open(files[0]) as told, open(files[1], "w") as answer:
                answer.write(done(told.read()))
        elif how == "stdin":
            print(done(sys.stdin.read()))
        else:
            for line in sys.stdin:
                if how == "json-rpc":
                    answered(line)
                else:
                    print(done(line), flush=True)
    except Fails as fails:
        sys.exit(int(str(fails)))


if __name__ == "__main__":
    main(*sys.argv[1:])
