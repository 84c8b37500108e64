"""Is every line of an audit guarded, each of them tried by itself?

What a verification finds at a line hangs on that line, on those behind it, and on the end of the chain before it. So a
log need not be read from its beginning a million times: it is verified from a known end, two lines before the one that
is tampered with, to two lines behind it, by the very `verify` that reads whole logs, with an anchor that the key made
for this window. What it finds there a verification of the whole finds too, since no later line takes a problem back;
`tamper` holds the two side by side on a sample.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from sidecar.audit.chain import BEGINNING, HEAD_SUFFIX, ChainEnd, head_line
from sidecar.audit.digest import AuditKey
from sidecar.audit.verify import verify

BEFORE, BEHIND = 2, 2  # lines around the one that is tampered with
END = 0  # the place of what is missing at the end of a file
_HASH = re.compile(rb'"hash":"([0-9a-f]{64})"\}\n\Z')

Found = list[tuple[int, str]]
"""Lines of the whole log, and what is wrong there."""


class Attempt(NamedTuple):
    """What stands in the window instead, from which line on (counted from 0), and where it must be found.

    `ends` says that nothing follows: the file was cut off there.
    """

    at: int
    lines: bytes
    taken: int
    places: Sequence[int]
    ends: bool = False


@dataclass(frozen=True)
class Log:
    """Lines in order, and the ends of the chain before each of them and behind the last."""

    lines: Sequence[bytes]
    ends: Sequence[ChainEnd]
    key: AuditKey

    @classmethod
    def of(cls, lines: Sequence[bytes], key: AuditKey) -> Log:
        ends = [BEGINNING]
        for seq, line in enumerate(lines, start=1):
            found = _HASH.search(line)
            assert found, "this is no record"
            ends.append(ChainEnd(seq, found[1].decode()))
        return cls(lines, ends, key)

    def whole(self, attempt: Attempt) -> bytes:
        """The log after it."""
        rest = () if attempt.ends else self.lines[attempt.at + attempt.taken :]
        return b"".join((*self.lines[: attempt.at], attempt.lines, *rest))


class Window:
    """Where pieces of a log are verified: a file and its anchor, written over for each attempt."""

    def __init__(self, folder: Path, log: Log) -> None:
        self.path = folder / "audit.jsonl"
        self._log = log
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        self._head = os.open(f"{self.path}{HEAD_SUFFIX}", os.O_RDWR | os.O_CREAT, 0o600)
        self._anchored = -1

    def close(self) -> None:
        os.close(self._file)
        os.close(self._head)

    def found(self, attempt: Attempt) -> Found:
        """What a verification says of this piece, by lines of the whole log."""
        log = self._log
        first = max(0, attempt.at - BEFORE)
        behind = attempt.at + attempt.taken
        last = len(log.lines) if attempt.ends else min(len(log.lines), behind + BEHIND)
        before = b"".join(log.lines[first : attempt.at])
        self._write(before + attempt.lines + (b"" if attempt.ends else b"".join(log.lines[behind:last])))
        self._anchor(last)
        report = verify([self.path], key=log.key, after=log.ends[first])
        assert report.problem_count == len(report.problems)
        return [(problem.line and problem.line + first, problem.kind) for problem in report.problems]

    def _write(self, content: bytes) -> None:
        os.pwrite(self._file, content, 0)
        os.ftruncate(self._file, len(content))

    def _anchor(self, last: int) -> None:
        if last != self._anchored:
            os.pwrite(self._head, head_line(self._log.key, self._log.ends[last]), 0)
            self._anchored = last


# --- what is done -----------------------------------------------------------------------------------------------------

Way = Callable[[Log, int, random.Random], Iterator[Attempt]]
"""All that is done in this way to the line `at`, counted from 0. Places count from 1."""


def byte_changed(log: Log, at: int, chance: random.Random) -> Iterator[Attempt]:
    line = log.lines[at]
    byte = chance.randrange(len(line))
    yield _with_byte(log, at, byte, (line[byte] + chance.randrange(1, 256)) % 256)


def some_values_of_every_byte(log: Log, at: int, chance: random.Random) -> Iterator[Attempt]:
    """A bit, a case, a sign, the ends of strings and lines, nothing, and any."""
    line = log.lines[at]
    for byte, value in enumerate(line):
        for other in {value ^ 1, value ^ 0x20, value ^ 0x80, 0x22, 0x0A, 0, chance.randrange(256)} - {value}:
            yield _with_byte(log, at, byte, other)


def all_values_of_every_byte(log: Log, at: int, chance: random.Random) -> Iterator[Attempt]:
    for byte, value in enumerate(log.lines[at]):
        for other in range(256):
            if other != value:
                yield _with_byte(log, at, byte, other)


def _with_byte(log: Log, at: int, byte: int, value: int) -> Attempt:
    line = bytearray(log.lines[at])
    line[byte] = value
    lost_end = at + 1 == len(log.lines) and byte + 1 == len(line)  # the last newline: an append that never ended
    return Attempt(at, bytes(line), 1, (END,) if lost_end else (at + 1,))


def sealed_anew(log: Log, at: int, chance: random.Random) -> Iterator[Attempt]:
    """A line written anew by somebody who knows how, without the key."""
    body = log.lines[at].replace(b'"instance":"bench"', b'"instance":"other"').rpartition(b',"hash":"')[0]
    line = b'%b,"hash":"%b"}\n' % (body, sha256(body).hexdigest().encode())
    yield Attempt(at, line, 1, (END,) if at + 1 == len(log.lines) else (at + 2,))


def removed(log: Log, at: int, chance: random.Random) -> Iterator[Attempt]:
    yield Attempt(at, b"", 1, (END,) if at + 1 == len(log.lines) else (at + 1,))


def swapped(log: Log, at: int, chance: random.Random) -> Iterator[Attempt]:
    if at + 1 < len(log.lines):
        yield Attempt(at, log.lines[at + 1] + log.lines[at], 2, (at + 2,))


def doubled(log: Log, at: int, chance: random.Random) -> Iterator[Attempt]:
    yield Attempt(at, 2 * log.lines[at], 1, (at + 2,))


def cut_before(log: Log, at: int, chance: random.Random) -> Iterator[Attempt]:
    yield Attempt(at, b"", 1, (END,), ends=True)


def cut_at_every_byte(log: Log, at: int, chance: random.Random) -> Iterator[Attempt]:
    for size in range(1, len(log.lines[at])):
        yield Attempt(at, log.lines[at][:size], 1, (END,), ends=True)


OF_EVERY_LINE: dict[str, Way] = {
    "one byte changed": byte_changed,
    "changed and sealed anew": sealed_anew,
    "removed": removed,
    "swapped with the next": swapped,
    "doubled": doubled,
    "cut off, with all behind it": cut_before,
}
OF_SOME_LINES: dict[str, Way] = {
    "every byte, several values": some_values_of_every_byte,
    "every byte, all 255 values": all_values_of_every_byte,
    "cut at every byte": cut_at_every_byte,
}
WAYS = OF_EVERY_LINE | OF_SOME_LINES
COMPARED = tuple(way for way, does in WAYS.items() if does is not all_values_of_every_byte)  # some values are of all


# --- all of it --------------------------------------------------------------------------------------------------------


@dataclass
class Tally:
    """By what was done: attempts, found, found in their place; and the first of what was not."""

    tried: Counter[str] = field(default_factory=Counter)
    found: Counter[str] = field(default_factory=Counter)
    placed: Counter[str] = field(default_factory=Counter)
    missed: list[str] = field(default_factory=list)

    def count(self, way: str, attempt: Attempt, found: Found) -> None:
        self.tried[way] += 1
        self.found[way] += bool(found)
        placed = is_placed(attempt, found)
        self.placed[way] += placed
        if not placed and len(self.missed) < 20:
            self.missed.append(f"{way}: line {attempt.at + 1}: {found}: {attempt.lines[:3000]!r}")

    def add(self, other: Tally) -> None:
        self.tried += other.tried
        self.found += other.found
        self.placed += other.placed
        self.missed += other.missed


def is_placed(attempt: Attempt, found: Found) -> bool:
    """Whether the first problem stands where it must, or, of what is missing at the end, one is about the end."""
    if attempt.places == (END,):
        return any(line == END for line, _ in found)
    return bool(found) and found[0][0] in attempt.places


class Task(NamedTuple):
    """One way, done to some lines."""

    way: str
    lines: Sequence[int]
    seed: int


def tasks_of(log: Log, some: int, few: int, chance: random.Random) -> list[Task]:
    """Every line in each way; the dear ways for `some` lines and for `few`, the first and the last among them."""
    count = len(log.lines)
    pieces = [range(start, min(start + 1000, count)) for start in range(0, count, 1000)]
    tasks = [Task(way, piece, chance.randrange(2**32)) for way in OF_EVERY_LINE for piece in pieces]
    shuffled = chance.sample(range(count), count)
    for way, many in zip(OF_SOME_LINES, (some, few, some), strict=True):
        last = range(count)[-max(1, many // 2) :] if way == "cut at every byte" else (0, count - 1)
        chosen = list(dict.fromkeys((*last, *shuffled)))[:many]
        tasks += [Task(way, (at,), chance.randrange(2**32)) for at in chosen]
    return tasks


class Worker:
    """One process of those that try; each writes in a folder of its own."""

    def __init__(self, folder: Path, log: Log) -> None:
        own = folder / str(os.getpid())
        own.mkdir()
        self._window, self._log = Window(own, log), log

    def done(self, task: Task) -> Tally:
        tally, chance = Tally(), random.Random(task.seed)
        for at in task.lines:
            for attempt in WAYS[task.way](self._log, at, chance):
                tally.count(task.way, attempt, self._window.found(attempt))
        return tally


_worker: Worker | None = None  # of each process of the pool


def _begin(folder: Path, log: Log) -> None:
    global _worker
    _worker = Worker(folder, log)


def _done(task: Task) -> Tally:
    assert _worker is not None
    return _worker.done(task)


def everywhere(folder: Path, log: Log, tasks: Sequence[Task], processes: int) -> Tally:
    """All tasks, by so many processes."""
    whole = Tally()
    forking = multiprocessing.get_context("fork")  # the log is inherited, not sent
    with forking.Pool(processes, _begin, (folder, log)) if processes > 1 else nullcontext() as pool:
        for tally in map(Worker(folder, log).done, tasks) if pool is None else pool.imap_unordered(_done, tasks):
            whole.add(tally)
    return whole


def anchor_changed(folder: Path, log: Log) -> tuple[int, int]:
    """How many anchors in which one byte is another were tried, and found to be none or forged."""
    anchor, path = head_line(log.key, log.ends[-1]), folder / "anchored.jsonl"
    path.write_bytes(b"".join(log.lines[-BEHIND:]))
    tried = found = 0
    for byte, value in enumerate(anchor):
        for other in range(256):
            if other != value:
                Path(f"{path}{HEAD_SUFFIX}").write_bytes(anchor[:byte] + bytes((other,)) + anchor[byte + 1 :])
                problems = verify([path], key=log.key, after=log.ends[-1 - BEHIND]).problems
                tried += 1
                found += [problem.kind for problem in problems] == ["forged"]
    return tried, found


def differing(folder: Path, log: Log, attempts: int, chance: random.Random) -> tuple[int, list[str]]:
    """How many attempts of every way were verified whole too, and where the window said anything else."""
    (folder / "one").mkdir()
    window, path = Window(folder / "one", log), folder / "whole.jsonl"
    Path(f"{path}{HEAD_SUFFIX}").write_bytes(head_line(log.key, log.ends[-1]))
    tried, differ = 0, list[str]()
    for number in range(attempts):
        way = COMPARED[number % len(COMPARED)]
        ends = (0, 1, len(log.lines) - 2, len(log.lines) - 1)
        at = ends[number // len(COMPARED)] if number // len(COMPARED) < len(ends) else chance.randrange(len(log.lines))
        made = list(WAYS[way](log, at, chance))
        for attempt in chance.sample(made, min(1, len(made))):
            path.write_bytes(log.whole(attempt))
            told = [(problem.line, problem.kind) for problem in verify([path], key=log.key).problems]
            tried += 1
            if told != (found := window.found(attempt)):
                differ.append(f"{way}: line {at + 1}: {found} and whole {told}")
    window.close()
    return tried, differ
