"""The record of a request made plainly: every field by its name, in one dict, serialized at once.

`sidecar.audit.recorder` puts the same record together from kept segments; the two must not differ in a byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice, pairwise
from typing import Any

from sidecar.audit.digest import Digests, namespace_of
from sidecar.audit.record import BLANK
from sidecar.audit.recorder import Recording
from sidecar.errors import ANSWERS, Reason, Refusal
from sidecar.vocabulary import Caller, Decision, Question
from tests.unit.audit.scenes import KEY


def decided(recording: Recording) -> dict[str, Any]:
    return gathered(recording, args_hash(recording), recording.charged)


def ended(
    recording: Recording, before: Mapping[str, Any] | None, event: str, reason: Reason | None, bytes_out: int
) -> dict[str, Any]:
    """`before` is the decision's record, if there is one."""
    record = {**before} if before is not None else gathered(recording, args_hash(recording), 0)
    if before is None and recording.names is not None:
        record |= unknown_names_hashed(recording, record)
    answer = ANSWERS[reason] if reason is not None else None
    return record | {
        "task_id": text(recording.task_id, 256),
        "redactions": recording.redactions,
        "redaction_applied": record["redaction_applied"] or bool(recording.redactions),
        "evidence": [],
        "federation": recording.federation,
        "status": answer.status if answer else "success",
        "reason": reason,
        "credential_fault": recording.credential_fault,
        "error_message": answer.message if answer else None,
        "tool_error": recording.tool_error if event == "outcome" else None,
        "limits": limits(recording, 0 if before is None else recording.charged),
        "http_status": 200,
        "bytes_out": bytes_out,
        "duration_ms": ms(recording.duration_s),
        "latency": latency(recording),
    }


def latency(recording: Recording) -> dict[str, float]:
    ends_s = [recording.started_s, *recording.marks.values()]
    return {
        stage: ms(end_s - begin_s) for stage, (begin_s, end_s) in zip(recording.marks, pairwise(ends_s), strict=True)
    }


def gathered(recording: Recording, digest: str | None, charged: int) -> dict[str, Any]:
    call, caller, decision = recording.call, recording.caller, recording.decision
    asked_as = recording.request_id if call is None or recording.request_id is not None else call.request_id
    record = {
        **BLANK,
        "decision_id": recording.decision_id,
        "request_id": asked_as if isinstance(asked_as, int) and abs(asked_as) < 2**63 else words(asked_as),
        "peer": text(recording.peer, 256),
        "enforcement_point": text(recording.enforcement_point, 256) or None,
        "args_hash": digest,
        "federation": recording.federation,
        "limits": limits(recording, charged),
        "enforcement": recording.enforcement,
        "bytes_in": recording.bytes_in,
        "latency": latency(recording),
        "key_id": KEY.id,
    }
    for name in ("trace_id", "run_id", "thread_id", "task_id", "protocol", "upstream", "method"):
        record[name] = text(getattr(recording, name), 256)
    if caller is not None:
        record |= about_caller(caller)
    if call is not None:
        record |= {name: text(getattr(call, name), 256) for name in ("protocol_version", "upstream", "method")}
        record |= about_question(call.question)
        record["server"] = text(call.question.server or call.upstream, 256)
        if clear := recording.audit.describer.clear:
            record["clear_arguments"] = clear.of(call.question)
    if decision is not None:
        record |= about_decision(decision, caller, recording)
    record["would_deny"] = [*record["would_deny"], *recording.excused]
    return record


def about_caller(caller: Caller) -> dict[str, Any]:
    granted = [{"roles": sorted(each.roles), "scopes": sorted(each.scopes)} for each in caller.chain]
    words = [word for entry in granted for each in entry.values() for word in each]
    is_whole = len(caller.chain) <= 16 and sum(map(len, words)) <= 16_384 and all(map(str.isprintable, words))
    return {
        "credential": [
            {"kind": one.kind, "issuer": text(one.issuer, 512, ""), "key_id": text(one.key_id, 256, "")}
            for one in caller.credentials[:4]
        ],
        "chain": [text(each.name, 512) for each in caller.chain[:16]],
        "granted": None if not is_whole else granted if words else [],
        "agent_id": text(caller.last.name, 512),
    }


def about_question(question: Question) -> dict[str, Any]:
    def shown(word: str) -> str:
        return word.partition("?")[0].partition("#")[0] if question.object.startswith("resource:") else word

    return {
        "tool": text(shown(question.name), 2300),
        "action": text(question.action, 256, ""),
        "object": text(shown(question.object), 2300, ""),
        "redaction_applied": bool(question.arguments) or shown(question.object) != question.object,
    }


def about_decision(decision: Decision, caller: Caller | None, recording: Recording) -> dict[str, Any]:
    digests, facts = digests_of(caller), []
    for fact in decision.facts:
        inputs = {text(path, 128, ""): digests.fact_hash(value) for path, value in islice(fact.inputs.items(), 8)}
        about = {"subject": text(fact.link.subject, 512, ""), "action": text(fact.link.action, 256, "")}
        facts.append(about | {"condition": text(fact.condition, 128, ""), "outcome": fact.outcome, "inputs": inputs})
    would_deny = decision.would_deny
    if recording.enforcement == "shadow" and not decision.allowed:
        would_deny = (*would_deny, *decision.denied_by)
    return {
        "agent_role": text(",".join(decision.roles[:32]), 512),
        "links": [
            {
                "kind": link.kind,
                "action": text(link.action, 256, ""),
                "decision": "allow" if link.allowed else "deny",
                "rules": [text(rule.id, 128, "") for rule in link.rules[:16]],
            }
            for link in decision.links[:32]
        ],
        "facts": facts[:32],
        "would_deny": [text(each, 128, "") for each in would_deny[:32]],
        "would_allow": [text(each, 128, "") for each in decision.would_allow[:32]],
        "policy_revision": text(decision.revision, 256),
        "engine": None if decision.engine == "compiled" else decision.engine,
        "enforcement": recording.enforcement,
    }


def unknown_names_hashed(recording: Recording, record: Mapping[str, Any]) -> dict[str, Any]:
    assert recording.names is not None
    allowed = recording.decision is not None and recording.decision.allowed
    describer = recording.audit.describer
    return describer.foreign(recording.caller, record, recording.names, recording.call, allowed=allowed)


def limits(recording: Recording, charged: int) -> list[dict[str, Any]]:
    return [
        {"name": text(state.name, 512, ""), "charged": state.charged if charged else 0, "remaining": state.remaining}
        | {"limit": state.limit}
        | ({"unit": state.unit} if state.unit else {})
        for state in recording.limits[:32]
    ]


def args_hash(recording: Recording) -> str | None:
    if recording.call is None:
        return None
    question = recording.call.question
    try:
        return digests_of(recording.caller).args_hash(question.action, question.object, question.arguments)
    except Refusal:
        return None


def digests_of(caller: Caller | None) -> Digests:
    return Digests(KEY, "" if caller is None else namespace_of(caller.last.id))


def text(value: str | None, chars: int, blank: Any = None) -> Any:
    if not value:
        return blank
    shown = value if len(value) <= chars else value[: chars - 3] + "..."
    return shown.encode("utf-8", "replace").decode()


def words(asked_as: str | int | None) -> Any:
    return asked_as if asked_as is None else text(str(asked_as), 256, "")


def ms(spent_s: float) -> float:
    return int(spent_s * 1e6 + 0.5) / 1000
