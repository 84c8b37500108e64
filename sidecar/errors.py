"""Reasons, refusals, and the one table from reason to answer.

Three kinds, never mixed:

    Refusal          the caller's: one `Reason` from a closed set, answered by the table below
    ConfigError      the operator's: every fault of a file at once, with position and hint
    anything else    a bug of ours: answered 500, recorded once, no detail outside
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple


class Reason(StrEnum):
    """Why a call was refused. The words stand in answers, audit records and metrics (CONTRACT 6)."""

    UNAUTHENTICATED = "unauthenticated"
    BAD_CREDENTIAL = "bad-credential"
    CREDENTIAL_CONFLICT = "credential-conflict"
    CLIENT_UNKNOWN = "client-unknown"
    INSUFFICIENT_SCOPE = "insufficient-scope"
    ORIGIN_REFUSED = "origin-refused"
    ROUTE_UNKNOWN = "route-unknown"
    VERB_NOT_ALLOWED = "verb-not-allowed"
    NOT_ACCEPTABLE = "not-acceptable"
    MALFORMED_CALL = "malformed-call"
    TOO_LARGE = "too-large"
    UNSUPPORTED_MEDIA_TYPE = "unsupported-media-type"
    VERSION_UNSUPPORTED = "version-unsupported"
    HEADER_MISMATCH = "header-mismatch"
    DENIED_BY_RULE = "denied-by-rule"
    EXPIRED = "expired"
    CONDITION_FALSE = "condition-false"
    NO_MATCHING_RULE = "no-matching-rule"
    PRINCIPAL_DISABLED = "principal-disabled"
    TOOL_DISABLED = "tool-disabled"
    PIN_MISMATCH = "pin-mismatch"
    METHOD_UNKNOWN = "method-unknown"
    UPSTREAM_UNKNOWN = "upstream-unknown"
    TOOL_UNKNOWN = "tool-unknown"
    SESSION_UNKNOWN = "session-unknown"
    TASK_UNKNOWN = "task-unknown"
    NOT_CANCELABLE = "not-cancelable"
    BAD_ARGUMENTS = "bad-arguments"
    RATE_LIMITED = "rate-limited"
    QUOTA_SPENT = "quota-spent"
    BUDGET_SPENT = "budget-spent"
    TOO_MANY_CONCURRENT = "too-many-concurrent"
    TOO_MANY_REFUSALS = "too-many-refusals"
    STORE_UNAVAILABLE = "store-unavailable"
    AUDIT_UNAVAILABLE = "audit-unavailable"
    SCHEMA_UNAVAILABLE = "schema-unavailable"
    DRAINING = "draining"
    OVERLOADED = "overloaded"
    UPSTREAM_OPEN = "upstream-open"
    UPSTREAM_TIMEOUT = "upstream-timeout"
    UPSTREAM_FAILED = "upstream-failed"
    UPSTREAM_LIMITED = "upstream-limited"
    RESPONSE_REFUSED = "response-refused"
    CALLER_GONE = "caller-gone"
    INTERNAL = "internal"


class CredentialFault(StrEnum):
    """What is wrong with a credential that was refused as `bad-credential`. The words stand in the audit."""

    MALFORMED = "malformed"  # it cannot be read, or is there more than once
    ISSUER_UNKNOWN = "issuer-unknown"
    KEY_UNKNOWN = "key-unknown"  # its issuer has no such key
    KEYS_UNAVAILABLE = "keys-unavailable"  # its issuer's keys cannot be had
    SIGNATURE = "signature"
    EXPIRED = "expired"
    NOT_YET_VALID = "not-yet-valid"
    AUDIENCE = "audience"
    NOT_ACCEPTED = "not-accepted"  # its algorithm, type, lifetime or claims are not those that are believed here
    SUBJECT = "subject"  # its issuer may not name its subject or actors so, or nobody is called so
    UNKNOWN = "unknown"  # an API key, or an address's own token, that is none
    PROOF = "proof"  # what it is bound to was not shown, or does not fit
    REPLAYED = "replayed"
    NOT_EXCHANGED = "not-exchanged"  # its issuer gives no token of the upstream for it
    REVOKED = "revoked"  # it was believed, and is not any more


ErrorCode = Literal[
    "InvalidParameters",
    "Unauthorized",
    "NotFound",
    "RateLimitExceeded",
    "ExecutionFailed",
    "Timeout",
    "InternalError",
]
"""The seed's McpErrorCode."""

