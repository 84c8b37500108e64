"""Tracks refusals of a store that answers but does not do what is asked.

It may be there and say no: its memory is full, its disk is, its user lacks a right. The connection is well, and calls
are refused all the same; operators have to hear it as they hear of an outage.

A no holds for what was asked (a charge, or one way to settle) until the same is done again, and if nobody asks, for a
minute. A right may be missing for one kind of counter only: then it takes a charge of that kind to show that it is
there again.
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
# What Valkey and Redis say of a command that a script calls; of one that we call they say NOPERM.
_FORBIDDEN: Final = ("ACL failure in script", "The user executing the script can't")


def code_of(error: ResponseError) -> str:
    """The word that a server's refusal begins with."""
    return str(error).partition(" ")[0]


def counts_no_more(error: ResponseError) -> bool:
    """It is another who counts, or this one has forgotten: not to be asked again before that is clear."""
    return isinstance(error, ReadOnlyError | MovedError) or code_of(error) == "EPOCH"


def is_forbidden(error: ResponseError) -> bool:
    """The user lacks a right."""
    return isinstance(error, NoPermissionError) or str(error).removeprefix("ERR ").startswith(_FORBIDDEN)


def passes(error: ResponseError) -> bool:
    """It says when or who, not what: the same question is right once that has changed. Any other is about a counter
    that is not ours to understand."""
    return isinstance(error, _PASSING) or code_of(error) in _PASSING_CODES or is_forbidden(error)


class _No(NamedTuple):
    """`kinds` must be charged for it to be over; of what the store as a whole said, none in particular."""

    why: str
    kinds: frozenset[Kind]
    at_s: float


class RefusalTracker:
    """What a store refuses now, by what it is asked: `charge`, or a verb of settling. Times are the loop's."""

    def __init__(self) -> None:
        self._nos: dict[str, _No] = {}

    def __bool__(self) -> bool:
        """Whether `done` has to be told."""
        return bool(self._nos)

    def refused(self, what: str, error: ResponseError, charges: Iterable[LimitCharge], now_s: float) -> None:
        """The store said no. Of a counter that is not ours to understand it says nothing of others."""
        if counts_no_more(error) or not passes(error):
            return
        kinds = frozenset(charge.kind for charge in charges) if is_forbidden(error) else frozenset[Kind]()
        self._nos[what] = _No(printable(error), kinds, now_s)

    def done(self, what: str, charges: Iterable[LimitCharge]) -> None:
        """The store did as it was asked."""
        no = self._nos.get(what)
        if no is not None and no.kinds <= {charge.kind for charge in charges}:
            del self._nos[what]

    def why(self, now_s: float, what: str = "") -> str:
        """In its own words, for operators: why `what` is refused, or anything; "" if it is not."""
        for asked, no in tuple(self._nos.items()):
            if now_s - no.at_s > HOLDS_S:
                del self._nos[asked]
            elif what in ("", asked):
                return f"it refuses what it is asked ({asked}): {no.why}"
        return ""


def printable(error: ResponseError) -> str:
    """What a server said, for the log."""
    return "".join(character for character in f"{type(error).__name__}: {error}" if character.isprintable())[:300]
