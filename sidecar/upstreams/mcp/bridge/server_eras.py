"""Tracks which revisions a server supports, as its answers show. An answer that does not fit puts this in doubt."""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic
from typing import Any, Final

from sidecar.protocols.jsonrpc import Response
from sidecar.protocols.mcp.eras import SESSION_VERSIONS_SET, STATELESS_SET, UNSUPPORTED_VERSION

# The statuses that mean "unknown revision", rather than "not you" (401, 403) or "not now" (429, 5xx).
REFUSALS: Final = frozenset({200, 400, 404, 405, 406, 415})
UNFIT: Final = frozenset({400, 404, 405})  # answers to stateless messages that put the revision in doubt
# An answer that does not fit may be an ordinary error: doubt costs one more request, but not after each such answer.
DOUBT_AFTER_S: Final = 30.0


class ServerEras:
    """The revisions of one server; None is not known yet."""

    def __init__(self) -> None:
        self.stateless: bool | None = None
        self.sessions: bool | None = None
        self._learned_at_s = 0.0

    @property
    def age_s(self) -> float:
        """The seconds since it was last recorded whether the server supports a stateless revision."""
        return monotonic() - self._learned_at_s

    def learn(self, status: int, discovered: Response | None) -> None:
        """Records the answer to `server/discover`, if it shows whether the server supports a stateless revision."""
        speaks = status == 200 and speaks_stateless(discovered)
        if speaks or (status in REFUSALS and not _offers_stateless_instead(discovered)):
            self.stateless, self._learned_at_s = speaks, monotonic()

    def doubt(self, *, at_once: bool = False) -> None:
        """Forgets the revisions after an answer that does not fit, unless they are recent. `at_once`: in any case."""
        if at_once or self.age_s >= DOUBT_AFTER_S:
            self.stateless = self.sessions = None


def speaks_stateless(response: Response | None) -> bool:
    """Whether this answer to `server/discover` offers a known stateless revision."""
    return _names_stateless(_result(response).get("supportedVersions"))


def opens_session(response: Response | None) -> bool:
    """Whether this answer to `initialize` agrees on a revision."""
    version = _result(response).get("protocolVersion")
    return isinstance(version, str) and version in SESSION_VERSIONS_SET


def _offers_stateless_instead(response: Response | None) -> bool:
    """Whether this refusal of a revision names a known stateless one."""
    error = response.error if response is not None and response.error is not None else {}
    data = error.get("data")
    named = data.get("supported") if isinstance(data, Mapping) else None
    return error.get("code") == UNSUPPORTED_VERSION and _names_stateless(named)


def _names_stateless(offered: object) -> bool:
    return isinstance(offered, list) and any(isinstance(one, str) and one in STATELESS_SET for one in offered)


def _result(response: Response | None) -> Mapping[str, Any]:
    return response.result if response is not None and isinstance(response.result, dict) else {}
