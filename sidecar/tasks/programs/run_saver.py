"""Saves a run's record in order and detects writes by others.

Changes of state are written at once, output at most once a second, one write at a time, repeated while the store is
unavailable. Another process may set `cancel_requested`, or end a run that it considers orphaned, and then owns it. A
store that lost its data gets the run again, unless another process may have ended it.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from sidecar.storage import AddedRecord, RecordBounds, RecordStoreOut
from sidecar.tasks.programs.run_record import Execution
from sidecar.tasks.worker import HeldRecords

SPOKEN_EVERY_S: Final = 1.0
AGAIN_S: Final = 1.0

log = logging.getLogger("sidecar.tasks.programs")


class RunSaver:
    """The writes of one run. `asked` cancels it; `lost` receives the record that replaced it, or None if there is none.
    If `doubted`, another process may have taken it."""

    def __init__(
        self,
        held: HeldRecords[Execution],
        bounds: Callable[[], RecordBounds],
        newest: Callable[[], Execution],
        asked: Callable[[], None],
        lost: Callable[[Execution | None], None],
    ) -> None:
        self.revision = newest().revision
        self.is_lost = self.doubted = False
        self._held, self._bounds, self._newest, self._asked, self._lost = held, bounds, newest, asked, lost
        self._changed, self._at_once = asyncio.Event(), asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()

    def spoke(self) -> None:
        if not self.is_lost:
            self._settled.clear()
            self._changed.set()

    def moved(self) -> None:
        self.spoke()
        self._at_once.set()

    async def settle(self) -> None:
        """Waits until everything is stored, or another process owns the run."""
        await self._settled.wait()

    async def run(self) -> None:
        is_out = False
        while not self.is_lost:
            await self._changed.wait()
            self._changed.clear()
            self._at_once.clear()
            try:
                await self._write()
            except Exception as error:  # a bug too: the next write may succeed
                bug = None if isinstance(error, RecordStoreOut) else error
                if not is_out:  # log once, not every second for each run
                    about = {"run": self._newest().id, "error": str(error)}
                    log.warning("a run cannot be stored; it is retried", extra=about, exc_info=bug)
                is_out = True
                self._changed.set()
                await asyncio.sleep(AGAIN_S)
                continue
            if is_out:
                log.info("a run is stored again", extra={"run": self._newest().id})
            is_out = False
            if not self._changed.is_set():
                self._settled.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(SPOKEN_EVERY_S):
                    await self._at_once.wait()
        self._settled.set()

    def leave(self) -> None:
        self.is_lost = True
        self._settled.set()

    def look(self, theirs: Execution) -> None:
        if theirs.revision > self.revision and not self._takes(theirs):
            self._changed.set()
            self._at_once.set()  # the next write determines it

    async def _write(self) -> None:
        may_be_anew = True
        while not self.is_lost:
            record = self._newest()._replace(revision=self.revision + 1)
            if await self._held.store.replace(record):
                self.revision, self.doubted = record.revision, False
                return
            theirs = await self._held.store.get(record.id)
            if theirs is None and may_be_anew and not self.doubted and self._held.is_sure:
                may_be_anew = False
                if (added := await self._held.add(record, self._bounds())) is AddedRecord.KEPT:
                    log.warning("a run that the store lost is stored again", extra={"run": record.id})
                    self.revision = record.revision
                    return
                if added is AddedRecord.KNOWN:  # a reply was lost: the next look detects it
                    continue
            if theirs is None or not self._takes(theirs):
                self.is_lost = True
                self._lost(theirs)

    def _takes(self, theirs: Execution) -> bool:
        """Whether the stored record is this run's, that is, an earlier write whose reply was lost, or a request to
        cancel."""
        if theirs.transitions[-1] not in self._newest().transitions:
            return False
        self.revision = theirs.revision
        if theirs.cancel_requested:
            self._asked()
        return True
