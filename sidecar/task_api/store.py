"""What does a store of tasks do?

Each verb is one atomic step: fit for a dictionary, a file, or a server that several replicas share. Whoever has a task
on their hands (`holder`) has it until a time that they set further and further; one that nobody holds any more is
another's to take up.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol

from sidecar.task_api.records import Record, State


class StoreOut(Exception):
    """The store did not answer, or not in time."""


class Bounds(NamedTuple):
    """How many tasks there may be: of one owner, whose oldest that is over gives way, and in all."""

    per_owner: int = 1_000
    total: int = 100_000


class Share(NamedTuple):
    """How many tasks are seen to at once: in all, and of one owner, so that whose never end keep nobody else's
    waiting."""

    total: int = 1_000
    per_owner: int = 250


class Page(NamedTuple):
    """Which tasks of an owner are wanted, newest first."""

    targets: Collection[str]
    state: State | None = None
    limit: int = 20
    offset: int = 0


class Store(Protocol):
    """Where tasks live. Everything raises StoreOut. `up` says whether it answered last."""

    @property
    def up(self) -> bool: ...

    async def add(self, record: Record, holder: str, until_s: float, bounds: Bounds) -> bool:
        """Keep a new task, held. False where there is no room. When this returns, no crash loses it."""

    async def get(self, task_id: str) -> Record | None:
        """The task of this id, whoever owns it."""

    async def page(self, owner: str, page: Page) -> tuple[list[Record], int]:
        """Some tasks of an owner, and how many there are in all."""

    async def replace(self, record: Record) -> bool:
        """Keep this in place of the revision before. False where that is not what is there."""

    async def take(self, holder: str, now_s: float, until_s: float, share: Share) -> list[Record]:
        """What is not over and is this holder's, or nobody's any more, as much as they have room for: it is theirs
        until then. What is theirs already comes first, then the oldest. Nobody holds anything for twice as long as
        they want it: who seems to had a clock that was ahead."""

    async def let_go(self, holder: str) -> None:
        """Nothing is this holder's any more."""

    async def counts(self) -> Mapping[str, int]:
        """How many there are in each state that there is one in."""

    async def sweep(self, now_s: float) -> int:
        """Forget what is over and was kept long enough; how many that were."""

    async def close(self) -> None:
        """Let go of the store. Twice is no fault."""
