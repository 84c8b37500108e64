"""Disables and enables principals at every replica.

Disabling takes effect first, and is then written to the disk, the audit log and the store: if one of them fails, the
principal stays disabled and the operator gets the error. Enabling is recorded and written to the disk first: if one of
them fails, the principal stays disabled. Then it takes effect and is sent to the store. Once a second, the changes of
other replicas are read from the store, and changes that the store lacks are written to it. A disk that hangs does not
stop this exchange.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from sidecar.errors import Refusal
from sidecar.gateway.kill_switch.entries import MAX_REASON_CHARS, SwitchEntry, is_object, is_reason
from sidecar.gateway.kill_switch.ledger import MAX_FLIPS, SwitchLedger
from sidecar.gateway.kill_switch.switch_versions import SwitchVersion, decode, encode
from sidecar.settings.field_types import is_caller
from sidecar.storage.redis_script import Run, script_text
from sidecar.vocabulary import Witness

EVERY_S = 1.0
KEY = "disabled"
ROUNDS = 2  # read, then write the changes that the answer lacks
MERGE: Final = script_text("kill_switch")

log = logging.getLogger("sidecar.gateway.kill_switch")


class SwitchError(Exception):
    """An operator's change failed, wholly or in part. `status` is the HTTP status: 400 for an invalid change, 503 for
    one that is in force here but not yet sent to the other replicas, 500 for any other failure."""

    def __init__(self, message: str, status: int = 500) -> None:
        super().__init__(message)
        self.status = status


NO_PRINCIPAL = "names no principal: write user:<id> or nhi:<id>"
NO_OBJECT = "names no server, or no tool of one"
_UNTOLD = "other replicas do not know of it yet: the store does not answer. They learn of it when it does"
_FORGED = (
    "a writer that is not a sidecar put it into the store; stop all replicas, then remove it there and in disabled.json"
)


class KillSwitch:
    """The kill switch of one replica. `ledger` holds the changes that it knows. `clock` returns seconds since the
    epoch."""

    def __init__(self, ledger: SwitchLedger, *, share: Run, witness: Witness, clock: Callable[[], float]) -> None:
        self.ledger = ledger
        self._share = share
        self._witness = witness
        self._clock = clock
        self._token = ""
        self._untold = dict(ledger.flips)
        self._stale: list[str] = []
        self._listing: Mapping[str, tuple[SwitchVersion, str]] = {}  # changes in the store, and their text there
        self._unsaved = False
        self._unheard = False
        self._turning = asyncio.Lock()  # for the changes of operators
        self._exchanging = asyncio.Lock()
        self._saving = asyncio.Lock()
        self._owed = asyncio.Event()  # a save that no operator waits for

    @property
    def saved(self) -> bool:
        """Whether the last save succeeded, so that the current state survives a restart."""
        return not self._unsaved

    async def disable(
        self, principal: str, *, reason: str, until: float | None, by: str, is_object: bool = False
    ) -> SwitchEntry:
        """Disables a principal, so that every call that touches it is refused; or a tool or a whole server, so that it
        is neither listed nor called (`is_object`). Raises SwitchError."""
        _check_name(principal, is_object)
        if not is_reason(reason):
            raise SwitchError(f"a reason is one line of {MAX_REASON_CHARS} characters at most", 400)
        now_s = self._clock()
        if until is not None and until <= now_s:
            raise SwitchError("this time is over already", 400)
        if principal not in self.ledger.flips and len(self.ledger.flips) >= MAX_FLIPS:
            raise SwitchError(f"more than {MAX_FLIPS} principals: use a pattern in policies/disabled.yaml")
        flip = SwitchVersion(principal, True, self.ledger.next_number(), reason, until, by, now_s)
        self._take(flip)  # first, so that a hanging disk or store does not delay it
        async with self._turning:
            failed = [*await self._saved(), *await self._recorded(flip)]
        await self.sync()
        if failed:
            raise SwitchError(f"{principal} is disabled here, but {' and '.join(failed)}")
        self._check_told(flip, f"{principal} is disabled here")
        return flip.entry

    async def enable(self, principal: str, *, by: str, is_object: bool = False) -> bool:
        """Undoes `disable`; returns False if it was not disabled manually. Raises SwitchError."""
        _check_name(principal, is_object)
        async with self._turning:
            known = self.ledger.flips.get(principal)
            if known is None or not known.disabled:
                return False
            flip = SwitchVersion(principal, False, self.ledger.next_number(), "", None, by, self._clock())
            if not flip.newer_than(known):
                raise SwitchError(f"nothing can be newer than the entry that disables {principal}: {_FORGED}")
            failed = await self._recorded(flip)
            if not failed and (failed := await self._saved(flip)):
                await self._recorded(flip, failed=True)
            if not failed and not self._take(flip):
                await self._recorded(flip, failed=True)
                failed = ["it was disabled again in the meantime"]
            if failed:
                raise SwitchError(f"{principal} stays disabled: {failed[0]}")
        await self.sync()
        self._check_told(flip, f"{principal} is enabled here")
        return True

    def _check_told(self, flip: SwitchVersion, done: str) -> None:
        """Raises SwitchError for a change that the store did not accept."""
        if self._unheard and self._untold.get(flip.principal) is flip:
            raise SwitchError(f"{done}, but {_UNTOLD}", 503)

    async def run(self) -> None:
        """Synchronizes with the other replicas, saves their changes, and retries failed saves. Runs as long as the
        process."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._run_exchange())
            group.create_task(self._run_saves())

    async def _run_exchange(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            await self.sync()

    async def _run_saves(self) -> None:
        while True:
            await self._owed.wait()
            if await self._saved():
                await asyncio.sleep(EVERY_S)

    async def sync(self) -> None:
        """Exchanges changes with the other replicas. Does nothing while the store does not answer."""
        async with self._exchanging:
            for _ in range(ROUNDS):
                sent = dict(self._untold)
                try:
                    told = await self._share(MERGE, KEY, self._arguments())
                except ConnectionError:
                    self._unheard = True
                    return
                self._unheard = False
                is_told = isinstance(told, list) and told and all(isinstance(word, bytes) for word in told)
                if not is_told or not await self._heard(told, sent):  # a different format must not stop the exchange
                    return

    def _arguments(self) -> list[str]:
        told = [word for flip in self._untold.values() for word in (flip.principal, encode(flip))]
        return [self._token, secrets.token_hex(8), str(len(self._untold)), *told, *self._stale]

    async def _heard(self, told: list[bytes], sent: Mapping[str, SwitchVersion]) -> bool:
        """Adds the store's new changes. Returns True if another exchange is due: the store lacks changes of this
        replica, or has some to forget."""
        token = told[0].decode("ascii", "replace")
        if token == self._token and len(told) == 1:
            self._untold = {name: flip for name, flip in self._untold.items() if sent.get(name) is not flip}
            self._stale = []
            return bool(self._untold)
        listed, now_s = _listed(told[1:], self._listing), self._clock()
        self._listing = listed
        theirs = {name: flip for name, (flip, _) in listed.items() if not flip.forgotten(now_s)}
        self._stale = [word for name, (_, raw) in listed.items() if name not in theirs for word in (name, raw)]
        newer = self.ledger.take(theirs.values())
        self._token = token
        self._untold = {
            name: flip
            for name, flip in self.ledger.flips.items()
            if name not in theirs or flip.newer_than(theirs[name])
        }
        if newer:
            self._owed.set()
        for flip in newer:
            await self._recorded(flip, via="store")
        return bool(self._untold or self._stale)

    def _take(self, flip: SwitchVersion) -> bool:
        """Adds a change. Returns False if a newer one is known."""
        if not self.ledger.take([flip]):
            return False
        self._untold[flip.principal] = flip
        return True

    async def _saved(self, *more: SwitchVersion) -> list[str]:
        """Saves the changes. Returns the errors, if any."""
        async with self._saving:
            self._owed.clear()
            self.ledger.forget(self._clock())
            try:
                await asyncio.to_thread(self.ledger.save, *more)
            except OSError as error:
                if not self._unsaved:
                    about = {"path": self.ledger.path, "error": str(error)}
                    log.error("disabled principals cannot be saved", extra=about)
                self._unsaved = True
                self._owed.set()
                return [f"{self.ledger.path} cannot be written ({error.strerror})"]
            self._unsaved = False
            return []

    async def _recorded(self, flip: SwitchVersion, *, failed: bool = False, **facts: object) -> list[str]:
        kind, member = ("tool", "object") if is_object(flip.principal) else ("principal", "principal")
        what = f"{kind}-enable-failed" if failed else f"{kind}-disabled" if flip.disabled else f"{kind}-enabled"
        facts = {member: flip.principal, "reason": flip.reason or None, "until": flip.until, **facts}
        log.warning(what, extra={"by": flip.by, **facts})
        try:
            await self._witness(what, flip.by, **facts)
        except Refusal as refusal:
            log.error("a turn of the kill switch is not on record", extra={"reason": refusal.reason})
            return ["it cannot be recorded"]
        return []


def _check_name(name: str, names_object: bool) -> None:
    if not (is_object if names_object else is_caller)(name):
        raise SwitchError(f"{name[:300]!r} {NO_OBJECT if names_object else NO_PRINCIPAL}", 400)


def _listed(told: list[bytes], before: Mapping[str, tuple[SwitchVersion, str]]) -> dict[str, tuple[SwitchVersion, str]]:
    """Returns the readable entries of the hash, from fields and values; those in `before` are not parsed again."""
    found = {}
    words = [word.decode("utf-8", "replace") for word in told]
    for name, raw in zip(words[::2], words[1::2], strict=False):
        flip, known = before.get(name, (None, ""))
        if known != raw:
            with suppress(ValueError):
                flip = None
                flip = decode(raw)
        if flip is not None and flip.principal == name:
            found[name] = flip, raw
        elif name:
            log.warning("an entry of the store cannot be read", extra={"entry": name})
    return found
