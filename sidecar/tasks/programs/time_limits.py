"""Ends programs by the clock of their lease when it is not renewed.

The holder of a run's lease keeps renewing it (`write_leases.py`) and passes the new limit to the program's warden,
which ends the program in time, even if this process is stopped and can send nothing (`upstreams/processes/warden.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sidecar.upstreams.processes import WaitLimit

Hear = Callable[[WaitLimit | None], None]


@dataclass(slots=True, eq=False)
class TimeLimit:
    """The time limit of one run. Without `until` there is none."""

    until: WaitLimit | None = None
    _hearers: set[Hear] = field(default_factory=set)

    def renew(self, until: WaitLimit) -> None:
        """Moves the limit."""
        self.until = until
        for hear in self._hearers:
            hear(until)

    def bind(self, hear: Hear) -> None:
        """Calls `hear` with the limit, now and whenever it changes."""
        self._hearers.add(hear)
        hear(self.until)

    def release(self, hear: Hear) -> None:
        """Stops calling `hear`."""
        self._hearers.discard(hear)
        hear(None)