AuditStatus = Literal["success", "permission_denied", "rate_limited", "error"]


@dataclass(frozen=True, slots=True)
class Answer:
    """How one reason is told. `http` is for the stateless era and plain HTTP, `session_http` for the session era,
    where a 403 would cost the client its session. `live_http` is for a message in a live session, where it differs:
    session-era clients stop at every 4xx that answers a message. `code` is the JSON-RPC error code: the HTTP status,
    which lies outside every range that JSON-RPC, MCP and A2A reserve, unless the protocol names its own."""

    http: int
    session_http: int
    code: int
    seed: ErrorCode
    status: AuditStatus
    message: str
    live_http: int | None = None

    @property
    def in_session(self) -> int:
        """The HTTP status of a refused message in a live session."""
        return self.session_http if self.live_http is None else self.live_http


def _same(http: int, code: int, seed: ErrorCode, status: AuditStatus, message: str) -> Answer:
    return Answer(http, http, code, seed, status, message)


def _carried(http: int, seed: ErrorCode, status: AuditStatus, message: str) -> Answer:
    return Answer(http, 200, http, seed, status, message)


_UNAUTHORIZED: Final = "Unauthorized"
_INVALID: Final = "InvalidParameters"
_NOT_FOUND: Final = "NotFound"
_LIMITED: Final = "RateLimitExceeded"
_FAILED: Final = "ExecutionFailed"

