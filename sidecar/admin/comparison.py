"""Finds the other policies that the serving one can be compared with, and compares them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from sidecar.errors import PolicyError, fault_in
from sidecar.gateway.snapshot import Live
from sidecar.limits import Budgets
from sidecar.policy import PolicySource
from sidecar.policy_tools.comparison import MAX_ROWS, ComparisonFailed, ComparisonOrder, ReplacedFile, compare_aside
from sidecar.policy_tools.policy_location import MODELS, POLICIES, PolicyLocation, location_of
from sidecar.settings.shipped_files import shipped
from sidecar.settings.stored_policy import shelf_of, stored_name
from sidecar.settings.timestamps import rfc3339
from sidecar.vocabulary import Chain, Question

FILES: Final = "files"
FILE: Final = "file"
PAST, STORED = "past:", "stored:"
SHORT: Final = 16
_one_at_a_time: Final = threading.BoundedSemaphore(1)
"""Held during a comparison, which takes seconds of one core."""


class OtherPolicy(NamedTuple):
    """A policy to compare with: its files at `place`, or its `source` with its `budgets`. `key` identifies it in forms,
    and `label` describes it."""

    key: str
    label: str
    place: PolicyLocation | None = None
    source: PolicySource | None = None
    budgets: Budgets | None = None


@dataclass(frozen=True, slots=True)
class PolicyComparison:
    """Compares the serving policy with others."""

    live: Live

    def others(self) -> Iterator[OtherPolicy]:
        """Yields the policies that exist. Blocks, because it reads a folder."""
        settings = self.live.current.settings
        place = location_of(settings)
        if settings.policy.source is None:
            yield OtherPolicy(FILES, "the files as they are now", place)
        for past in self.live.past:
            source = past.engine.source
            label = f"what served until {rfc3339(past.until_s)}, revision {source.revision[:SHORT]}"
            yield OtherPolicy(f"{PAST}{source.revision[:SHORT]}", label, source=source, budgets=past.budgets)
        if settings.policy.source is not None and settings.policy.is_fetched:
            for folder in _stored(shelf_of(settings), stored_name(settings)):
                models = folder / MODELS
                there = replace(
                    place, policies=folder / POLICIES, models=models if models.is_dir() else shipped(MODELS)
                )
                yield OtherPolicy(f"{STORED}{folder.name}", f"what was fetched as {folder.name[:SHORT]}", there)
        yield OtherPolicy(FILE, "this policy with one file replaced", place)

    async def compare(
        self, key: str, file: ReplacedFile | None, asked: tuple[Chain, Question, float] | None
    ) -> Mapping[str, Any]:
        """Returns the differences to the policy with this key, and the explanation of the question `asked` under it.
        `file` is used with the key `FILE`. Raises PolicyError if the other policy is invalid or this one too large,
        ComparisonFailed if there is no such policy or no comparison is possible now."""
        others = {one.key: one for one in await asyncio.to_thread(lambda: list(self.others()))}
        other = others.get(key)
        if other is None:
            raise ComparisonFailed("this policy is no longer there: choose another one")
        now = self.live.current
        if sum(now.engine.rule_counts.values()) > MAX_ROWS:
            told = f"more than {MAX_ROWS} rows: compare it with sidecar policy diff"
            raise PolicyError([fault_in(now.settings.policy.path, told, code="P008")])
        label = f"policies/{file.name} replaced" if file is not None and key == FILE else other.label
        replaced = file if key == FILE else None
        order = ComparisonOrder(label, other.place, replaced, (now.budgets, other.budgets), asked)
        return await asyncio.to_thread(_alone, order, now.engine.source, other.source)


def _alone(order: ComparisonOrder, serving: PolicySource, other: PolicySource | None) -> Mapping[str, Any]:
    if not _one_at_a_time.acquire(blocking=False):
        raise ComparisonFailed("another comparison is under way: try again in a moment")
    try:
        return compare_aside(order, serving, other)
    finally:
        _one_at_a_time.release()


def _stored(shelf: Path, current: str) -> list[Path]:
    """Returns the folders of fetched policies except the serving one: the previous one, and refused ones."""
    try:
        found = sorted(shelf.iterdir())
    except OSError:
        return []
    return [
        path for path in found if path.name != current and not path.name.startswith(".") and (path / POLICIES).is_dir()
    ]
