"""How is it remembered whose a task is?"""

from __future__ import annotations

from typing import Literal

from sidecar.settings.fields import Count, Seconds, Section


class TaskSettings(Section):
    """Who owns which task of MCP and A2A."""

    store: Literal["file", "memory"] = "file"
    """`file` is `tasks.sqlite` in the data folder; what `memory` held, nobody owns after a restart."""
    keep_s: Seconds = 7 * 86_400.0
    """How long an owner is remembered at most; a task that says that it lasts shorter is forgotten with its end."""
    max_per_principal: Count = 1_000
    """Tasks of one chain; the oldest is forgotten, one that ended first."""
    max: Count = 100_000
    """Tasks of all together; beyond, no new one is created."""
