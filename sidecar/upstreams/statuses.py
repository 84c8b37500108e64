"""Maps HTTP statuses of upstreams to refusals: 429, and 503 with `Retry-After`, are passed on; redirects are
reported."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final, Protocol

from sidecar.errors import Reason, Refusal

MAX_RETRY_AFTER_S: Final = 3600.0
MAX_TARGET_CHARS: Final = 200
LIMITED: Final = 429
UNAVAILABLE: Final = 503


class Status(Protocol):
    """The head of a response."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...


def refusal_of(answer: Status) -> Refusal:
    """Returns the refusal for an answer that cannot be used, by its status: UPSTREAM_LIMITED or UPSTREAM_FAILED."""
    said, wait_s = words_of(answer), retry_after_s(answer)
    if answer.status == LIMITED:
        return Refusal(Reason.UPSTREAM_LIMITED, said, retry_after_s=wait_s)
    if answer.status == UNAVAILABLE and wait_s is not None:
        return Refusal(Reason.UPSTREAM_FAILED, said, http=UNAVAILABLE, retry_after_s=wait_s)
    return Refusal(Reason.UPSTREAM_FAILED, said)


def passes_on(refusal: Refusal) -> bool:
    """Whether the upstream's own status is passed on, and the error in its body with it."""
    return refusal.reason is Reason.UPSTREAM_LIMITED or refusal.http == UNAVAILABLE


def in_words_of(refusal: Refusal, error: Mapping[str, Any]) -> Refusal:
    """Returns the same refusal, with the code, message and data of an upstream's JSON-RPC error."""
    data = error.get("data")
    return Refusal(
        refusal.reason,
        refusal.detail,
        data=data if isinstance(data, dict) else None,
        code=error["code"],
        http=refusal.http,
        words=error["message"],
        retry_after_s=refusal.retry_after_s,
    )


def words_of(answer: Status) -> str:
    """Returns a sentence about the status, with the target of a redirect."""
    target = _target(answer) if 300 <= answer.status < 400 else ""
    if target:
        return f"it answered HTTP {answer.status}, a redirect to {target}, which is not followed: set its url to that"
    return f"it answered HTTP {answer.status}"


def retry_after_s(answer: Status) -> float | None:
    """Returns `Retry-After` in seconds, at most an hour; None if it is missing or invalid."""
    said = answer.headers.get("retry-after", "").strip()
    if said.isascii() and said.isdigit():
        return min(float(said[:10]), MAX_RETRY_AFTER_S)
    try:
        wait_s = parsedate_to_datetime(said).timestamp() - time.time()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return min(max(0.0, math.ceil(wait_s)), MAX_RETRY_AFTER_S)


def _target(answer: Status) -> str:
    """Returns the target of a redirect, without the parts that may be secret: user, query and fragment."""
    said = answer.headers.get("location", "").partition("#")[0].partition("?")[0]
    scheme, authority, path = said.partition("//")
    if authority:
        host, slash, rest = path.partition("/")
        said = f"{scheme}//{host.rpartition('@')[2]}{slash}{rest}"
    plain = "".join(character for character in said if "!" <= character <= "~" and character not in "\"'<>`")
    return plain[:MAX_TARGET_CHARS]
