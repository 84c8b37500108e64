"""How do these tests get evidence? The engine that serves decides, and the audit that serves writes it down."""

import itertools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sidecar.audit.digest import AuditKey
from sidecar.audit.recorder import Audit, Recording
from sidecar.errors import Reason, Refusal
from sidecar.policy import Engine
from sidecar.policy_tools.audit_records import is_session, question_of
from sidecar.policy_tools.policy_location import in_folder
from sidecar.vocabulary import Call, Caller, Chain, Credential, Decision, Principal, Question
from tests.at_once import at_once
from tests.unit.audit.scenes import open_audit

KEY = AuditKey.from_secret(bytes(range(32)))
OTHER_KEY = AuditKey.from_secret(bytes(range(1, 33)))
NOW_S = 1_800_000_000.0  # 2027-01-15T08:00:00Z


class Clock:
    """Both clocks, a second further at each look."""

    def __init__(self) -> None:
        self._ticks = itertools.count()

    def time(self) -> float:
        return NOW_S + next(self._ticks) / 1000

    def monotonic(self) -> float:
        return 0.0


@dataclass(frozen=True, slots=True)
class Sent:
    """One call: of whom, on what, with what."""

    chain: tuple[str, ...]
    object: str
    action: str = "tools/call"
    args: Mapping[str, Any] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)
    roles: tuple[str, ...] = ()
    """Of the first principal, from its token."""
    scopes: tuple[str, ...] = ()

    def principals(self) -> tuple[Principal, ...]:
        first, *rest = self.chain
        granted = Principal(first, "idp", frozenset(self.roles), frozenset(self.scopes))
        return (granted, *(Principal(name, "idp", frozenset(), frozenset(self.scopes)) for name in rest))


def write_policy(folder: Path, files: Mapping[str, str]) -> Path:
    """A folder with `policies/`, from rows by the stem of their file."""
    for stem, text in files.items():
        path = folder / "policies" / f"{stem}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def counted_calls(work: Callable[[], Any]) -> tuple[Any, int]:
    """What it returns, and how many functions it called: a measure of work that no busy machine changes."""
    calls = itertools.count()
    sys.setprofile(lambda frame, event, argument: event in ("call", "c_call") and next(calls))
    try:
        return work(), next(calls)
    finally:
        sys.setprofile(None)


def engine_of(folder: Path) -> Engine:
    return Engine(in_folder(folder).load())


def write_down(
    audit: Audit,
    decision: Decision,
    chain: Chain,
    question: Question,
    *,
    credentials: tuple[Credential, ...] = (Credential("jwt", "idp", "key"),),
    protocol: str = "mcp",
    session: bool = False,
) -> None:
    """What the pipeline records of one call: decision and outcome, or a refusal."""
    recording = Recording(audit, protocol=protocol, peer="local")
    recording.caller = Caller(chain, credentials)
    version, upstream = ("2026-07-28", question.server) if protocol == "mcp" else ("1.0", question.object[4:])
    recording.call = Call(protocol, version, upstream, question.action, (question,), session=session)
    recording.decision = decision
    if decision.approvals:
        recording.approval = {"id": "a", "by": ["user:dmitri"]}
    if decision.allowed:
        at_once(recording.decided())
        at_once(recording.outcome(http_status=200, bytes_out=2))
    else:
        at_once(recording.refused(Refusal(decision.reason or Reason.INTERNAL), http_status=403))


def record(
    path: Path,
    engine: Engine,
    calls: Iterable[Sent],
    *,
    key: AuditKey = KEY,
    clear: Mapping[str, Sequence[str]] | None = None,
) -> list[Decision]:
    """Decide the calls, and write what the sidecar writes: decision and outcome, or one refusal."""
    clock = Clock()
    audit = open_audit(path, key=key, clock=clock, clear_arguments=clear or {})
    at_once(audit.control("start", "sidecar", version="1"))
    decisions = []
    for sent in calls:
        question = question_of(sent.object, sent.action, sent.args, sent.meta)
        chain = sent.principals()
        ask = engine.enter if is_session(question) else engine.decide
        decision = ask(chain, question, clock.time())
        write_down(audit, decision, chain, question)
        decisions.append(decision)
    recording = Recording(audit, protocol="mcp", peer="local")
    at_once(recording.refused(Refusal(Reason.UNAUTHENTICATED), http_status=401))
    at_once(audit.close())
    return decisions
