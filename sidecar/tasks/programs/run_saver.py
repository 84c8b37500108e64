"""Saves a run's record in order and detects writes by others.

Each change of its state at once, what it says at most once a second; one write is under way at a time, always of the
newest. A store that is out is told as soon as it answers again. Two others may write into a run that is ours: whoever
wants it given up sets `cancel_requested`; and who took it for left behind, because we were not heard for too long, has
ended it: then it is theirs. A store that came back empty is told of it anew, unless somebody may have ended it before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from sidecar.storage import AddedRecord, RecordStore, RecordStoreOut
from sidecar.tasks.programs.run_record import Execution

SPOKEN_EVERY_S: Final = 1.0
AGAIN_S: Final = 1.0

log = logging.getLogger("sidecar.tasks.programs")


class RunSaver:
    """The writes of one run. `newest` gives it as it is now, `anew` keeps it where there is nothing of it any more, if
    it may; `asked` is called once somebody wants it given up, `lost` with what is there in its place, None for nothing.
    While it is `doubted`, others may have taken it for left behind."""

    def __init__(
        self,
        store: RecordStore[Execution],
        newest: Callable[[], Execution],
        anew: Callable[[Execution], Awaitable[AddedRecord | None]],
        asked: Callable[[], None],
        lost: Callable[[Execution | None], None],
    ) -> None:
        self.revision = newest().revision
        self.is_lost = self.doubted = False
        self._store, self._newest, self._anew, self._asked, self._lost = store, newest, anew, asked, lost
        self._changed, self._at_once = asyncio.Event(), asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()

    def spoke(self) -> None:
        """There is more of it, which may wait."""
        if not self.is_lost:
            self._settled.clear()
            self._changed.set()

    def moved(self) -> None:
        """It is in another state."""
        self.spoke()
        self._at_once.set()

    async def settle(self) -> None:
        """Until all of it is there, or it is somebody else's."""
        await self._settled.wait()

    async def run(self) -> None:
        """Write, as long as it lasts."""
        is_out = False
        while not self.is_lost:
            await self._changed.wait()
            self._changed.clear()
            self._at_once.clear()
            try:
                await self._write()
            except Exception as error:  # also a bug of ours: what is not kept may be tomorrow
                bug = None if isinstance(error, RecordStoreOut) else error
                if not is_out:  # each second would say so, of every run
                    about = {"run": self._newest().id, "error": str(error)}
                    log.warning("a run cannot be kept right now", extra=about, exc_info=bug)
                is_out = True
                self._changed.set()
                await asyncio.sleep(AGAIN_S)
                continue
            if is_out:
                log.info("a run is kept again", extra={"run": self._newest().id})
            is_out = False
            if not self._changed.is_set():
                self._settled.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(SPOKEN_EVERY_S):
                    await self._at_once.wait()
        self._settled.set()

    def leave(self) -> None:
        """Write nothing more: it is as the store has it, for another process that takes it up."""
        self.is_lost = True
        self._settled.set()

    def look(self, theirs: Execution) -> None:
        """What somebody saw in the store."""
        if theirs.revision > self.revision and not self._takes(theirs):
            self._changed.set()
            self._at_once.set()  # and the next write finds it out

    async def _write(self) -> None:
        """Raises StoreOut."""
        may_be_anew = True
        while not self.is_lost:
            record = self._newest()._replace(revision=self.revision + 1)
            if await self._store.replace(record):
                self.revision, self.doubted = record.revision, False
                return
            theirs = await self._store.get(record.id)
            if theirs is None and may_be_anew and not self.doubted:
                may_be_anew = False
                if (added := await self._anew(record)) is AddedRecord.KEPT:
                    log.warning("a run that the store forgot is kept anew", extra={"run": record.id})
                    self.revision = record.revision
                    return
                if added is AddedRecord.KNOWN:  # a reply got lost: the next look sees it
                    continue
            if theirs is None or not self._takes(theirs):
                self.is_lost = True
                self._lost(theirs)

    def _takes(self, theirs: Execution) -> bool:
        """Whether what is there is ours: an earlier one, where a reply got lost, or one that we are asked to give
        up."""
        if theirs.transitions[-1] not in self._newest().transitions:
            return False
        self.revision = theirs.revision
        if theirs.cancel_requested:
            self._asked()
        return True
