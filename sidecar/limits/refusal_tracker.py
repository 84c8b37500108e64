"""Tracks refusals of a store that answers but does not execute operations.

Its memory or disk may be full, or its user may lack a permission: calls are refused, so it is reported like an outage.
A refusal applies to the refused operation (a charge, or one way to settle) until that operation succeeds, or for a
minute if it is not attempted. If a permission is missing, only a successful charge of that kind clears it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from redis.exceptions import (
    AskError,
    ClusterError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)

from sidecar.limits.plan import Kind, LimitCharge

HOLDS_S: Final = 60.0

_PASSING = (AskError, ClusterError, NoScriptError, OutOfMemoryError, ReadOnlyError, TryAgainError)
_PASSING_CODES: Final = ("EPOCH", "MISCONF", "BUSY", "NOREPLICAS")
# The replies of Valkey and Redis for a command inside a script; a direct command gets NOPERM.
_FORBIDDEN: Final = ("ACL failure in script", "The user executing the script can't")


def code_of(error: ResponseError) -> str:
    """Returns the code of an error reply, which is its beginning."""
    return str(error).partition(" ")[0]


def counts_no_more(error: ResponseError) -> bool:
    """Whether another server owns the counters, or this one has lost its state; the connection to it then ends."""
    return isinstance(error, ReadOnlyError | MovedError) or code_of(error) == "EPOCH"


def is_forbidden(error: ResponseError) -> bool:
    """Whether the user lacks a permission."""
    return isinstance(error, NoPermissionError) or str(error).removeprefix("ERR ").startswith(_FORBIDDEN)


def passes(error: ResponseError) -> bool:
    """Whether the error is temporary or about the server, so that the same command can succeed later. Any other error
    is about a counter of another format."""
    return isinstance(error, _PASSING) or code_of(error) in _PASSING_CODES or is_forbidden(error)


class _No(NamedTuple):
    """A refusal. A charge of `kinds` must succeed to clear it; empty if it concerned the store as a whole."""

    why: str
    kinds: frozenset[Kind]
    at_s: float


class RefusalTracker:
    """The `current` refusals by operation: `charge`, or a verb of settling; while there are any, `done` must be called.
    Times are monotonic."""

    def __init__(self) -> None:
        self.current: dict[str, _No] = {}

    def refused(self, what: str, error: ResponseError, charges: Iterable[LimitCharge], now_s: float) -> None:
        """Records an error reply. An error about a counter of another format does not concern other counters."""
        if counts_no_more(error) or not passes(error):
            return
        kinds = frozenset(charge.kind for charge in charges) if is_forbidden(error) else frozenset[Kind]()
        self.current[what] = _No(printable(error), kinds, now_s)

    def done(self, what: str, charges: Iterable[LimitCharge]) -> None:
        """Records that the operation succeeded."""
        no = self.current.get(what)
        if no is not None and no.kinds <= {charge.kind for charge in charges}:
            del self.current[what]

    def why(self, now_s: float, what: str = "") -> str:
        """Returns the server's reason for refusing `what`, or any operation, for operators; "" if nothing is
        refused."""
        for asked, no in tuple(self.current.items()):
            if now_s - no.at_s > HOLDS_S:
                del self.current[asked]
            elif what in ("", asked):
                return f"it refuses a command ({asked}): {no.why}"
        return ""


def printable(error: ResponseError) -> str:
    """Returns a server's error text, made safe for the log."""
    return "".join(character for character in f"{type(error).__name__}: {error}" if character.isprintable())[:300]
