"""A program on the command line that says what it was told: `python -I -S teller.py [--option value]... [-- prompt]`.

--from stdin|file|args    where its prompt is: a file is named by its first word, an argument is its last
--to stdout|file          where its answer goes: a file is named by its next word
--as text|json            the prompt alone; or all that it was started with
--mood MOOD               what else it does: any function here
"""

import argparse
import json
import os
import signal
import sys
import time


def exits() -> None:
    print("it has no more ink", file=sys.stderr)
    raise SystemExit(3)


def busy() -> None:
    raise SystemExit(75)


def hangs() -> None:
    time.sleep(600)


def stubborn() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if not os.fork():
        os.setsid()
        print(os.getpid(), flush=True)
    time.sleep(600)


def floods() -> None:
    while True:
        os.write(1, b"x" * 65536)


def crashes() -> None:
    os.kill(os.getpid(), 11)


def escapes() -> None:
    os.write(1, b"\x1b]52;c;ZXZpbA==\x07\x1b]0;tit")
    time.sleep(0.06)
    os.write(1, b"le\x1b\\shown\x1b[2")
    time.sleep(0.06)
    os.write(1, b"J and " + os.environb.get(b"TOKEN", b"")[:5])
    time.sleep(0.06)
    os.write(1, os.environb.get(b"TOKEN", b"")[5:] + b" \xc3")
    time.sleep(0.06)
    os.write(1, b"\xa9\n")
    print(os.environ.get("TOKEN"), file=sys.stderr)
    raise SystemExit(1)


def links(path: str) -> None:
    os.symlink("/etc/hostname", path)
    raise SystemExit(0)


def pipes(path: str) -> None:
    os.mkfifo(path)
    raise SystemExit(0)


def overfills(path: str) -> None:
    with open(path, "w") as file:
        file.write("x" * 3000)
    raise SystemExit(0)


def writes_nothing(path: str) -> None:
    raise SystemExit(0)


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--from", default="stdin", dest="source")
    parser.add_argument("--to", default="stdout")
    parser.add_argument("--as", default="text", dest="form")
    parser.add_argument("--mood")
    parser.add_argument("--language")
    parser.add_argument("words", nargs="*")
    given = parser.parse_args()
    words = list(given.words)
    if given.source == "file":
        with open(words.pop(0), encoding="utf-8", newline="") as file:
            prompt = file.read()
    elif given.source == "stdin":
        prompt = sys.stdin.buffer.read().decode()
    out = words.pop(0) if given.to == "file" else None
    if given.source == "args":
        (prompt,) = words
    if given.mood:
        globals()[given.mood](*([out] if out else []))
    answer = prompt
    if given.form == "json":
        facts = {
            "prompt": prompt,
            "argv": sys.argv[1:],
            "env": dict(os.environ),
            "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd")),
            "cwd": os.getcwd(),
            "files": {name: oct(os.stat(name).st_mode & 0o777) for name in os.listdir()},
            "folder": oct(os.stat(".").st_mode & 0o777),
            "language": given.language,
            "pid": os.getpid(),
        }
        answer = json.dumps(facts)
    if out:
        with open(out, "w", encoding="utf-8", newline="") as file:
            file.write(answer)
    else:
        sys.stdout.buffer.write(answer.encode())


main()
