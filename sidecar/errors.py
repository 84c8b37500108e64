"""Defines refusal reasons, errors in the operator's files, and the table that maps reasons to answers.

Errors are of three kinds, which are never mixed:

    Refusal          the caller's error: one `Reason` from a closed set, answered by the table below
    ConfigError      the operator's error: every fault in a file at once, with position and hint
    anything else    a bug in the sidecar: answered with 500, recorded once, without details for the caller
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple


class Reason(StrEnum):
    """The reason why a call was refused. The values appear in answers, audit records and metrics."""

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
    APPROVAL_PENDING = "approval-pending"
    APPROVAL_REFUSED = "approval-refused"
    APPROVAL_EXPIRED = "approval-expired"
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
    """Why a credential was refused as `bad-credential`. The values appear in audit records."""

    MALFORMED = "malformed"  # cannot be parsed, or is present more than once
    ISSUER_UNKNOWN = "issuer-unknown"
    KEY_UNKNOWN = "key-unknown"  # the issuer has no such key
    KEYS_UNAVAILABLE = "keys-unavailable"  # the issuer's keys are unavailable
    SIGNATURE = "signature"
    EXPIRED = "expired"
    NOT_YET_VALID = "not-yet-valid"
    AUDIENCE = "audience"
    NOT_ACCEPTED = "not-accepted"  # the algorithm, type, lifetime or claims are not accepted
    SUBJECT = "subject"  # the issuer may not name this subject or these actors, or the name is not a principal
    UNKNOWN = "unknown"  # no such API key or address token
    PROOF = "proof"  # the proof of possession is missing or does not match
    REPLAYED = "replayed"
    NOT_EXCHANGED = "not-exchanged"  # the issuer did not exchange it for a token of the upstream
    REVOKED = "revoked"  # was valid earlier and has been revoked


ErrorCode = Literal[
    "InvalidParameters", "Unauthorized", "NotFound", "RateLimitExceeded", "ExecutionFailed", "Timeout", "InternalError"
]
"""McpErrorCode of the original data models."""

AuditStatus = Literal["success", "permission_denied", "rate_limited", "error"]


@dataclass(frozen=True, slots=True)
class Answer:
    """How one reason is answered. The HTTP status is `http` in stateless revisions and over plain HTTP, `session_http`
    in session revisions, where a 403 would end the client's session, and `live_http` (None: `session_http`) in a live
    session, where clients stop at every 4xx. `code` is the JSON-RPC code: one that the protocol defines, otherwise an
    HTTP status, which is outside all reserved ranges. `seed` is the error code of the original data models."""

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


def _same(http: int, code: int, seed: ErrorCode, message: str) -> Answer:
    return Answer(http, http, code, seed, "error", message)


def _carried(http: int, seed: ErrorCode, message: str, status: AuditStatus = "error") -> Answer:
    return Answer(http, 200, http, seed, status, message)


def _unauthenticated(message: str, http: int = 401) -> Answer:
    return Answer(http, http, http, _UNAUTHORIZED, "permission_denied", message)


def _denied(message: str) -> Answer:
    return _carried(403, _UNAUTHORIZED, message, "permission_denied")


def _limited(message: str) -> Answer:
    return _carried(429, "RateLimitExceeded", message, "rate_limited")


def _out(message: str, http: int = 503) -> Answer:
    return _carried(http, "ExecutionFailed", message)


_UNAUTHORIZED: Final = "Unauthorized"
_INVALID: Final = "InvalidParameters"
_NOT_FOUND: Final = "NotFound"

ANSWERS: Mapping[Reason, Answer] = {
    Reason.UNAUTHENTICATED: _unauthenticated("A credential is needed"),
    Reason.BAD_CREDENTIAL: _unauthenticated("The credential is not valid here"),
    Reason.CREDENTIAL_CONFLICT: _unauthenticated("Two credentials claim the same place in the chain"),
    Reason.CLIENT_UNKNOWN: _unauthenticated("The token's client is not known here"),
    Reason.INSUFFICIENT_SCOPE: _unauthenticated("The token lacks a scope", 403),
    Reason.ORIGIN_REFUSED: _unauthenticated("This Host or Origin is not served", 403),
    Reason.ROUTE_UNKNOWN: _same(404, 404, _NOT_FOUND, "No such address"),
    Reason.VERB_NOT_ALLOWED: _same(405, 405, _INVALID, "This method is not allowed here"),
    Reason.NOT_ACCEPTABLE: Answer(
        406, 406, -32600, _INVALID, "error", "Accept must name application/json and text/event-stream", live_http=200
    ),
    Reason.MALFORMED_CALL: Answer(400, 400, -32600, _INVALID, "error", "The call is malformed", live_http=200),
    Reason.TOO_LARGE: _same(413, -32600, _INVALID, "The call is too large"),
    Reason.UNSUPPORTED_MEDIA_TYPE: _same(415, -32600, _INVALID, "The body must be plain application/json in UTF-8"),
    Reason.VERSION_UNSUPPORTED: _same(400, -32022, _INVALID, "Unsupported protocol version"),
    Reason.HEADER_MISMATCH: _same(400, -32020, _INVALID, "A header does not match the body"),
    Reason.DENIED_BY_RULE: _denied("A rule denies this call"),
    Reason.EXPIRED: _denied("The permission has expired"),
    Reason.CONDITION_FALSE: _denied("The permission's condition is not met"),
    Reason.NO_MATCHING_RULE: _denied("No rule allows this call"),
    Reason.PRINCIPAL_DISABLED: _denied("A principal of this call is disabled"),
    Reason.TOOL_DISABLED: _denied("The tool is disabled"),
    Reason.PIN_MISMATCH: _denied("The tool differs from its approved definition"),
    Reason.APPROVAL_PENDING: _denied("A person must approve this call"),
    Reason.APPROVAL_REFUSED: _denied("A person refused this call"),
    Reason.APPROVAL_EXPIRED: _denied("No person approved this call in time"),
    Reason.METHOD_UNKNOWN: Answer(  # stateless revisions define their own answer: 404 and -32601 (`mcp.call_from`)
        404, 200, 403, _UNAUTHORIZED, "permission_denied", "This method is not supported"
    ),
    # At the aggregate address a live session continues although one name in it is unknown.
    Reason.UPSTREAM_UNKNOWN: Answer(404, 404, -32602, _NOT_FOUND, "error", "No such server", live_http=200),
    # In session revisions HTTP 404 means that the session has ended, so a client that names an old tool or task would
    # lose it.
    Reason.TOOL_UNKNOWN: Answer(404, 200, -32602, _NOT_FOUND, "error", "No such tool"),
    Reason.SESSION_UNKNOWN: _same(404, -32600, _NOT_FOUND, "Session terminated"),  # clients match this text
    Reason.TASK_UNKNOWN: Answer(404, 200, -32602, _NOT_FOUND, "error", "No such task"),
    Reason.NOT_CANCELABLE: _same(409, 409, _INVALID, "The task cannot be cancelled"),
    Reason.BAD_ARGUMENTS: Answer(200, 200, -32602, _INVALID, "error", "The arguments do not fit the tool's schema"),
    Reason.RATE_LIMITED: _limited("A rate limit is reached"),
    Reason.QUOTA_SPENT: _limited("A quota is spent"),
    Reason.BUDGET_SPENT: _limited("A budget is spent"),
    Reason.TOO_MANY_CONCURRENT: _limited("Too many calls at once"),
    Reason.TOO_MANY_REFUSALS: _limited("Too many refused calls"),
    Reason.STORE_UNAVAILABLE: _out("The store cannot be reached right now"),
    Reason.AUDIT_UNAVAILABLE: _out("Evidence cannot be recorded right now"),
    Reason.SCHEMA_UNAVAILABLE: _out("The tool's schema cannot be used"),
    Reason.DRAINING: _out("The sidecar is shutting down"),
    Reason.OVERLOADED: _out("The sidecar is overloaded"),
    Reason.UPSTREAM_OPEN: _out("The upstream failed repeatedly, and calls to it are paused"),
    Reason.UPSTREAM_TIMEOUT: _carried(504, "Timeout", "The upstream did not answer in time"),
    Reason.UPSTREAM_FAILED: _out("The upstream failed", 502),
    Reason.UPSTREAM_LIMITED: _limited("The upstream limits the rate of calls"),
    Reason.RESPONSE_REFUSED: _out("The upstream's answer was refused", 502),
    # Never sent: the caller disconnected before its answer was complete (nginx's 499).
    Reason.CALLER_GONE: _out("The caller disconnected", 499),
    Reason.INTERNAL: _carried(500, "InternalError", "Internal error"),
}


class LimitState(NamedTuple):
    """The state of one limit, which counts calls unless it has a `unit`. `window_s` is its period in seconds,
    `reset_at` in seconds since the epoch. `charged` is the amount that this call consumes."""

    name: str
    limit: float
    remaining: float
    window_s: float = 0.0
    reset_at: float | None = None
    unit: str = ""
    charged: float = 1

    @property
    def told(self) -> str:
        """The limit's name for callers. A rule's limit is named by its column, so that the rule is not disclosed."""
        return ROW_LIMIT if self.name.startswith("rule:") else self.name


ROW_LIMIT = "max_calls_per_hour"


class Refusal(Exception):
    """Ends the caller's call for one reason. Never carries a secret, the value of an argument or a rule.

    `detail` is a sentence for the caller with the fault and its place. `data` is added to the protocol's own error
    (MCP's `supported` versions). `code`, `http` and `words` override those of the table, to pass on an upstream's own.
    `challenge` is the text after `scheme` in `WWW-Authenticate`, and `allow` the methods in `Allow`. `credential_fault`
    is for audit records only; a bad credential without one is recorded as revoked.
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
    """Nothing was sent to the upstream, so nothing is charged. For example, there was no credential for it in time."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One error in a file. `line` and `column` count from 1 (0 is the file as a whole); `width` is in characters."""

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

    def plain(self) -> dict[str, Any]:
        """The position, the code and the hint as fields of a log line, without empty ones."""
        fields = {"file": self.file, "line": self.line, "column": self.column, "code": self.code, "hint": self.hint}
        return {name: value for name, value in fields.items() if value}

    def _quoted(self) -> tuple[str, str]:
        """Returns the line, and below it a marker at the position of the fault."""
        gutter, start = f"{self.line:5d} | ", self.column - 1
        before, marked = self.source[:start], self.source[start : start + self.width]
        width = max(self.width, len(visible_lines(marked)), 1)
        mark = " " * (len(gutter) - 2) + "| " + " " * max(start, len(visible_lines(before))) + "^" * width
        return gutter + visible_lines(self.source), mark


class ConfigError(Exception):
    """All faults found in the operator's files."""

    def __init__(self, faults: list[Fault] | tuple[Fault, ...]) -> None:
        super().__init__("\n".join(str(fault) for fault in faults))
        self.faults = tuple(faults)


class SettingsError(ConfigError):
    """Faults in `sidecar.yaml`, in keys, or in the environment."""


class PolicyError(ConfigError):
    """Faults in models, rules or budgets."""


@dataclass(slots=True)
class Together:
    """Collects the faults that several readers find, so that the operator sees all of them at once."""

    errors: list[ConfigError] = field(default_factory=list)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Collects a ConfigError that is raised inside, and continues after it."""
        try:
            yield
        except ConfigError as error:
            self.errors.append(error)

    def call(self, read: Callable[..., object], *given: object) -> None:
        """Calls a reader whose result is not needed."""
        with self.noted():
            read(*given)

    def refuse(self) -> None:
        """Raises the collected faults, each once, as an error of the class of the first one. Does nothing if there are
        none."""
        if self.errors:
            raise type(self.errors[0])(tuple(dict.fromkeys(fault for error in self.errors for fault in error.faults)))


def fault_in(path: Path | str, message: str, *, code: str, hint: str = "") -> Fault:
    """A fault of the whole file: missing, unreadable, empty."""
    return Fault(str(path), 0, 0, code, message, hint)


def way_to_read(error: OSError) -> str:
    """The hint of a fault about a file or folder that cannot be read: who needs permission; "" if permission is not
    what is missing."""
    if not isinstance(error, PermissionError):
        return ""
    return f"let user {os.geteuid()} read it, and search the folders above it"


def visible(text: str) -> str:
    """Escapes characters that are not printable, including line ends and tabs, so that a name is always on one line."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def visible_lines(text: str) -> str:
    """Escapes characters that are not printable, except line ends and tabs."""
    return "\n".join("\t".join(map(visible, line.split("\t"))) for line in text.split("\n"))
