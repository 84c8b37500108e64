"""Stores sessions and their owners.

A session of a session revision (MCP 2024-11-05 to 2025-11-25) is the sidecar's: a random id, bound to the whole chain
and the server, mapped to one upstream session or, at `/mcp`, one at each server. It never identifies a caller: every
request is authenticated again, and another chain's session is treated as unknown.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import string
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sidecar.errors import Reason, Refusal
from sidecar.protocols import base64url
from sidecar.protocols.jsonrpc import Id, malformed
from sidecar.vocabulary import Caller, Question

SESSION_ID_BYTES = 32
SESSION_ID_CHARS = 43
_DIGITS = string.ascii_letters + string.digits + "-_"  # of base64url: one for each possible worker
MAX_REMEMBERED = 256  # requests of one session whose answers may still arrive, on any stream
MAX_AWAITED = 64  # requests of one server that its client has not answered yet
MAX_STREAMS = 4  # of one session; a client needs one, and a second before it notices that the first broke
_EVENT_MAC_BYTES = 12
_EVENTS = b"sidecar session events\0"
_UPSTREAM_ID = re.compile(r"[!-~]{1,1024}")  # MCP 2025-11-25: visible ASCII; it must fit a header
_EVENT_ID = re.compile(r"[!-~](?:[ -~]{0,1022}[!-~])?")  # the characters that Last-Event-ID can carry


class PendingRequest(NamedTuple):
    """A caller's request, its decided question (without arguments) and audit ids, stored to check its answer."""

    method: str
    question: Question
    decision_id: str
    args_hash: str | None

    @property
    def tool(self) -> str:
        return self.question.name


@dataclass(slots=True, eq=False)
class Session:
    """One session. `sent` are the ids of the caller's requests: an answer may be replayed on another stream than its
    own; `creators` are the questions of requests that may be answered with a task. `awaited` are the server's requests
    that the caller may still answer (id → method). `streams` are the functions that close its open streams, oldest
    first. A `paired` session belongs to an HTTP+SSE stream: it begins before a revision is agreed on (`version` is ""),
    and does not exist at another address. A session that `roams` is known to other replicas (`session_store.py`). A
    session on the address of all servers has no upstream session, but `parts` at each server that it reached, by name,
    each of this `whole`; a part begins with what the client `declared`, and the `level` of logging that it set."""

    id: str
    owner: str
    server: str
    version: str
    upstream_id: str | None
    started_mono_s: float
    used_mono_s: float
    event_key: bytes
    sent: OrderedDict[Id, PendingRequest | None] = field(default_factory=OrderedDict)
    creators: dict[Id, Question] = field(default_factory=dict)
    awaited: OrderedDict[Id, str] = field(default_factory=OrderedDict)
    streams: OrderedDict[Callable[[], None], None] = field(default_factory=OrderedDict)
    parts: dict[str, Session] = field(default_factory=dict)
    whole: Session | None = None
    declared: Mapping[str, Any] = field(default_factory=dict)
    level: str = ""
    ended: bool = False
    paired: bool = False
    roams: bool = False

    @property
    def has_streams(self) -> bool:
        return any(one.streams for one in (self, *self.parts.values()))

    def begin(self, version: str, upstream_id: str | None) -> None:
        """Records that a revision was agreed on. Raises Refusal if the session ended (SESSION_UNKNOWN), or had begun
        before (MALFORMED_CALL)."""
        if self.ended:
            raise Refusal(Reason.SESSION_UNKNOWN)
        if self.version:
            raise malformed("this session was initialized before")
        self.version, self.upstream_id = version, upstream_id

    def remember(self, request_id: Id, asked: PendingRequest, creator: Question | None = None) -> None:
        """Expects an answer with this id; with a `creator` it may be a task. The answer to an id that is used twice
        (MCP forbids it) belongs to neither request: it could be fetched under the rules of another call."""
        twice = self.sent.pop(request_id, asked) != asked
        self.sent[request_id] = None if twice else asked
        self.creators.pop(request_id, None)
        if creator is not None and not twice:
            self.creators[request_id] = creator.without_arguments
        if len(self.sent) > MAX_REMEMBERED:
            oldest, _ = self.sent.popitem(last=False)
            self.creators.pop(oldest, None)

    def expect(self, request_id: Id, method: str) -> None:
        """Lets the caller answer this request of the server, once."""
        self.awaited[request_id] = method
        if len(self.awaited) > MAX_AWAITED:
            self.awaited.popitem(last=False)

    def open_stream(self, close: Callable[[], None]) -> None:
        """Adds a stream; `close` ends it. Beyond MAX_STREAMS the oldest is closed: its reader is the most likely to
        have disconnected, and a client that reconnects is not refused. Raises Refusal(SESSION_UNKNOWN)."""
        if self.ended:
            raise Refusal(Reason.SESSION_UNKNOWN)
        if len(self.streams) >= MAX_STREAMS:
            oldest, _ = self.streams.popitem(last=False)
            oldest()
        self.streams[close] = None

    def close_stream(self, close: Callable[[], None]) -> None:
        """Removes a stream that ended. Calling it twice is allowed."""
        self.streams.pop(close, None)

    def close(self) -> None:
        self.ended = True
        for close in list(self.streams):
            close()

    def sealed_event_id(self, upstream_event_id: str) -> str | None:
        """Returns the upstream's event id, bound to this session; None for an id that no header can carry."""
        if not _EVENT_ID.fullmatch(upstream_event_id):
            return None
        raw = upstream_event_id.encode()
        return base64url.encode(self._event_mac(raw) + raw)

    def opened_event_id(self, event_id: str) -> str | None:
        """Returns the upstream's event id; None for one that this session never issued."""
        try:
            raw = base64url.decode(event_id)
            mac, upstream = raw[:_EVENT_MAC_BYTES], raw[_EVENT_MAC_BYTES:]
            if hmac.compare_digest(mac, self._event_mac(upstream)):
                return upstream.decode()
        except ValueError:
            pass
        return None

    def _event_mac(self, raw: bytes) -> bytes:
        return hmac.digest(self.event_key, raw, hashlib.sha256)[:_EVENT_MAC_BYTES]


