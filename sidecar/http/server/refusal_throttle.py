"""Slows down callers who are refused too often.

    a stranger     nobody knows who it is: counted by address. One too many in a minute is closed unanswered, without a
                   record of its own: how much evidence there is must not be a stranger's choice. How many were closed
                   is in the metrics and, once a minute for each address, in the evidence
    a principal    counted by chain. From one too many on, each call of that chain is `too-many-refusals`, until the
                   minute is over
    a record       a refusal of a known caller by a limit, or because something is out, has a record of its own until
                   its chain has had `recorded_per_principal_per_minute` of them. Those beyond are answered, and
                   counted once a minute in the evidence, by chain and reason: a caller who ignores `Retry-After` does
                   not choose how much evidence there is either

What counts is a refusal that is the caller's own doing: not a limit's, which has its own word and its own patience, and
nothing that is out or broken here or behind us. An admitted call is no refusal: who is let in from the same address
loses nothing by it.

A minute begins with its first refusal. The tables are bounded: strangers from more addresses than fit are one together,
principals who do not fit are not counted.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from sidecar.errors import ANSWERS, LimitState, Reason, Refusal
from sidecar.http.server.connection_limits import peer_of
from sidecar.settings.refusal_limits import RefusalSettings
from sidecar.vocabulary import Caller

MINUTE_S: Final = 60.0
MAX_NAMES: Final = 10_000  # some 2 MB; all of them within one minute is nobody's normal day
MAX_TOLD: Final = 100  # addresses that have a record of their own, each minute; the others are told together
OTHERS: Final = "others"
CLOSED: Final = "refusals-closed"  # what the control records are called
COUNTED: Final = "refusals-counted"
LABEL: Final = "refusals_per_minute"  # as a limit is called


Witness = Callable[..., Awaitable[None]]


class ClosingCounts(Protocol):
    """Whoever counts what was closed; `sidecar.observability.metrics.Metrics` is one."""

    def refusal_unanswered(self) -> None:
        """A stranger's request was closed."""


class MinuteCounts:
    """How often each name came, in its minute."""

    def __init__(self, clock_mono: Callable[[], float], max_names: int) -> None:
        self._clock_mono = clock_mono
        self._max_names = max_names
        self._minutes: dict[str, tuple[float, int]] = {}  # when it began, how often it came; the oldest first

    def __len__(self) -> int:
        return len(self._minutes)

    def count(self, name: str) -> int | None:
        """Once more; how often that makes. None where there is no room for another name."""
        now_s = self._clock_mono()
        self._forget(now_s)
        known = self._minutes.get(name)
        if known is None and len(self._minutes) >= self._max_names:
            return None
        began_s, count = known or (now_s, 0)
        self._minutes[name] = began_s, count + 1
        return count + 1

    def standing(self, name: str) -> tuple[int, float]:
        """How often it came, and the rest of its minute in seconds."""
        began_s, count = self._minutes.get(name, (0.0, 0))
        left_s = began_s + MINUTE_S - self._clock_mono()
        return (count, left_s) if count and left_s > 0 else (0, 0.0)

    def _forget(self, now_s: float) -> None:
        """Minutes are equally long, so that the first to begin is the first to end."""
        while self._minutes:
            name, (began_s, _) = next(iter(self._minutes.items()))
            if now_s - began_s < MINUTE_S:
                return
            del self._minutes[name]


Name = tuple[tuple[str, object], ...]
"""Of what was counted, as the facts of a control record."""


@dataclass(slots=True)
class Tally:
    """What has no record of its own, until it is told. `what` is how its control record is called, `many` how the
    number of those that are told together."""

    what: str
    many: str
    max_names: int
    counts: Counter[Name] = field(default_factory=Counter)

    def add(self, name: Name, others: Name) -> None:
        """Once more of this name; of `others`, where there is no room for another."""
        self.counts[name if name in self.counts or len(self.counts) < self.max_names else others] += 1

    async def tell(self, witness: Witness) -> None:
        """Put it on record. What the witness raises is raised; nothing is forgotten then."""
        told = self.counts.most_common(MAX_TOLD)
        rest = self.counts - Counter(dict(told))
        for name, count in told:
            await witness(self.what, "sidecar", **dict(name), count=count)
            self.counts[name] -= count
        if rest:
            await witness(self.what, "sidecar", **{self.many: len(rest)}, count=rest.total())
            self.counts -= rest
        self.counts = +self.counts


