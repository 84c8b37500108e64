"""Shares session records between replicas.

A record is stored under a digest of the session's id and sealed with a key derived from that id (32 random bytes that
only its client has). A reader of the store learns neither the sessions nor the ids that would open them at an upstream,
and a writer can end sessions but not forge them. Every request of such a session queries the store, so that a session
ended at one replica has ended at all of them; while the store is unavailable, requests are refused with 503. State that
lives in one process has no record (open streams, programs, HTTP+SSE, emulated sessions).
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import orjson

from sidecar.errors import Reason, Refusal
from sidecar.storage.redis_script import Run, script_text
from sidecar.storage.sealing import AesSeal
from sidecar.upstreams.mcp.background import BackgroundTasks
from sidecar.upstreams.mcp.sessions import Session, Sessions
from sidecar.vocabulary import Caller

SCRIPT: Final = script_text("sessions")
VERSION: Final = 1
LOOK_EVERY_S: Final = 5.0  # how long a stream may outlive its session, if another replica ended it
LOOKED_AT_ONCE: Final = 64
MAX_FORGETTING: Final = 10_000
_OURS: Final = re.compile(r"[A-Za-z0-9_-]{43}")
_NAMED, _SEALED = b"sidecar session record\0", b"sidecar session seal"
_ABOUT: Final = b"sidecar session v1"


class SessionRecord(NamedTuple):
    """A session for other replicas. `started_at` is in seconds since the epoch; the last two fields are for a session
    at `/mcp`."""

    owner: str
    server: str
    version: str
    upstream_id: str | None
    started_at: float
    declared: dict[str, Any]
    level: str

    def sealed(self, session_id: str) -> str:
        plain = orjson.dumps({"v": VERSION, **self._asdict()})
        return AesSeal(session_id.encode(), _SEALED).sealed_text(plain, _ABOUT).decode()


def opened(session_id: str, sealed: object) -> SessionRecord | None:
    """Returns the record, ignoring unknown members; None if it is not sealed with this id or has another form."""
    if not isinstance(sealed, bytes):
        return None
    try:
        said = orjson.loads(AesSeal(session_id.encode(), _SEALED).opened_text(sealed, _ABOUT))
        if said.pop("v") != VERSION:
            return None
        return SessionRecord(**{name: said[name] for name in SessionRecord._fields})
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def key_of(session_id: str) -> str:
    return f"session:{hashlib.sha256(_NAMED + session_id.encode()).hexdigest()}"


@dataclass(slots=True)
class SessionStore:
    """The sessions that replicas share. `run` is None if nothing is shared; `clock` gives seconds since the epoch."""

    sessions: Sessions
    run: Run | None
    clock: Callable[[], float]
    up: bool = True
    _looked_mono_s: float = 0.0
    _forgetting: BackgroundTasks = field(default_factory=lambda: BackgroundTasks(MAX_FORGETTING))

    async def keep(self, session: Session) -> None:
        """Publishes the session to every replica. Raises Refusal(STORE_UNAVAILABLE)."""
        if self.run is None:
            return
        session.roams = True
        record = SessionRecord(
            session.owner,
            session.server,
            session.version,
            session.upstream_id,
            self.clock() - (self.sessions.clock_mono() - session.started_mono_s),
            dict(session.declared),
            session.level,
        )
        await self._ask("keep", session.id, self._ttl_ms, record.sealed(session.id))

    async def recall(self, session_id: str, caller: Caller, server: str) -> Sequence[Session]:
        """Loads the session here if it is shared and the caller's; drops it if it was ended elsewhere. Returns the
        sessions that were ended to make room. Raises Refusal: STORE_UNAVAILABLE, TOO_MANY_CONCURRENT."""
        if self.run is None or not _OURS.fullmatch(session_id):
            return ()
        known = self.sessions.get(session_id)
        if known is not None and not known.roams:
            return ()
        sealed = await self._ask("touch", session_id, self._ttl_ms)
        if sealed is None:
            if known is not None:
                self.sessions.end(known)
            return ()
        if self.sessions.get(session_id) is not None:  # a concurrent request may have loaded it
            return ()
        record = opened(session_id, sealed)
        if record is None or (record.owner, record.server) != (caller.binding, server):
            return ()  # like without a store
        session, ended = self.sessions.start(
            caller,
            server,
            version=record.version,
            upstream_id=record.upstream_id,
            id=session_id,
            age_s=max(0.0, self.clock() - record.started_at),
        )
        session.roams, session.declared, session.level = True, record.declared, record.level
        return ended

    async def forget(self, session: Session) -> None:
        """Ends the session at every replica. Raises Refusal(STORE_UNAVAILABLE)."""
        if session.roams and self.run is not None:
            await self._ask("drop", session.id)

    def forget_soon(self, session: Session) -> None:
        """Like `forget`, in the background. If it fails, the record expires with its idle time."""
        if session.roams and self.run is not None:
            self._forgetting.add(self.forget(session))

    async def is_used(self, session: Session) -> bool:
        """Whether a session that is idle here is, or may be, in use elsewhere."""
        if not session.roams or self.run is None:
            return False
        try:
            return bool(await self._ask("look", session.id))
        except Refusal:
            return True  # unknown: its upstream has its own time-out

    async def look(self) -> None:
        """Renews the records of sessions with open streams here, and ends those that another replica ended."""
        now = self.sessions.clock_mono()
        if self.run is None or now - self._looked_mono_s < LOOK_EVERY_S:
            return
        self._looked_mono_s = now
        streaming = [one for one in self.sessions if one.roams and one.has_streams]
        for at in range(0, len(streaming), LOOKED_AT_ONCE):
            await asyncio.gather(*map(self._look_at, streaming[at : at + LOOKED_AT_ONCE]))

    async def _look_at(self, session: Session) -> None:
        try:
            gone = await self._ask("touch", session.id, self._ttl_ms) is None
        except Refusal:
            return  # calls are refused in the meantime; open streams continue
        if gone:
            self.sessions.end(session)

    @property
    def _ttl_ms(self) -> str:
        return str(int(self.sessions.idle_s * 1000))

    async def _ask(self, verb: str, session_id: str, *words: str) -> Any:
        assert self.run is not None
        try:
            answer = await self.run(SCRIPT, key_of(session_id), [verb, *words])
        except ConnectionError:
            self.up = False
            raise Refusal(Reason.STORE_UNAVAILABLE) from None
        self.up = True
        return answer