def new_session_id(worker: int) -> str:
    """Returns a random id of 43 characters. The first one is the worker's number; 0: there are no workers."""
    text = secrets.token_urlsafe(SESSION_ID_BYTES)
    return f"{_DIGITS[worker - 1]}{text[1:]}" if worker else text


def worker_of(session_id: str) -> int:
    """Returns the worker that began a session, if workers serve; 0 for an invalid id."""
    return _DIGITS.find(session_id[0]) + 1 if len(session_id) == SESSION_ID_CHARS else 0


@dataclass(slots=True)
class Sessions:
    """Every open session of this process, bounded in number, per principal and in time. `worker` is the process's
    number."""

    clock_mono: Callable[[], float]
    idle_s: float = 1800.0
    lifetime_s: float = 86_400.0
    max_sessions: int = 10_000
    max_per_principal: int = 64
    worker: int = 0
    _open: OrderedDict[str, Session] = field(default_factory=OrderedDict)
    _by_owner: dict[str, OrderedDict[str, None]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._open)

    def start(
        self,
        caller: Caller,
        server: str,
        *,
        version: str = "",
        upstream_id: str | None = None,
        paired: bool = False,
        id: str = "",
        age_s: float = 0.0,
    ) -> tuple[Session, list[Session]]:
        """Begins a session. Returns it, and those of the same owner that were ended to make room, unused for longest
        first. A session that began at another replica has its `id` and its age. Raises Refusal(TOO_MANY_CONCURRENT)."""
        owner = caller.binding
        mine = self._by_owner.get(owner, ())
        ended = [self._open[identity] for identity in list(mine)[: max(0, len(mine) + 1 - self.max_per_principal)]]
        if len(self._open) - len(ended) >= self.max_sessions:
            raise Refusal(Reason.TOO_MANY_CONCURRENT, "too many open sessions")
        session = self._fresh(id or new_session_id(self.worker), owner, server, version, upstream_id)
        session.paired = paired
        session.started_mono_s -= age_s
        for oldest in ended:
            self.end(oldest)
        self._open[session.id] = session
        self._by_owner.setdefault(owner, OrderedDict())[session.id] = None
        return session, ended

    def add_part(self, whole: Session, server: str, *, version: str, upstream_id: str | None) -> Session:
        """Returns the new part of a session at one more server. Raises Refusal(SESSION_UNKNOWN) if it ended
        meanwhile."""
        if whole.ended:
            raise Refusal(Reason.SESSION_UNKNOWN)
        session_id = secrets.token_urlsafe(SESSION_ID_BYTES)
        part = whole.parts[server] = self._fresh(session_id, whole.owner, server, version, upstream_id)
        part.whole = whole
        return part

    def get(self, session_id: str) -> Session | None:
        """Returns the session of this id, for any caller. Callers must not learn of it."""
        return self._open.get(session_id)

    def _fresh(self, session_id: str, owner: str, server: str, version: str, upstream_id: str | None) -> Session:
        now = self.clock_mono()
        event_key = hashlib.sha256(_EVENTS + session_id.encode()).digest()  # the same at every replica
        return Session(session_id, owner, server, version, upstream_id, now, now, event_key)

    def find(self, session_id: str, caller: Caller, server: str, *, paired: bool = False) -> Session:
        """Returns the caller's session, which is in use from then on. Raises Refusal(SESSION_UNKNOWN), also for a
        session of another chain, server or transport."""
        session = self._open.get(session_id)
        if session is None or session.server != server or session.owner != caller.binding:
            raise Refusal(Reason.SESSION_UNKNOWN)
        if session.paired is not paired or self._is_over(session):  # the sweep may not have run yet
            raise Refusal(Reason.SESSION_UNKNOWN)
        session.used_mono_s = self.clock_mono()
        self._by_owner[session.owner].move_to_end(session.id)
        return session

    def end(self, session: Session) -> None:
        """Forgets a session and closes its streams, and those of its parts. A part is forgotten alone. Ending twice is
        allowed."""
        if session.whole is not None:
            if session.whole.parts.get(session.server) is session:
                del session.whole.parts[session.server]
            session.close()
            return
        if self._open.pop(session.id, None) is None:
            return
        mine = self._by_owner[session.owner]
        del mine[session.id]
        if not mine:
            del self._by_owner[session.owner]
        for one in (session, *session.parts.values()):
            one.close()

    def sweep(self) -> list[Session]:
        """Ends expired sessions; returns them, so that the upstream can be notified."""
        over = [session for session in self._open.values() if self._is_over(session)]
        for session in over:
            self.end(session)
        return over

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._open.values()))

    def _is_over(self, session: Session) -> bool:
        now = self.clock_mono()
        idle = not session.has_streams and now - session.used_mono_s > self.idle_s
        return idle or now - session.started_mono_s > self.lifetime_s


def upstream_id_from(header: str | None) -> str | None:
    """Returns the id of an upstream's session, if it has one. Raises Refusal(RESPONSE_REFUSED) if no header can carry
    it."""
    if header is not None and not _UPSTREAM_ID.fullmatch(header):
        raise Refusal(Reason.RESPONSE_REFUSED, "its session id is not 1 to 1,024 visible ASCII characters")
    return header