@dataclass(slots=True)
class RefusalThrottle:
    """`settings` are those in force."""

    settings: Callable[[], RefusalSettings]
    metrics: ClosingCounts
    clock_mono: Callable[[], float]
    max_names: int = MAX_NAMES
    _strangers: MinuteCounts = field(init=False)
    _others: MinuteCounts = field(init=False)
    _principals: MinuteCounts = field(init=False)
    _recorded: MinuteCounts = field(init=False)
    _closed: Tally = field(init=False)
    _counted: Tally = field(init=False)

    def __post_init__(self) -> None:
        self._strangers = MinuteCounts(self.clock_mono, self.max_names)
        self._others = MinuteCounts(self.clock_mono, 1)
        self._principals = MinuteCounts(self.clock_mono, self.max_names)
        self._recorded = MinuteCounts(self.clock_mono, self.max_names)
        self._closed = Tally(CLOSED, "peers", self.max_names)
        self._counted = Tally(COUNTED, "chains", self.max_names)

    def closes(self, caller: Caller | None, peer: str, refusal: Refusal) -> bool:
        """Count a refusal; whether it is a stranger's, and one too many to be answered."""
        if not _is_own_doing(refusal):
            return False
        if caller is not None and not caller.is_anonymous:
            if refusal.reason is not Reason.CALLER_GONE:
                self._principals.count(caller.binding)
            return False
        name = _name_of(peer)
        count = self._strangers.count(name) or self._others.count(OTHERS) or 0
        if count <= self.settings().per_peer_per_minute:
            return False
        self._close(name)
        return True

    def only_counts(self, caller: Caller | None, peer: str, refusal: Refusal) -> bool:
        """Whether this is one too many of its chain's refusals to have a record of its own. What is the caller's own
        doing always has one: it is bounded by `per_principal_per_minute`."""
        if caller is None or _is_own_doing(refusal):
            return False
        known = not caller.is_anonymous
        count = self._recorded.count(caller.binding if known else _name_of(peer))
        if count is not None and count <= self.settings().recorded_per_principal_per_minute:
            return False
        whose: Name = (("chain", tuple(one.name for one in caller.chain)),) if known else (("peer", _name_of(peer)),)
        reason: Name = (("reason", refusal.reason.value),)
        self._counted.add((*whose, *reason), (("chain", (OTHERS,)), *reason))
        return True

    def turned_away(self, peer: str) -> None:
        """Somebody came when there was no room to hear it out."""
        self._close(_name_of(peer))

    def _close(self, name: str) -> None:
        self._closed.add((("peer", name),), (("peer", OTHERS),))
        self.metrics.refusal_unanswered()

    def check(self, caller: Caller | None) -> None:
        """Raises Refusal(TOO_MANY_REFUSALS) for a chain that was refused too often in its minute."""
        if not len(self._principals) or caller is None or caller.is_anonymous:
            return
        most = self.settings().per_principal_per_minute
        count, left_s = self._principals.standing(caller.binding)
        if count >= most:
            state = LimitState(LABEL, most, 0, MINUTE_S)
            raise Refusal(Reason.TOO_MANY_REFUSALS, limit=state, retry_after_s=left_s)

    async def tell(self, witness: Witness) -> None:
        """Put on record what was closed or only counted since the last time. What the witness raises is raised; nothing
        is forgotten then."""
        await self._closed.tell(witness)
        await self._counted.tell(witness)

    async def run(self, witness: Witness, every_s: float = MINUTE_S) -> None:
        """Tell once a minute. Runs as long as the process."""
        while True:
            await asyncio.sleep(every_s)
            try:
                await self.tell(witness)
            except Refusal:
                continue  # the evidence cannot be written now; the next minute tells of both


def _is_own_doing(refusal: Refusal) -> bool:
    answer = ANSWERS[refusal.reason]
    return answer.http < 500 and answer.status != "rate_limited"


def _name_of(peer: str) -> str:
    try:
        return peer_of(peer)
    except ValueError:
        return OTHERS
