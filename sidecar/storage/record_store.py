"""The interface of a record store.

Each method is one atomic step, which a database or a server shared by replicas can implement. A process that
works on a record holds it (`holder`) until a time that it keeps extending; another process may take a record whose
hold has lapsed.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple, Protocol, TypeVar

from sidecar.errors import Reason, Refusal

FORGOTTEN_AT_ONCE: Final = 100  # records that one `add` evicts if there are too many; later calls evict the rest


class RecordStoreOut(Refusal):
    """The store did not answer in time. Calls that need the record are refused; otherwise another caller's task could
    be used. `str` describes the event, for operators only."""

    def __init__(self, what_happened: str = "it did not answer") -> None:
        super().__init__(Reason.STORE_UNAVAILABLE)
        self.what_happened = what_happened

    def __str__(self) -> str:
        return self.what_happened


class UnreadableRecord(RecordStoreOut):
    """The store answered, but the record cannot be decoded. The message is shown to the caller."""

    def __init__(self, what_happened: str) -> None:
        super().__init__(what_happened)
        self.detail = what_happened


class StoredRecord(Protocol):
    """The store's data about a record. Times are in seconds since the epoch. Records are counted and filtered by
    `standing`. One that `is_done` is not taken over. A record may be deleted from `expires_at` on, unfinished work only
    once it is done. One whose `target` is "" is not counted, and is in no list of all owners. A change keeps `id`,
    `owner` and `target`; only `reopen` changes `created_at`."""

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


def ends_at(record: StoredRecord, is_work: bool) -> float:
    """Returns when a record may be deleted: infinity for unfinished work."""
    return math.inf if is_work and not record.is_done else record.expires_at


class AddedRecord(Enum):
    KEPT = "kept"
    KNOWN = "known"  # a record with this id exists and is unchanged; it may be the caller's own, if a reply was lost
    FULL = "full"  # there is no room


class RecordBounds(NamedTuple):
    """The maximum number of records, per owner and in total, and of finished ones per target.

    A new record of an owner with `per_owner` records evicts that owner's oldest finished one; with `evicts_open`, if
    none is finished, its oldest one. Beyond `total` or `done_per_target`, the owner with most finished records loses
    its oldest finished one."""

    per_owner: int = 1_000
    total: int = 100_000
    done_per_target: int | None = None
    evicts_open: bool = False


class RecordShare(NamedTuple):
    """The maximum number of records that a holder may have at once: in total, and per owner, so that one owner cannot
    keep others waiting."""

    total: int = 1_000
    per_owner: int = 250


class RecordPage(NamedTuple):
    """Selects a page of records, newest first."""

    targets: Collection[str]
    standing: str | None = None
    limit: int = 20
    offset: int = 0


NOTHING: Final[Mapping[str, int]] = {}


class RecordStore(Protocol[R]):
    """Stores records of one kind. Every method raises RecordStoreOut. `up`: the store answered last time. `is_durable`:
    records survive a restart of this process. An expired record exists until it is swept or its id is added again."""

    @property
    def up(self) -> bool: ...
    @property
    def is_durable(self) -> bool: ...

    async def add(self, record: R, holder: str, until_s: float, bounds: RecordBounds) -> AddedRecord:
        """Stores a new record, held by `holder` until `until_s`, unless an unexpired one has its id. Once a durable
        store returns KEPT, no crash of this process loses the record."""

    async def add_all(self, records: Sequence[R], bounds: RecordBounds) -> list[AddedRecord]:
        """Stores new records that no process holds, like `add`, but all of them in one step if the store supports
        it."""

    async def get(self, record_id: str) -> R | None:
        """Returns the record with this id, of any owner, or None."""

    async def find(self, record_ids: Sequence[str]) -> list[R]:
        """Returns those records of these ids that exist, of any owner. Raises UnreadableRecord, like `get`."""

    async def page(self, owner: str | None, page: RecordPage) -> tuple[list[R], int]:
        """Returns a page of an owner's records (None: of all owners) and the total. Unreadable ones are missing from
        their page."""

    async def replace(self, record: R) -> bool:
        """Replaces the previous revision. Returns False if it is not stored, or if a finished record would become
        unfinished."""

    async def reopen(self, record: R, holder: str, until_s: float) -> bool:
        """Replaces the previous revision, which is done, by an unfinished one that `holder` holds until `until_s`.
        Returns False if that revision is not stored or is not done."""

    async def remove(self, record_ids: Sequence[str]) -> None:
        """Deletes these records, finished or not."""

    async def take(
        self, holder: str, now_s: float, until_s: float, share: RecordShare, known: Mapping[str, int] = NOTHING
    ) -> list[R]:
        """Takes unfinished records that this holder holds or whose hold has lapsed, its own first and within `share`,
        and holds them until `until_s`. A hold that ends more than twice as far ahead was set by a clock that was ahead,
        and is treated as lapsed. A record whose revision `known` has, by id, is held but not returned."""

    async def let_go(self, holder: str) -> None:
        """Releases every record of this holder."""

    async def counts(self) -> Mapping[str, int]:
        """Returns the number of records with a target, by standing; no standing has the number 0."""

    async def has_room(self, bounds: RecordBounds) -> bool:
        """Whether there is room in `bounds.total` for one more record, after an eviction if necessary."""

    async def sweep(self, now_s: float) -> int:
        """Deletes the records that have expired by `now_s`, and returns how many."""
