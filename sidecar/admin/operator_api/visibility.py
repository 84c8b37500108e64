"""Hides from operators what only the owner of a run may see.

Applies to stored and to streamed texts, which are shown without what looks like a secret
(`tasks/programs/stored_text.py`). Texts of runs that operators ordered themselves are unchanged: a pipe behind `sidecar
agent run` gets what the program wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sidecar.admin.operator_api.run_stream import ARTIFACT, OUTPUT, STATUS, RunNews
from sidecar.tasks.programs.stored_text import SanitizedLines, all_sanitized


@dataclass(slots=True)
class RunVisibility:
    """The view of one listener. `is_theirs`: whether operators ordered the run."""

    is_theirs: bool
    _lines: dict[str, SanitizedLines] = field(default_factory=dict)

    async def of(self, heard: RunNews) -> list[RunNews]:
        """The part of an event that may be sent now."""
        if self.is_theirs:
            return [heard]
        data = heard.data
        if heard.event == OUTPUT:
            if data.get("anew"):
                self._lines.pop(data["artifact"], None)
            text = await self._lines.setdefault(data["artifact"], SanitizedLines()).feed(data["text"])
            return [RunNews(OUTPUT, {**data, "text": text})] if text or data.get("anew") else []
        if heard.event == ARTIFACT:
            return [RunNews(ARTIFACT, {**data, "parts": await _value(data["parts"])})]
        if heard.event == STATUS:
            return [RunNews(STATUS, {**data, "message": await _value(data["message"])})]
        return [heard]

    async def rest(self) -> list[RunNews]:
        """The incomplete last lines."""
        found = [(artifact, await lines.rest()) for artifact, lines in self._lines.items()]
        return [RunNews(OUTPUT, {"artifact": artifact, "text": text}) for artifact, text in found if text]


async def _value(said: Any) -> Any:
    """A JSON value with secrets removed from all texts."""
    if isinstance(said, str):
        return await all_sanitized(said)
    if isinstance(said, Mapping):
        return {name: await _value(value) for name, value in said.items()}
    return [await _value(value) for value in said] if isinstance(said, list) else said
