"""What do the audit tests record? One caller, one call, one decision, and a log to put them in."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
from click import Context
from click.testing import CliRunner, Result

from sidecar.audit.chain import ascii_json
from sidecar.audit.digest import AuditKey
from sidecar.audit.file_sink import AuditFile
from sidecar.audit.recorder import Audit, Recording
from sidecar.audit.verification_report import VerificationReport
from sidecar.audit.writer import RecordWriter, WriteJob
from sidecar.cli import main
from sidecar.errors import LimitState, Reason, Refusal
from sidecar.settings.audit import RotationSettings
from sidecar.vocabulary import (
    Call,
    Caller,
    Credential,
    Decision,
    Fact,
    Link,
    PermissionKind,
    Principal,
    Question,
    RuleRef,
)
from tests.at_once import at_once

KEY = AuditKey.from_secret(bytes(range(32)))
OTHER_KEY = AuditKey.from_secret(bytes(range(1, 33)))
START_S = 1_795_000_000.25
Rotation = RotationSettings.model_construct  # smaller than an operator may set
ARGUMENTS: dict[str, Any] = {"repo": "acme/site", "limit": 10}


class FakeClock:
    """Both clocks, standing still until they are told."""

    def __init__(self) -> None:
        self.now = START_S

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


class Counted:
    """Records counted by event and result."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], list[float]] = {}

    def audit_row(self, *labels: str) -> list[float]:
        return self.rows.setdefault(labels, [0.0])

    @property
    def counts(self) -> dict[tuple[str, str], float]:
        return {labels: row[0] for labels, row in self.rows.items() if row[0]}


def numbered_ids() -> Callable[[], str]:
    numbers = itertools.count(1)
    return lambda: f"id-{next(numbers):06d}"


def open_audit(path: Path, *, key: AuditKey = KEY, older: Sequence[AuditKey] = (), **changes: Any) -> Audit:
    given: dict[str, Any] = {"durability": "strict", "instance": "one", "clock": FakeClock(), "new_id": numbered_ids()}
    given |= changes
    file = AuditFile.open(path, key, older=older, to_disk=given["durability"] == "disk")
    return Audit(file, file.found, key=key, **given)


def caller() -> Caller:
    issuer = "https://idp.acme.example"
    chain = (Principal("user:corp/alice", issuer), Principal("nhi:corp/researcher", issuer))
    return Caller(chain, (Credential("jwt", issuer, "key-1"),))


def question(**changes: Any) -> Question:
    asked = {"object": "tool:github/search", "action": "tools/call", "server": "github", "name": "search"}
    return Question(**({**asked, "arguments": ARGUMENTS} | changes))


def seal(record: Mapping[str, Any]) -> tuple[bytes, str]:
    """The line of a record that ends in `prev_hash`, made without the code under test, and its hash."""
    body = ascii_json(record)[:-1]
    digest = sha256(body).hexdigest()
    return b'%b,"hash":"%b"}\n' % (body, digest.encode()), digest


def call(**changes: Any) -> Call:
    return Call("mcp", "2026-07-28", "github", "tools/call", (question(**changes),), request_id=7)


def decision(*, allowed: bool = True) -> Decision:
    rule = RuleRef("reads-github", PermissionKind.AGENT_TO_TOOL, "nhi:*", "tool:github/*", ("use",), "allow")
    lends = (PermissionKind.USER_TO_NHI, "user:corp/alice", "nhi:corp/researcher", "delegate", True)
    calls = (PermissionKind.AGENT_TO_TOOL, "nhi:corp/researcher", "tool:github/search", "tools/call", allowed)
    links = (Link(*lends, rules=(rule,)), Link(*calls, rules=(rule,)))
    facts = (Fact("c0ffee" * 5, "true", links[1], {"args.repo": "acme/site"}),)
    reason = None if allowed else Reason.DENIED_BY_RULE
    return Decision(allowed, "rev-1", links, reason, roles=("role:oncall",), would_deny=("shadow-rule",), facts=facts)


def understood(audit: Audit, **changes: Any) -> Recording:
    """A request as far as limits."""
    recording = Recording(audit, "mcp", "127.0.0.1:5000")
    recording.trace_id, recording.run_id, recording.thread_id = "t" * 32, "run", "th"
    recording.bytes_in = 300
    recording.caller = caller()
    recording.marks["identify"] = recording.now_s()
    recording.call = call(**changes)
    recording.decision = decision()
    recording.marks["decide"] = recording.now_s()
    recording.limits = (LimitState("row:reads-github", 120, 119, 3600.0),)
    return recording


def forward(audit: Audit, **changes: Any) -> Recording:
    """A call that went through."""
    recording = understood(audit, **changes)
    at_once(recording.decided())
    at_once(recording.outcome(http_status=200, bytes_out=512))
    return recording


async def append(writer: RecordWriter, job: WriteJob) -> None:
    """Write a record. Raises OSError."""
    if (waits := writer.put(job)) is not None and (error := await waits) is not None:
        raise error


async def forward_over_a_loop(audit: Audit) -> None:
    """The same, where a thread writes."""
    recording = understood(audit)
    await recording.decided()
    await recording.outcome(http_status=200, bytes_out=512)


def refuse(audit: Audit, reason: Reason = Reason.DENIED_BY_RULE, http_status: int = 403) -> Recording:
    """A call that did not."""
    recording = understood(audit)
    recording.decision = decision(allowed=False)
    at_once(recording.refused(Refusal(reason), http_status=http_status))
    return recording


def records(path: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def head_of(path: Path) -> Path:
    return Path(f"{path}.head")


def kinds(report: VerificationReport) -> list[str]:
    return [problem.kind for problem in report.problems]


def run(*arguments: object, given: bytes | None = None) -> Result:
    """`sidecar audit`, as on a terminal: nothing is taken out of what it prints."""
    command = main.get_command(Context(main), "audit")  # `main` itself takes no names that are not UTF-8
    assert command is not None
    return CliRunner().invoke(command, [str(each) for each in arguments], input=given, color=True)


def written_key(path: Path, secret: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(secret)
    path.chmod(0o600)
    return path


def write_log(path: Path, *, calls: int = 5, key: AuditKey = KEY) -> None:
    """A closed log of two records for each call."""
    audit = open_audit(path, key=key)
    for _ in range(calls):
        forward(audit)
    at_once(audit.close())
