"""Is anything that is done to an audit of 100,000 lines found, and with its place?

    python -m bench.tamper [--lines 100000] [--some 200] [--few 4] [--whole 198] [--attempts 154] [--seed 1]

Writes a log with the real writer. Then every line is changed, sealed anew, removed, swapped, doubled and cut off; in
`some` lines every byte becomes several others, in `few` all 255 others; the last lines are cut at every byte; and every
byte of the anchor becomes all others. Each attempt is verified by itself (`windows`), with nothing but the file, its
anchor and the key; `whole` of them by reading the whole log too, which must come to the same; and `attempts` more in
ways that concern many lines. A tampering counts as placed when the first problem names its line, or is one about the
end where the end is missing. At last the speed of verifying, on one core and on all. The table goes to
`bench/tamper.json`.
"""

from __future__ import annotations

import json
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

import click

from bench.windows import WAYS, Log, anchor_changed, differing, everywhere, tasks_of
from sidecar.audit.checkpoints import attest
from sidecar.audit.digest import AuditKey
from sidecar.audit.file_sink import AuditFile
from sidecar.audit.record import CHECKPOINT, record_of, unsealed
from sidecar.audit.verify import verify
from sidecar.http.signing_keys import generate

OUT = Path(__file__).parent / "tamper.json"
CHECKPOINT_EVERY = 5_000
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
    """Records as calls leave them, some 1,100 bytes each, and a checkpoint now and then."""
    file, attesting = AuditFile.open(path, KEY), generate("EdDSA")
    while left := count - file.end.seq:
        number = file.end.seq
        if number and number % CHECKPOINT_EVERY == 0:
            said = attest(attesting, file.end, "2026-11-28T12:00:00.000000Z")
            told = {**record(number), "control": {"what": CHECKPOINT, **said._asdict()}}
            file.append([unsealed("control", record_of(told))])
        else:
            numbers = range(number, number + min(250 - number % 250, left))
            file.append([unsealed("outcome" if each % 2 else "decision", record_of(record(each))) for each in numbers])
    file.close()
    return path.read_bytes().splitlines(keepends=True)


def record(number: int) -> dict[str, Any]:
    call = number // 2
    return {
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


def speed(path: Path) -> float:
    """Lines a second."""
    began_s = time.perf_counter()
    report = verify([path], key=KEY)
    return report.records / (time.perf_counter() - began_s)


@click.command()
@click.option("--lines", type=click.IntRange(1_000, 10_000_000), default=100_000, show_default=True)
@click.option("--some", type=click.IntRange(1, 100_000), default=200, show_default=True)
@click.option("--few", type=click.IntRange(1, 100_000), default=4, show_default=True)
@click.option("--whole", type=click.IntRange(0, 100_000), default=198, show_default=True)
@click.option("--attempts", type=click.IntRange(0, 100_000), default=154, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), default=OUT, show_default=True)
def main(lines: int, some: int, few: int, whole: int, attempts: int, seed: int, out: Path) -> None:
    """Tamper with every line."""
    with tempfile.TemporaryDirectory(prefix="tamper") as name:
        told = measured(Path(name), lines, some, few, whole, attempts, random.Random(seed))
    out.write_text(json.dumps(told, indent=1) + "\n")
    for part in ("lines_by_themselves", "whole"):
        click.echo(f"\n{part.replace('_', ' '):34}{'attempts':>10}{'found':>10}{'placed':>10}{'missed':>8}")
        for way, (tried, found, placed) in told[part].items():
            click.echo(f"{way:34}{tried:>10}{found:>10}{placed:>10}{tried - found:>8}")
    click.echo(f"\nverified whole too: {told['verified_whole_too']}, and otherwise: {told['differ']}")
    click.echo(f"{lines} lines of {told['bytes_per_line']} bytes, tried in {told['tried_in_s']} s")
    click.echo(f"verified {told['lines_per_s']:,} lines/s")
    if told["missed"] or told["differ"] or told["placed"] != told["attempts"]:
        raise click.ClickException("\n".join(("something went unnoticed", *told["missed"], *told["differ"])))


def measured(
    folder: Path, count: int, some: int, few: int, whole: int, attempts: int, chance: random.Random
) -> dict[str, Any]:
    """All of it; what was found."""
    (folder / "windows").mkdir()
    log = Log.of(write_log(folder / "windows.jsonl", count), KEY)
    cores, began = len(os.sched_getaffinity(0)), time.monotonic()
    tally = everywhere(folder / "windows", log, tasks_of(log, some, few, chance), cores)
    anchors, forged = anchor_changed(folder, log)
    tried_whole, differ = differing(folder, log, whole, chance)
    by_act = run(folder, count, attempts, chance.randrange(2**32))
    by_itself = (tally.tried, tally.found, tally.placed)
    path = folder / "audit.jsonl"
    return {
        "lines": count,
        "bytes_per_line": path.stat().st_size // count,
        "attempts": tally.tried.total() + anchors + by_act[0].total(),
        "found": tally.found.total() + forged + by_act[1].total(),
        "placed": tally.placed.total() + forged + by_act[2].total(),
        "lines_by_themselves": {way: [each[way] for each in by_itself] for way in WAYS}
        | {"the anchor: every byte, all values": [anchors, forged, forged]},
        "whole": {act: [each[act] for each in by_act] for act in ACTS},
        "missed": tally.missed + [act for act in ACTS if by_act[0][act] != by_act[2][act]],
        "verified_whole_too": tried_whole,
        "differ": differ,
        "tried_in_s": round(time.monotonic() - began),
        "lines_per_s": round(max(speed(path) for _ in range(3))),
    }


if __name__ == "__main__":
    main()