ANSWERS: Mapping[Reason, Answer] = {
    Reason.UNAUTHENTICATED: _same(401, 401, _UNAUTHORIZED, "permission_denied", "A credential is needed"),
    Reason.BAD_CREDENTIAL: _same(401, 401, _UNAUTHORIZED, "permission_denied", "The credential is not valid here"),
    Reason.CREDENTIAL_CONFLICT: _same(
        401, 401, _UNAUTHORIZED, "permission_denied", "Two credentials claim the same place in the chain"
    ),
    Reason.CLIENT_UNKNOWN: _same(401, 401, _UNAUTHORIZED, "permission_denied", "The token's client is not known here"),
    Reason.INSUFFICIENT_SCOPE: _same(403, 403, _UNAUTHORIZED, "permission_denied", "The token lacks a scope"),
    Reason.ORIGIN_REFUSED: _same(403, 403, _UNAUTHORIZED, "permission_denied", "This Host or Origin is not served"),
    Reason.ROUTE_UNKNOWN: _same(404, 404, _NOT_FOUND, "error", "No such address"),
    Reason.VERB_NOT_ALLOWED: _same(405, 405, _INVALID, "error", "This method is not allowed here"),
    Reason.NOT_ACCEPTABLE: Answer(
        406, 406, -32600, _INVALID, "error", "Accept must name application/json and text/event-stream", live_http=200
    ),
    Reason.MALFORMED_CALL: Answer(400, 400, -32600, _INVALID, "error", "The call is malformed", live_http=200),
    Reason.TOO_LARGE: _same(413, -32600, _INVALID, "error", "The call is too large"),
    Reason.UNSUPPORTED_MEDIA_TYPE: _same(
        415, -32600, _INVALID, "error", "The body must be plain application/json in UTF-8"
    ),
    Reason.VERSION_UNSUPPORTED: _same(400, -32022, _INVALID, "error", "Unsupported protocol version"),
    Reason.HEADER_MISMATCH: _same(400, -32020, _INVALID, "error", "A header does not match the body"),
    Reason.DENIED_BY_RULE: _carried(403, _UNAUTHORIZED, "permission_denied", "A rule denies this call"),
    Reason.EXPIRED: _carried(403, _UNAUTHORIZED, "permission_denied", "The permission has expired"),
    Reason.CONDITION_FALSE: _carried(403, _UNAUTHORIZED, "permission_denied", "The permission's condition is not met"),
    Reason.NO_MATCHING_RULE: _carried(403, _UNAUTHORIZED, "permission_denied", "No rule allows this call"),
    Reason.PRINCIPAL_DISABLED: _carried(
        403, _UNAUTHORIZED, "permission_denied", "A principal of this call is disabled"
    ),
    Reason.TOOL_DISABLED: _carried(403, _UNAUTHORIZED, "permission_denied", "The tool is disabled"),
    Reason.PIN_MISMATCH: _carried(
        403, _UNAUTHORIZED, "permission_denied", "The tool is not as it was when it was approved"
    ),
    Reason.METHOD_UNKNOWN: Answer(  # the stateless era has words of its own for it: 404, and -32601 (`mcp.call_from`)
        404, 200, 403, _UNAUTHORIZED, "permission_denied", "This method is not allowed through"
    ),
    # At the address of all servers a live session goes on although one name in it leads nowhere.
    Reason.UPSTREAM_UNKNOWN: Answer(404, 404, -32602, _NOT_FOUND, "error", "No such server", live_http=200),
    # Session era: an HTTP 404 says there that the session is gone, and who asked for an old tool or task would lose it.
    Reason.TOOL_UNKNOWN: Answer(404, 200, -32602, _NOT_FOUND, "error", "No such tool"),
    Reason.SESSION_UNKNOWN: _same(404, -32600, _NOT_FOUND, "error", "Session terminated"),  # clients look for this text
    Reason.TASK_UNKNOWN: Answer(404, 200, -32602, _NOT_FOUND, "error", "No such task"),
    Reason.NOT_CANCELABLE: _same(409, 409, _INVALID, "error", "The task cannot be cancelled"),
    Reason.BAD_ARGUMENTS: Answer(200, 200, -32602, _INVALID, "error", "The arguments do not fit the tool's schema"),
    Reason.RATE_LIMITED: _carried(429, _LIMITED, "rate_limited", "A rate limit is reached"),
    Reason.QUOTA_SPENT: _carried(429, _LIMITED, "rate_limited", "A quota is spent"),
    Reason.BUDGET_SPENT: _carried(429, _LIMITED, "rate_limited", "A budget is spent"),
    Reason.TOO_MANY_CONCURRENT: _carried(429, _LIMITED, "rate_limited", "Too many calls at once"),
    Reason.TOO_MANY_REFUSALS: _carried(429, _LIMITED, "rate_limited", "Too many refused calls"),
    Reason.STORE_UNAVAILABLE: _carried(503, _FAILED, "error", "The store cannot be reached right now"),
    Reason.AUDIT_UNAVAILABLE: _carried(503, _FAILED, "error", "Evidence cannot be recorded right now"),
    Reason.SCHEMA_UNAVAILABLE: _carried(503, _FAILED, "error", "The tool's schema cannot be used"),
    Reason.DRAINING: _carried(503, _FAILED, "error", "The sidecar is shutting down"),
    Reason.OVERLOADED: _carried(503, _FAILED, "error", "The sidecar has more to do than it can"),
    Reason.UPSTREAM_OPEN: _carried(503, _FAILED, "error", "The upstream failed too often and is given a rest"),
    Reason.UPSTREAM_TIMEOUT: _carried(504, "Timeout", "error", "The upstream did not answer in time"),
    Reason.UPSTREAM_FAILED: _carried(502, _FAILED, "error", "The upstream failed"),
    Reason.UPSTREAM_LIMITED: _carried(429, _LIMITED, "rate_limited", "The upstream limits how often it is called"),
    Reason.RESPONSE_REFUSED: _carried(502, _FAILED, "error", "The upstream's answer was refused"),
    # Never told to anybody: the caller went away before its answer was complete (nginx's 499).
    Reason.CALLER_GONE: _carried(499, _FAILED, "error", "The caller went away"),
    Reason.INTERNAL: _carried(500, "InternalError", "error", "Internal error"),
}


class LimitState(NamedTuple):
    """Where a limit stands. `window_s` is its length in seconds; `reset_at` is in seconds since the epoch. `charged` is
    what this call takes of it. What has a `unit` is so much of that; all else is calls."""

    name: str
    limit: float
    remaining: float
    window_s: float = 0.0
    reset_at: float | None = None
    unit: str = ""
    charged: float = 1

    @property
    def told(self) -> str:
        """Its name, for a caller: a row's limit by the name of its column, because no rule is told."""
        return ROW_LIMIT if self.name.startswith("rule:") else self.name


ROW_LIMIT = "max_calls_per_hour"


