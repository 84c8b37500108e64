"""Ends programs by the clock of their lease when it is not renewed.

Whoever keeps a lease for a run says so again and again (`write_leases.py`), and whatever runs for it is told: the
program's keeper ends it in time, also where this process stands still and can say nothing to anybody
(`upstreams/processes/warden.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sidecar.upstreams.processes import WaitLimit

Hear = Callable[[WaitLimit | None], None]


@dataclass(slots=True, eq=False)
class TimeLimit:
    """Of one run. Without `until` nothing bounds it."""

    until: WaitLimit | None = None
    _hearers: set[Hear] = field(default_factory=set)

    def renew(self, until: WaitLimit) -> None:
        """So long from now on."""
        self.until = until
        for hear in self._hearers:
            hear(until)

    def bind(self, hear: Hear) -> None:
        """Have this told until when, now and whenever that changes."""
        self._hearers.add(hear)
        hear(self.until)

    def release(self, hear: Hear) -> None:
        """What it was told does not bind it any more."""
        self._hearers.discard(hear)
        hear(None)
