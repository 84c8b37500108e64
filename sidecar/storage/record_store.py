"""The interface of a record store.

Each verb is one atomic step: fit for a dictionary, a file, or a server that several replicas share. Whoever has a
record on their hands (`holder`) has it until a time that they set further and further; one that nobody holds any more
is another's to take up.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum
from typing import Final, NamedTuple, Protocol, TypeVar

FORGOTTEN_AT_ONCE: Final = 100  # of a target with too many that are done; the next one that is added forgets the rest


class RecordStoreOut(Exception):
    """The store did not answer, or not in time."""


class UnreadableRecord(RecordStoreOut):
    """The store answered, and what it has of a record says nothing to us. Its text may be shown."""


class StoredRecord(Protocol):
    """What a store knows of a record; all else is between whoever writes it and whoever reads it.

    `standing` is the one word by which it is counted and found. `is_done` says that nothing of it is left to do: who
    takes up what is left behind does not want it, and it may be forgotten from `expires_at` on. `revision` grows by one
    with each change. Times are seconds since the epoch.
    """

    @property
    def id(self) -> str: ...
    @property
    def owner(self) -> str: ...
    @property
    def target(self) -> str: ...
    @property
    def standing(self) -> str: ...
    @property
    def is_done(self) -> bool: ...
    @property
    def created_at(self) -> float: ...
    @property
    def expires_at(self) -> float: ...
    @property
    def revision(self) -> int: ...


R = TypeVar("R", bound=StoredRecord)


class AddedRecord(Enum):
    """What became of a new record."""

    KEPT = "kept"
    KNOWN = "known"  # there is one of this id, which stays as it is; where a reply got lost it may be one's own
    FULL = "full"  # there is no room


class RecordBounds(NamedTuple):
    """How many records there may be: of one owner, whose oldest that is done gives way, and in all. Beyond that, and
    beyond `done_per_target` of a target that are done, whoever has most that are done loses their oldest."""

    per_owner: int = 1_000
    total: int = 100_000
    done_per_target: int | None = None


class RecordShare(NamedTuple):
    """How many records are seen to at once: in all, and of one owner, so that whose never end keep nobody else's
    waiting."""

    total: int = 1_000
    per_owner: int = 250


class RecordPage(NamedTuple):
    """Which records are wanted, newest first."""

    targets: Collection[str]
    standing: str | None = None
    limit: int = 20
    offset: int = 0


NOTHING: Final[Mapping[str, int]] = {}


class RecordStore(Protocol[R]):
    """Where records live. Everything raises StoreOut. `up` says whether it answered last, `is_durable` whether what it
    keeps outlives this process."""

    @property
    def up(self) -> bool: ...
    @property
    def is_durable(self) -> bool: ...

    async def add(self, record: R, holder: str, until_s: float, bounds: RecordBounds) -> AddedRecord:
        """Keep a new record, held. An id is taken once, as long as its record is kept. When this returns KEPT, no crash
        loses it."""

    async def get(self, record_id: str) -> R | None:
        """The record of this id, whoever owns it."""

    async def page(self, owner: str | None, page: RecordPage) -> tuple[list[R], int]:
        """Some records of an owner (None: of everybody, which is for operators), and how many there are in all. One
        that cannot be read is missing from its page, and all others keep their places."""

    async def replace(self, record: R) -> bool:
        """Keep this in place of the revision before. False where that is not what is there, or where it is done and
        this is not: who goes on with it says so with `reopen`."""

    async def reopen(self, record: R, holder: str, until_s: float) -> bool:
        """Keep this in place of the revision before, which is done: it goes on, and is held. False where that is not
        what is there."""

    async def take(
        self, holder: str, now_s: float, until_s: float, share: RecordShare, known: Mapping[str, int] = NOTHING
    ) -> list[R]:
        """What is not done and is this holder's, or nobody's any more, as much as they have room for: it is theirs
        until then. What is theirs already comes first, then the oldest, or in Redis what was free for longest. Nobody
        holds anything for twice as long as they want it: who seems to had a clock that was ahead. What is in the
        revision that is `known` by its id is held and not told: whoever looks every second need not hear all of it each
        time."""

    async def let_go(self, holder: str) -> None:
        """Nothing is this holder's any more."""

    async def counts(self) -> Mapping[str, int]:
        """How many there are of each standing that there is one of."""

    async def sweep(self, now_s: float) -> int:
        """Forget what is done and was kept long enough; how many that were."""

    async def close(self) -> None:
        """Let go of the store. Twice is no fault."""