class Refusal(Exception):
    """The caller's call ends here, for one reason. Never carries a secret, an argument's value or a rule.

    `detail` is a sentence of ours for the caller (what and where, e.g. "params.name must be a string");
    `data` is what the protocol's own error carries beside ours (e.g. MCP's `supported` versions);
    `code` overrides the table's JSON-RPC code (parse errors), `http` its status, and `words` its sentence, where an
    upstream's own are passed on; `challenge` fills `WWW-Authenticate` after
    `scheme`, `allow` are the verbs of `Allow`. `credential_fault` is for evidence alone: what was wrong with a bad
    credential; one that was believed before, and is refused without a word on it, was revoked.
    """

    def __init__(
        self,
        reason: Reason,
        detail: str = "",
        *,
        data: Mapping[str, Any] | None = None,
        code: int | None = None,
        http: int | None = None,
        words: str = "",
        limit: LimitState | None = None,
        retry_after_s: float | None = None,
        challenge: str = "",
        scheme: str = "Bearer",
        allow: tuple[str, ...] = (),
        credential_fault: CredentialFault | None = None,
    ) -> None:
        super().__init__(reason.value, detail)
        self.reason = reason
        self.detail = detail
        self.data = data or {}
        self.http = http
        self.words = words
        self.code = code if code is not None else http or ANSWERS[reason].code
        self.limit = limit
        self.retry_after_s = retry_after_s
        self.challenge = challenge
        self.scheme = scheme
        self.allow = allow
        is_bad = reason is Reason.BAD_CREDENTIAL
        self.credential_fault = credential_fault or (CredentialFault.REVOKED if is_bad else None)

    @property
    def answer(self) -> Answer:
        answer = ANSWERS[self.reason]
        return answer if self.http is None else replace(answer, http=self.http)


class Unsent(Refusal):
    """Nothing was sent to the upstream, so nothing is charged: there was nothing to show to it, or no use in trying."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong in a file. `line` and `column` count from 1 (0 = the file as a whole); `width` in characters."""

    file: str
    line: int
    column: int
    code: str
    message: str
    hint: str = ""
    source: str = field(default="", repr=False)
    width: int = 1
    severity: Literal["error", "warning"] = "error"

    def __str__(self) -> str:
        file = visible(self.file)
        where = f"{file}:{self.line}:{self.column}" if self.line else file
        lines = [f"{where}: {self.severity}[{self.code}]: {visible(self.message)}"]
        if self.source:
            lines += self._quoted()
        if self.hint:
            lines.append(f"   hint: {visible(self.hint)}")
        return "\n".join(lines)

    def _quoted(self) -> tuple[str, str]:
        """The line, and below it a mark where the fault is."""
        gutter, start = f"{self.line:5d} | ", self.column - 1
        before, marked = self.source[:start], self.source[start : start + self.width]
        width = max(self.width, len(visible_lines(marked)), 1)
        mark = " " * (len(gutter) - 2) + "| " + " " * max(start, len(visible_lines(before))) + "^" * width
        return gutter + visible_lines(self.source), mark


class ConfigError(Exception):
    """Every fault that was found in the operator's files, at once."""

    def __init__(self, faults: list[Fault] | tuple[Fault, ...]) -> None:
        super().__init__("\n".join(str(fault) for fault in faults))
        self.faults = tuple(faults)


class SettingsError(ConfigError):
    """`sidecar.yaml`, keys, or the environment."""


class PolicyError(ConfigError):
    """Models, rows, budgets."""


@dataclass(slots=True)
class Together:
    """What several readers have against the operator's files: who mends them wants to hear all of it at once."""

    errors: list[ConfigError] = field(default_factory=list)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Go on behind a reader that raised ConfigError. What it would have made is not there: see `refuse`."""
        try:
            yield
        except ConfigError as error:
            self.errors.append(error)

    def refuse(self) -> None:
        """Raise what was noted, each fault once, as the first of its kind; nothing if there was none."""
        if self.errors:
            raise type(self.errors[0])(tuple(dict.fromkeys(fault for error in self.errors for fault in error.faults)))


def fault_in(path: Path | str, message: str, *, code: str, hint: str = "") -> Fault:
    """A fault of a file as a whole: missing, unreadable, empty."""
    return Fault(str(path), 0, 0, code, message, hint)


def visible(text: str) -> str:
    """The same text where every character is printable; else with escapes for those that are not. A line end is one of
    them: a name must not begin a line of its own."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def visible_lines(text: str) -> str:
    """A text of several lines: their ends and tabs stay."""
    return "\n".join("\t".join(map(visible, line.split("\t"))) for line in text.split("\n"))
