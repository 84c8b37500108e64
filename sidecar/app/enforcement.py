"""Watches the enforcement mode and the end of shadow mode."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from sidecar.app.control_records import ControlRecords
from sidecar.errors import SettingsError
from sidecar.gateway.pipeline import Pipeline
from sidecar.settings.timestamps import rfc3339

SHADOW: Final = "shadow"
ENFORCE: Final = "enforce"

log = logging.getLogger("sidecar.app.enforcement")


@dataclass(slots=True)
class EnforcementMode:
    """Tracks the mode in force and records each change of it. Shadow mode ends by the clock."""

    pipeline: Pipeline
    evidence: ControlRecords
    _told: str = ENFORCE

    @property
    def mode(self) -> str:
        return SHADOW if self.pipeline.live.current.shadows(self.pipeline.clock()) else ENFORCE

    async def look(self) -> None:
        """Update the metric, and record and log a change of mode."""
        mode, until = self.mode, self.pipeline.live.current.shadow_until
        self.pipeline.metrics.enforcement(mode)
        if mode == self._told:
            return
        self._told = mode
        log.warning("the enforcement mode changed", extra={"mode": mode, "shadow_until": until and rfc3339(until)})
        with suppress(SettingsError):  # logged
            await self.evidence.witness("mode", "sidecar", mode=mode, shadow_until=until and rfc3339(until))
