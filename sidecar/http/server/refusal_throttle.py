"""Slows down callers who are refused too often.

    a stranger     an unauthenticated caller, counted by address. Beyond the limit in a minute, requests are closed
                   unanswered, without their own record: their number is in the metrics and, once a minute for each
                   address, in a control record
    a principal    counted by chain. Beyond the limit, each call is `too-many-refusals` until the minute ends
    a record       a refusal of a caller by a limit or an outage has its own record up to
                   `recorded_per_principal_per_minute`, counted by chain (an anonymous caller: by address); further
                   ones are counted once a minute in a control record, by this and the reason. So no caller determines
                   the size of the audit log

An enforcement point that asks about strangers is always answered. Strangers beyond the limit in its minute are counted
like records. Its questions count for no address and no principal.

The throttle counts refusals that the caller caused: not limits, which have their own `Retry-After`, not pending
approvals, and not outages or errors of the sidecar or its upstreams. A minute begins with its first refusal. The tables
are bounded: strangers that do not fit are counted together, principals that do not fit are not counted.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from sidecar.errors import ANSWERS, LimitState, Reason, Refusal
from sidecar.http.server.connection_limits import peer_of
from sidecar.settings.server import RefusalSettings
from sidecar.vocabulary import Caller, Witness

MINUTE_S: Final = 60.0
MAX_NAMES: Final = 10_000  # about 2 MB; far more than occur within one minute in normal operation
MAX_TOLD: Final = 100  # addresses with their own record, each minute; the others share one
OTHERS: Final = "others"
CLOSED: Final = "refusals-closed"  # the name of the control records
COUNTED: Final = "refusals-counted"
LABEL: Final = "refusals_per_minute"  # the name of the limit


class MinuteCounts:
    def __init__(self, clock_mono: Callable[[], float], max_names: int) -> None:
        self._clock_mono = clock_mono
        self._max_names = max_names
        self.minutes: dict[str, tuple[float, int]] = {}  # begin and count; the oldest first

    def count(self, name: str) -> int | None:
        """Counts one occurrence; returns the new count. Returns None if there is no room for another name."""
        now_s = self._clock_mono()
        self._forget(now_s)
        known = self.minutes.get(name)
        if known is None and len(self.minutes) >= self._max_names:
            return None
        began_s, count = known or (now_s, 0)
        self.minutes[name] = began_s, count + 1
        return count + 1

    def standing(self, name: str) -> tuple[int, float]:
        """Returns the count, and the rest of the minute in seconds; zeros if no minute runs."""
        began_s, count = self.minutes.get(name, (0.0, 0))
        left_s = began_s + MINUTE_S - self._clock_mono()
        return (count, left_s) if count and left_s > 0 else (0, 0.0)

    def _forget(self, now_s: float) -> None:
        """Drops ended minutes. All are equally long, so the first to begin is the first to end."""
        while self.minutes:
            name, (began_s, _) = next(iter(self.minutes.items()))
            if now_s - began_s < MINUTE_S:
                return
            del self.minutes[name]


Name = tuple[tuple[str, object], ...]
"""The facts of a counted event, for a control record."""


@dataclass(slots=True)
class Tally:
    """Events to be recorded together, in a control record named `what`; `many` is its member for their number."""

    what: str
    many: str
    max_names: int
    counts: Counter[Name] = field(default_factory=Counter)

    def add(self, name: Name, others: Name) -> None:
        """Counts one event under `name`, or under `others` if there is no room for another name."""
        self.counts[name if name in self.counts or len(self.counts) < self.max_names else others] += 1

    async def tell(self, witness: Witness) -> None:
        """Records the counts. Errors of the witness are raised, and nothing is dropped then."""
        told = self.counts.most_common(MAX_TOLD)
        rest = self.counts - Counter(dict(told))
        for name, count in told:
            await witness(self.what, "sidecar", **dict(name), count=count)
            self.counts[name] -= count
        if rest:
            await witness(self.what, "sidecar", **{self.many: len(rest)}, count=rest.total())
            self.counts -= rest
        self.counts = +self.counts


class RefusalThrottle:
    """Counts refusals, and decides which are answered and recorded. `unanswered` is called for each closed request.
    `refused` is empty unless a principal was refused recently."""

    def __init__(
        self,
        settings: Callable[[], RefusalSettings],
        unanswered: Callable[[], None],
        clock_mono: Callable[[], float],
        max_names: int = MAX_NAMES,
    ) -> None:
        self.settings, self.unanswered = settings, unanswered
        self._strangers, self._others = MinuteCounts(clock_mono, max_names), MinuteCounts(clock_mono, 1)
        self._principals, self._recorded = MinuteCounts(clock_mono, max_names), MinuteCounts(clock_mono, max_names)
        self.refused = self._principals.minutes
        self._closed, self._counted = Tally(CLOSED, "peers", max_names), Tally(COUNTED, "chains", max_names)

    def closes(self, caller: Caller | None, peer: str, refusal: Refusal) -> bool:
        """Counts a refusal; returns whether it is a stranger's, is beyond the limit, and must not be answered."""
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
        """Reports whether this refusal is beyond the number of recorded ones of its chain or, for an anonymous caller,
        its address. Refusals that the caller caused are always recorded: they are bounded by
        `per_principal_per_minute`."""
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

    def only_counts_asked(self, enforcement_point: str, refusal: Refusal) -> bool:
        """Reports whether this refusal of an unidentified caller, about whom an enforcement point asked, is beyond the
        number of recorded ones. They are bounded for each enforcement point."""
        count = self._recorded.count(f"at {enforcement_point}")
        if count is not None and count <= self.settings().per_peer_per_minute:
            return False
        reason: Name = (("reason", refusal.reason.value),)
        whose, others = ((("enforcement_point", one), *reason) for one in (enforcement_point, OTHERS))
        self._counted.add(whose, others)
        return True

    def turned_away(self, peer: str) -> None:
        """Counts a connection that was closed for lack of room."""
        self._close(_name_of(peer))

    def _close(self, name: str) -> None:
        self._closed.add((("peer", name),), (("peer", OTHERS),))
        self.unanswered()

    def check(self, caller: Caller | None) -> None:
        """Raises Refusal(TOO_MANY_REFUSALS) for a chain that was refused too often in its minute."""
        if not self.refused or caller is None or caller.is_anonymous:
            return
        most = self.settings().per_principal_per_minute
        count, left_s = self._principals.standing(caller.binding)
        if count >= most:
            state = LimitState(LABEL, most, 0, MINUTE_S)
            raise Refusal(Reason.TOO_MANY_REFUSALS, limit=state, retry_after_s=left_s)

    async def tell(self, witness: Witness) -> None:
        """Records the closed and counted events since the last time. If the witness raises, nothing is dropped."""
        await self._closed.tell(witness)
        await self._counted.tell(witness)

    async def run(self, witness: Witness, every_s: float = MINUTE_S) -> None:
        """Records the counts once a minute. Runs as long as the process."""
        while True:
            await asyncio.sleep(every_s)
            try:
                await self.tell(witness)
            except Refusal:
                continue  # the audit log is unavailable; the next minute records both


def _is_own_doing(refusal: Refusal) -> bool:
    answer = ANSWERS[refusal.reason]
    waits = refusal.reason is Reason.APPROVAL_PENDING
    return answer.http < 500 and answer.status != "rate_limited" and not waits


def _name_of(peer: str) -> str:
    try:
        return peer_of(peer)
    except ValueError:
        return OTHERS
