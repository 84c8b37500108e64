"""Holds calls that wait for input until their caller returns.

`requestState` names a held call: it cannot be guessed, is valid once, for its owner and for the same call. To any other
caller it is an unknown value.

    a held call        becomes
    retried            input is posted to the server, and its answer is read on
    retried by others  -32602, nothing reaches the server, the call stays held
    not retried        cancelled when it expires, or when its owner holds too many
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sidecar.protocols.jsonrpc import Id
from sidecar.upstreams.mcp.bridge.borrowed_calls import BorrowedCall
from sidecar.upstreams.mcp.bridge.borrowed_sessions import BorrowedSession

MAX_HELD: Final = 256
MAX_HELD_OF_ONE: Final = 16
STATE_BYTES: Final = 32


@dataclass(frozen=True, slots=True, eq=False)
class HeldCall:
    """A call that waits for its caller. `asked` maps keys of `inputRequests` to ids of the server's requests. Without a
    `BorrowedCall`, the server itself asked for a later retry, and the retry is a new call there.
    """

    owner: str
    fingerprint: bytes
    questions: Mapping[str, Any]
    asked: Mapping[str, Id]
    lent: BorrowedSession | None
    course: BorrowedCall | None
    lapse: asyncio.TimerHandle


class HeldCalls:
    """The held calls of one server. Each expires after `question_s`; `dropped` is called with every one that expires or
    is dropped earlier.
    """

    def __init__(self, question_s: float, dropped: Callable[[HeldCall], None]) -> None:
        self._question_s = question_s
        self._dropped = dropped
        self._held: OrderedDict[str, HeldCall] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def has_room(self, owner: str) -> bool:
        """Whether the owner may hold one more call; its oldest one is dropped for it if it holds too many."""
        mine = [state for state, held in self._held.items() if held.owner == owner]
        if len(mine) >= MAX_HELD_OF_ONE:
            self.drop(mine[0])
        return len(self._held) < MAX_HELD

    def hold(
        self, course: BorrowedCall, questions: Mapping[str, Any], asked: Mapping[str, Id], lent: BorrowedSession | None
    ) -> str:
        """Hold a call; returns the state that names it. `lent` is None if the call itself is over."""
        state = secrets.token_urlsafe(STATE_BYTES)
        lapse = asyncio.get_running_loop().call_later(self._question_s, self.drop, state)
        waiting = None if lent is None else course
        self._held[state] = HeldCall(course.outbound.owner, course.fingerprint, questions, asked, lent, waiting, lapse)
        return state

    def find(self, state: object, owner: str, fingerprint: bytes) -> HeldCall | None:
        """The call that this caller holds under this state. None for an unknown state, another caller's or another
        call's.
        """
        held = self._held.get(state) if isinstance(state, str) else None
        return held if held is not None and (held.owner, held.fingerprint) == (owner, fingerprint) else None

    def take(self, state: str) -> None:
        """Its caller is back: remove it."""
        self._held.pop(state).lapse.cancel()

    def drop(self, state: str) -> None:
        """Its caller did not return. An unknown state is ignored."""
        held = self._held.pop(state, None)
        if held is not None:
            held.lapse.cancel()
            self._dropped(held)

    def drop_all_in(self, lent: BorrowedSession) -> None:
        """Drop every call of a session that ended."""
        for state in [state for state, held in self._held.items() if held.lent is lent]:
            self.drop(state)
