"""Stores the logins of the console in memory, and bounds failed logins.

Each worker stores the logins that began at it. An id begins with the number of the worker, so that the others ask that
worker, and a log-out takes effect at all of them at once. Only digests of ids are stored.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from sidecar.admin.other_workers import SESSION_SOCKET
from sidecar.settings.console import MAX_SESSION_S
from sidecar.vocabulary import Principal

if TYPE_CHECKING:
    from sidecar.admin.other_workers import OtherWorkers
    from sidecar.admin.routes import Role

MAX_SESSIONS: Final = 1_000
ATTEMPTS_PER_PEER, ATTEMPTS, ATTEMPTS_S = 10, 60, 60.0
ASK_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class ConsoleSession:
    """One login. `by` is the user in audit records, `credential` the digest of the key with which it began, or `oidc`.
    `began_at` and `seen_at` are in monotonic seconds. `key` is the digest of its id. `principal`, `issuer` and
    `granted` are name, issuer and roles of the person; empty if the credential names no person."""

    by: str
    role: Role
    credential: str
    csrf: str
    began_at: float
    seen_at: float
    key: str = ""
    principal: str = ""
    issuer: str = ""
    granted: tuple[str, ...] = ()

    @property
    def person(self) -> Principal | None:
        return Principal(self.principal, self.issuer, frozenset(self.granted)) if self.principal else None


@dataclass(slots=True)
class ConsoleSessions:
    """The logins of this worker. A login ends when it is idle or too old, or when its credential is no longer valid
    (`holds`)."""

    idle_s: float
    clock_mono: Callable[[], float]
    holds: Callable[[ConsoleSession], bool]
    others: OtherWorkers | None = None
    _kept: OrderedDict[str, ConsoleSession] = field(default_factory=OrderedDict)

    def begin(self, by: str, role: Role, credential: str, person: Principal | None = None) -> str:
        """Begins a session, and returns the id for its cookie. If there are too many, the least recently used one
        ends."""
        worker = 0 if self.others is None else self.others.me
        session_id = f"{worker}.{secrets.token_urlsafe(32)}"
        now_s = self.clock_mono()
        key = digest_of(session_id.encode())
        csrf = secrets.token_urlsafe(32)
        whom = () if person is None else (person.name, person.issuer, tuple(sorted(person.roles)))
        self._kept[key] = ConsoleSession(by, role, credential, csrf, now_s, now_s, key, *whom)
        while len(self._kept) > MAX_SESSIONS:
            self._kept.popitem(last=False)
        return session_id

    async def find(self, session_id: str, *, touch: bool = True) -> ConsoleSession | None:
        """The session with this id, of any worker; None if there is none. `touch` restarts its idle time."""
        worker, key = worker_of(session_id), digest_of(session_id.encode())
        if self.others is None or worker == self.others.me:
            return self.own(key, touch=touch)
        reply = await self.others.ask(worker, "POST" if touch else "GET", f"{SESSION_SOCKET}{key}", ASK_S)
        return _session_in(reply.plain) if reply is not None and reply.status == 200 else None

    async def end(self, session_id: str) -> None:
        """Ends the session with this id, of any worker that answers in time."""
        worker, key = worker_of(session_id), digest_of(session_id.encode())
        if self.others is None or worker == self.others.me:
            self.end_own(key)
        else:
            await self.others.ask(worker, "DELETE", f"{SESSION_SOCKET}{key}", ASK_S)

    def own(self, key: str, *, touch: bool) -> ConsoleSession | None:
        """A session of this worker, by the digest of its id; None if there is none. `touch` restarts its idle time."""
        session, now_s = self._kept.get(key), self.clock_mono()
        if session is None:
            return None
        is_over = now_s - session.seen_at >= self.idle_s or now_s - session.began_at >= MAX_SESSION_S
        if is_over or not self.holds(session):
            del self._kept[key]
            return None
        if touch:
            self._kept[key] = session = replace(session, seen_at=now_s)
            self._kept.move_to_end(key)
        return session

    def end_own(self, key: str) -> None:
        self._kept.pop(key, None)


def plain_session(session: ConsoleSession) -> Mapping[str, Any]:
    """A session as data for another worker."""
    return asdict(session)


def _session_in(plain: Mapping[str, Any]) -> ConsoleSession | None:
    try:
        return ConsoleSession(**plain)
    except TypeError:  # from a worker of another version, during an update
        return None


def digest_of(secret: bytes) -> str:
    return sha256(secret).hexdigest()


def worker_of(session_id: str) -> int:
    """The number of the worker at which a session began; -1 if the id is malformed."""
    number = session_id.partition(".")[0]
    return int(number) if number.isascii() and number.isdecimal() and len(number) < 4 else -1


@dataclass(slots=True)
class LoginAttempts:
    """Counts the failed logins of the last minute at this worker, for each address and in total."""

    clock_mono: Callable[[], float]
    _failed: deque[tuple[float, str]] = field(default_factory=deque)

    def wait_s(self, peer: str) -> float:
        """The seconds that this peer must wait before the next attempt; 0.0 if it may try now."""
        now_s = self.clock_mono()
        while self._failed and now_s - self._failed[0][0] >= ATTEMPTS_S:
            self._failed.popleft()
        own = [at_s for at_s, whom in self._failed if whom == peer]
        if len(own) >= ATTEMPTS_PER_PEER:
            return ATTEMPTS_S - (now_s - own[-ATTEMPTS_PER_PEER])
        if len(self._failed) >= ATTEMPTS:
            return ATTEMPTS_S - (now_s - self._failed[0][0])
        return 0.0

    def failed(self, peer: str) -> None:
        self._failed.append((self.clock_mono(), peer))
