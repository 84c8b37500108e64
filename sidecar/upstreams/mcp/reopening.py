"""How long to wait before a stream that ended is opened again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ReopenPauses:
    """The pauses between the openings of one stream, in seconds: `first_s`, then twice the last one, at most
    `longest_s`. After a stream that lasted longer than `longest_s`, they begin again."""

    first_s: float
    longest_s: float
    _next_s: float = 0.0

    def after(self, lasted_s: float) -> float:
        """The pause after a stream that lasted so long."""
        pause_s = self.first_s if lasted_s > self.longest_s else max(self.first_s, self._next_s)
        self._next_s = min(2 * pause_s, self.longest_s)
        return pause_s
