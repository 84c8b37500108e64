"""Is anything that is done to an audit of 100,000 lines found, and with its place?

    python -m bench.tamper [--lines 100000] [--attempts 300] [--seed 1]

Writes a log with the real writer, then changes it in all ways it can think of, each time somewhere else, and verifies
what is left with nothing but the file, its anchor and the key. A tampering counts as placed when a problem names the
line, or stands at the end where the end was cut off. At the end the speed of verifying, on one core and on all.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from sidecar.audit.digest import AuditKey
from sidecar.audit.file import AuditFile
from sidecar.audit.record import BLANK
from sidecar.audit.verify import verify

KEY = AuditKey.from_secret(bytes(range(32)))


@dataclass(frozen=True, slots=True)
class Tampering:
    """What was done, and in which lines it must be found; 0 is the end."""

    lines: list[bytes]
    places: range


Act = Callable[[list[bytes], random.Random], Tampering]


def flip(lines: list[bytes], chance: random.Random) -> Tampering:
    at = chance.randrange(len(lines))
    line = bytearray(lines[at])
    byte = chance.randrange(len(line))
    line[byte] ^= 1 << chance.randrange(8)
    return Tampering([*lines[:at], bytes(line), *lines[at + 1 :]], range(at + 1, at + 3))


def remove(lines: list[bytes], chance: random.Random) -> Tampering:
    at = chance.randrange(len(lines) - 1)
    return Tampering(lines[:at] + lines[at + 1 :], range(at + 1, at + 2))


def remove_many(lines: list[bytes], chance: random.Random) -> Tampering:
    at = chance.randrange(len(lines) - 100)
    return Tampering(lines[:at] + lines[at + chance.randrange(2, 100) :], range(at + 1, at + 2))


def swap(lines: list[bytes], chance: random.Random) -> Tampering:
    at = chance.randrange(len(lines) - 1)
    return Tampering([*lines[:at], lines[at + 1], lines[at], *lines[at + 2 :]], range(at + 1, at + 3))


def move(lines: list[bytes], chance: random.Random) -> Tampering:
    at, to = sorted(chance.sample(range(len(lines)), 2))
    return Tampering([*lines[:at], *lines[at + 1 : to + 1], lines[at], *lines[to + 1 :]], range(at + 1, to + 2))


def double(lines: list[bytes], chance: random.Random) -> Tampering:
    at = chance.randrange(len(lines))
    return Tampering([*lines[: at + 1], lines[at], *lines[at + 1 :]], range(at + 2, at + 3))


def reseal(lines: list[bytes], chance: random.Random) -> Tampering:
    """A line written anew by somebody who knows how, without the key."""
    at = chance.randrange(len(lines))
    body = lines[at].replace(b'"http_status":200', b'"http_status":403').rpartition(b',"hash":"')[0]
    line = b'%b,"hash":"%b"}\n' % (body, sha256(body).hexdigest().encode())
    if line == lines[at]:
        return flip(lines, chance)
    return Tampering([*lines[:at], line, *lines[at + 1 :]], range(at + 1, at + 3) if at + 1 < len(lines) else range(1))


def cut(lines: list[bytes], chance: random.Random) -> Tampering:
    return Tampering(lines[: -chance.randrange(1, 1000)], range(1))


def cut_last(lines: list[bytes], chance: random.Random) -> Tampering:
    return Tampering(lines[:-1], range(1))


def cut_bytes(lines: list[bytes], chance: random.Random) -> Tampering:
    return Tampering([*lines[:-1], lines[-1][: -chance.randrange(1, len(lines[-1]))]], range(1))


def garbage(lines: list[bytes], chance: random.Random) -> Tampering:
    at = chance.randrange(len(lines))
    return Tampering([*lines[:at], chance.choice([b"\n", b"{}\n", b"hello\n"]), *lines[at:]], range(at + 1, at + 2))


ACTS: dict[str, Act] = {
    "one bit changed": flip,
    "changed and sealed anew": reseal,
    "one line removed": remove,
    "many lines removed": remove_many,
    "two lines swapped": swap,
    "one line moved": move,
    "one line doubled": double,
    "the end cut off": cut,
    "the last line cut off": cut_last,
    "bytes of the last line cut off": cut_bytes,
    "garbage put in": garbage,
}


def write_log(path: Path, count: int) -> list[bytes]:
    """Records as calls leave them, some 1,100 bytes each."""
    file = AuditFile.open(path, KEY)
    for start in range(0, count, 250):
        file.append([record(number) for number in range(start, min(start + 250, count))])
    file.close()
    return path.read_bytes().splitlines(keepends=True)


def record(number: int) -> dict[str, Any]:
    call = number // 2
    return {
        **BLANK,
        "event": "outcome" if number % 2 else "decision",
        "id": f"01a21f23-3731-7456-882c-{number:012d}",
        "timestamp": f"2026-11-28T{number // 3600 % 24:02d}:{number // 60 % 60:02d}:{number % 60:02d}.000000Z",
        "instance": "bench",
        "decision_id": f"01a21f23-3731-7456-882d-{call:012d}",
        "chain": ["user:corp/alice", "nhi:corp/researcher"],
        "object": "tool:github/search",
        "http_status": 200 if number % 2 else None,
        "key_id": KEY.id,
    }


def attempt(path: Path, act: Act, lines: list[bytes], chance: random.Random) -> tuple[bool, bool]:
    """Whether it was found, and whether with its place."""
    tampering = act(lines, chance)
    path.write_bytes(b"".join(tampering.lines))
    report = verify([path], key=KEY)
    placed = any(problem.line in tampering.places for problem in report.problems)
    return not report.ok, placed


def run(folder: Path, count: int, attempts: int, seed: int) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """By what was done: attempts, found, placed."""
    path, chance = folder / "audit.jsonl", random.Random(seed)
    lines = write_log(path, count)
    assert verify([path], key=KEY).ok
    tried, found, placed = Counter[str](), Counter[str](), Counter[str]()
    names = list(ACTS)
    for number in range(attempts):
        name = names[number % len(names)]
        is_found, is_placed = attempt(path, ACTS[name], lines, chance)
        tried[name] += 1
        found[name] += is_found
        placed[name] += is_placed
    path.write_bytes(b"".join(lines))
    return tried, found, placed


def speed(path: Path, processes: int) -> tuple[float, float]:
    """Lines a second, by the clock on the wall and by the processor of this process."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    report = verify([path], key=KEY, processes=processes)
    return report.records / (time.perf_counter() - wall_s), report.records / (time.process_time() - cpu_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--attempts", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tamper") as name:
        folder = Path(name)
        tried, found, placed = run(folder, given.lines, given.attempts, given.seed)
        print(f"{'what was done':32}{'attempts':>10}{'found':>8}{'placed':>8}{'missed':>8}")
        for act in ACTS:
            print(f"{act:32}{tried[act]:>10}{found[act]:>8}{placed[act]:>8}{tried[act] - found[act]:>8}")
        path = folder / "audit.jsonl"
        print(f"\n{given.lines} lines of {path.stat().st_size // given.lines} bytes")
        for processes in (1, len(os.sched_getaffinity(0))):
            wall, cpu = max(speed(path, processes) for _ in range(3))
            by_processor = f" ({cpu:,.0f} by its processor time)" if processes == 1 else ""
            print(f"{processes} process(es): {wall:,.0f} lines/s{by_processor}")
    assert tried == found == placed, "something went unnoticed"


if __name__ == "__main__":
    main()
