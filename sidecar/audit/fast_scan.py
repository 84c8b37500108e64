"""Checks runs of audit lines at hashing speed.

Almost every line of a log is as the sidecar wrote it, so many lines are first checked together: are they one run of the
chain, each sealed on the one before it? The check compares bytes at fixed places and parses no JSON: an attacker who
could write other JSON under these seals could seal whole lines (`chain`). If the check fails, `line_walk` examines the
same lines one by one and reports what is wrong and where.

Pure: bytes in, values out.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256

_BEGINNING = re.compile(rb'\{"v":[12],"event":"[a-z]+","seq":([1-9]\d{0,18}),"id":"')
_BEFORE = b',"prev_hash":"'
_SEAL_BYTES = len(b',"hash":"') + 64 + len(b'"}')
_DECISION_ID = b'"decision_id":"'
_AFTER_VERSION = len(b'{"v":1')
_FIRST_OF_EVENT = len(b'{"v":1,"event":"')
DECISION, OUTCOME, REFUSAL, CONTROL = b"dorc"
_NAMES = {DECISION: b"decision", OUTCOME: b"outcome", REFUSAL: b"refusal", CONTROL: b"control"}
_VERSIONS = b'{"v":1', b'{"v":2'
_BEGINNINGS = {first: b',"event":"%b","seq":%%d,"id":"' % name for first, name in _NAMES.items()}
_OF_CALLS = (DECISION, OUTCOME)
_NO_EVIDENCE = b'"evidence":[]'


@dataclass(slots=True)
class LineRun:
    """Lines that are one piece of the chain.

    `hashes` are those of the requested sequences; `opened` and `closed` are the ids of decisions without an outcome and
    of outcomes without a decision in these lines; `to_read` are the indexes (from 0) of lines that need parsing:
    control records, and outcomes that name results.
    """

    first_seq: int
    last_seq: int
    prev_hash: str
    last_hash: str
    events: Counter[str] = field(default_factory=Counter)
    hashes: dict[int, str] = field(default_factory=dict)
    opened: set[bytes] = field(default_factory=set)
    closed: set[bytes] = field(default_factory=set)
    to_read: list[tuple[int, bytes]] = field(default_factory=list)

    @property
    def count(self) -> int:
        return self.last_seq - self.first_seq + 1


def scan(block: bytes, wanted: Sequence[int] = (), *, with_evidence: bool = False) -> LineRun | None:
    """Check that whole lines with their newlines are one run of the chain; None if they are not, or not in the
    sidecar's format. `wanted` are sequences in ascending order."""
    first = _BEGINNING.match(block)
    at = block.find(_BEFORE, 0, block.find(b"\n"))
    if first is None or at < 0:
        return None
    lines = block.split(b"\n")
    if lines.pop() or b"" in lines:
        return None
    seq = int(first[1])
    before = block[at + len(_BEFORE) : at + len(_BEFORE) + 64]
    run = LineRun(seq, seq + len(lines) - 1, before.decode("ascii", "replace"), "")
    asked_for = set(wanted[bisect_left(wanted, run.first_seq) : bisect_right(wanted, run.last_seq)])
    opened, closed, to_read = run.opened, run.closed, run.to_read
    counts = dict.fromkeys(_NAMES, 0)
    for line in lines:
        digest = sha256(line[:-_SEAL_BYTES]).hexdigest().encode()
        if not line.endswith(_BEFORE + before + b'","hash":"' + digest + b'"}'):
            return None
        event = line[_FIRST_OF_EVENT]
        if event not in counts or not line.startswith(_VERSIONS):
            return None
        if not line.startswith(_BEGINNINGS[event] % seq, _AFTER_VERSION):
            return None
        counts[event] += 1
        if event in _OF_CALLS:
            at = line.find(_DECISION_ID)
            if at < 0:
                return None
            at += len(_DECISION_ID)
            decision_id = line[at : line.find(b'"', at)]
            if event == DECISION:
                opened.add(decision_id)
            elif decision_id in opened:
                opened.remove(decision_id)
            else:
                closed.add(decision_id)
            if with_evidence and event == OUTCOME and _NO_EVIDENCE not in line:
                to_read.append((seq - run.first_seq, line))
        elif event == CONTROL:
            to_read.append((seq - run.first_seq, line))
        if seq in asked_for:
            run.hashes[seq] = digest.decode()
        before = digest
        seq += 1
    run.last_hash = before.decode()
    run.events.update({_NAMES[event].decode(): count for event, count in counts.items() if count})
    return run
