"""Formats explanations for people and programs: for `policy explain` and pages of the console."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from sidecar.errors import Reason, visible
from sidecar.limits.amounts import in_units
from sidecar.policy.stock.expression import text_fields
from sidecar.policy_tools.audit_records import RecordedQuestion
from sidecar.policy_tools.casbin_trace import CasbinRequest
from sidecar.policy_tools.explain import ApprovalNeed, ChargedLimit, Explanation, Ground, Traced
from sidecar.policy_tools.rule_text import approval_text, csv_row, moment
from sidecar.vocabulary import Answer, PermissionKind, RuleRef

_OUTCOMES: Mapping[Answer | None, str] = {None: "UNDECIDABLE", "allow": "ALLOW", "approval": "APPROVAL", "deny": "DENY"}
MAX_APPROVERS = 10


def lines(found: Explanation, asked: RecordedQuestion | None = None) -> Iterator[str]:
    yield from map(visible, _lines(found, asked))


def _lines(found: Explanation, asked: RecordedQuestion | None) -> Iterator[str]:
    names = " → ".join([*(each.name for each in found.chain), found.question.object])
    yield f"{_OUTCOMES[found.answer]}  {found.why if found.answer is None else _because(found)}".rstrip()
    yield f"  {names}  {found.question.action}" + ("  (a call of the session itself)" if found.session else "")
    yield f"  at {moment(found.at_s)}, by revision {found.decision.revision[:16]}"
    if asked is not None:
        yield from _about_record(found, asked)
    for number, traced in enumerate(found.links, start=1):
        yield ""
        yield from _link(number, traced)
    rest = list(_the_rest(found))
    yield from ["", *rest] if rest else []


def _because(found: Explanation) -> str:
    need = found.approval
    if need is None:
        return found.decision.reason or ""
    if found.answer == "allow":
        return f"approved by {' and '.join(need.given_by)}"
    roles = " and one with ".join(one.role for one in need.holders)
    return need.objection or f"a person with {roles} must approve it"


def _about_record(found: Explanation, asked: RecordedQuestion) -> Iterator[str]:
    was = "allowed" if asked.allowed else f"denied, {asked.reason}".rstrip(", ")
    was += f" with the approval of {' and '.join(asked.approval.by)}" if asked.approval.by else ""
    if asked.allowed and asked.ended:
        was += f", and refused after that: {asked.ended}"
    if not asked.allowed and not asked.enforced:
        was += ", in shadow mode: nothing was refused"
    yield f"  on record as {was} (record {asked.seq}, decision {asked.decision_id})"
    if asked.revision != found.decision.revision:
        yield (
            f"  note: explained by revision {found.decision.revision[:16]}, the record is of {asked.revision[:16]};"
            " give the folder of that one with --policy"
        )
    if found.answer is None:
        yield "  the answer below is one of those that are possible"


def _link(number: int, traced: Traced) -> Iterator[str]:
    link = traced.link
    answer = "allow" if link.allowed else f"deny: {link.reason}"
    what = "guardrail" if link.kind is PermissionKind.GUARDRAIL else f"link {number}"
    yield f"{what}  {link.kind.value}: {link.subject} → {link.object}  {link.action}  {answer}"
    asked = traced.casbin
    if asked is not None:
        yield from _asked(asked)
    if traced.engine != "compiled":
        yield "  decided by " + (
            "pycasbin" if traced.engine == "casbin" else "compiled rules and pycasbin, which must agree"
        )
    if traced.by_default:
        yield "  allowed because no row denies it (policy.default: allow)"
    about = (link.subject, link.object) if asked is None else _names_in(asked)
    for ground in traced.grounds:
        yield from _ground(ground, *about)
    for ran in traced.conditions:
        recorded = ran.source == "the record"
        by = ", on record" if recorded else f": {ran.source}" if ran.source else ""
        yield f"  {'condition' if asked is None else 'matcher'} {ran.text}  {ran.outcome}{by}"
        yield from (f"    {at} = {f'digest {value}' if recorded else _shown(value)}" for at, value in ran.read.items())
    if asked is not None and asked.failed:
        yield f"  the evaluation failed, and so it is denied: {asked.failed}"
    if not link.allowed and not traced.grounds:
        yield from _near_head(traced)
    for near, text in traced.near:
        yield f"    {near.rule.id}  {_where(near.rule)}"
        yield f"      {text}"
        if asked is not None and not near.misfits:
            yield "      the rest of the matcher does not hold"
        for misfit in near.misfits:
            what = misfit.said if misfit.part == "shadow" else f"{misfit.part} does not fit: {misfit.said}"
            yield f"      {what}" + (f"  ({misfit.hint})" if misfit.hint else "")
    if traced.missing is not None:
        yield f"  this row of {traced.missing.kind.value}.csv would allow this link"
        yield f"    {csv_row(traced.missing)}"


def _near_head(traced: Traced) -> Iterator[str]:
    asked = traced.casbin
    if asked is None:
        yield "  nearest rules" if traced.near else "  no rule comes near"
    elif not (asked.compares or asked.unnamed or asked.failed):
        yield "  rows are not compared with the request: no test of the matcher that is compiled is about one column"
    elif not (asked.unnamed or asked.failed):
        yield "  nearest rows" if traced.near else "  no row comes near"


def _asked(asked: CasbinRequest) -> Iterator[str]:
    if asked.unnamed:
        yield f"  {_path(asked.model)} is not asked: {asked.unnamed}"
        return
    values = ", ".join(f"{name} {_shown(value)}" for name, value in asked.values.items())
    yield f"  {_path(asked.model)} is asked: {values}"
    for name, value in asked.attributes.items():
        yield f"    {name} = {'not there' if value is None else _shown(value)}"


def _names_in(asked: CasbinRequest) -> tuple[str, str]:
    """Returns the subject and the object of a request as named in the policy."""
    fields = text_fields(tuple(asked.values))
    found = {fields.get(field, ""): str(value) for field, value in asked.values.items()}
    return found.get("sub", ""), found.get("obj", "")


def _ground(ground: Ground, subject: str, obj: str) -> Iterator[str]:
    rule = ground.rule
    yield f"  {rule.effect} by rule {rule.id}  {_where(rule)}"
    yield f"    {ground.text}"
    if rule.reason:
        yield f"    reason: {rule.reason}"
    if rule.approval is not None:
        yield f"    approval: {approval_text(rule.approval)}"
    if ground.roles:
        way = list(ground.roles)
        way[0] += " (from the token)" if ground.from_token else ""
        yield "    role: " + " → ".join([subject, *way])
    if ground.sets:
        yield "    set: " + " → ".join([obj, *ground.sets])


def _the_rest(found: Explanation) -> Iterator[str]:
    denying = any(each.link.kind is PermissionKind.GUARDRAIL and not each.link.allowed for each in found.links)
    if found.guardrail_rows and not denying:
        rows = "1 row, which does" if found.guardrail_rows == 1 else f"{found.guardrail_rows} rows, which do"
        yield f"guardrails: {rows} not forbid it"
    for word, grounds in (("deny", found.would_deny), ("allow", found.would_allow)):
        for ground in grounds:
            yield f"shadow: rule {ground.rule.id} would {word} it  {_where(ground.rule)}"
            yield f"    {ground.text}"
    if found.approval is not None:
        yield "approval by a user who is not in the chain"
        for holders in found.approval.holders:
            tokens = [f"users with a token that grants {role}" for role in holders.tokens]
            users = [*holders.users[:MAX_APPROVERS]]
            more = [f"{holders.total - len(users)} more users"] if holders.total > len(users) else []
            names = [*users, *more, *tokens] or ["no user has it"]
            yield f"  {holders.role}: {', '.join(names)}"
    if not found.decision.allowed or found.answer is None:
        return
    if found.session:
        yield "limits: none of a row; sessions.session_calls_per_minute bounds these calls"
    elif not found.limits:
        yield "limits: none"
    else:
        yield "limits that would be charged"
        for charged in found.limits:
            yield f"  {charged.charge.limit}  {_most(charged)}, counted for {charged.counted_for}"
        yield from _together(found)
    if found.timeout_s is not None:
        yield f"timeout: {found.timeout_s:g} s"


def _together(found: Explanation) -> Iterator[str]:
    """Yields notes on the limits of several matching grants: each counts the call, and none removes another."""
    counting = _counting(found)
    if len(counting) > 1:
        rules = " and ".join(counting) if len(counting) == 2 else ", ".join(counting)
        yield f"  note: the limits of {rules} all count this call; the first that is spent refuses it"
    grounds = found.links[len(found.chain) - 1].grounds
    free = dict.fromkeys(one.rule.id for one in grounds if one.rule.max_calls_per_hour is None)
    if counting and free:
        yield f"  note: {', '.join(free)} has no limit, and lifts none of these"


def _counting(found: Explanation) -> list[str]:
    return [limit.rule_id for limit in found.decision.limits] if found.limits else []


def _most(charged: ChargedLimit) -> str:
    charge = charged.charge
    most = f"{in_units(charge.most)} {charge.unit}" if charge.unit else f"{charge.most}"
    cost = f" of which this call may take {in_units(charge.amount)}" if charge.unit else ""
    match charge.kind:
        case "hour" | "day" | "month":
            return f"{most} in {'an' if charge.kind == 'hour' else 'a'} {charge.kind}{cost}"
        case "concurrency":
            return f"{charge.most} at a time"
        case "rate":
            return f"{1e6 / charge.interval_us:g} in a second, {charge.most} at once"


def _where(rule: RuleRef) -> str:
    if not rule.file:
        return ""
    return f"{_path(rule.file)}:{rule.line}"


def _path(file: str) -> Path:
    here, path = Path.cwd(), Path(file)
    inside = path.is_absolute() and path.is_relative_to(here)
    return path.relative_to(here) if inside else path


def _shown(value: object) -> str:
    try:
        text = orjson.dumps(value, default=str).decode()
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."


def as_data(found: Explanation, asked: RecordedQuestion | None = None) -> dict[str, Any]:
    decision = found.decision
    data: dict[str, Any] = {
        "outcome": found.answer or "undecidable",
        "allowed": found.allowed,
        "reason": (decision.reason or Reason.APPROVAL_PENDING) if found.allowed is False else None,
        "undecidable": found.why or None,
        "revision": decision.revision,
        "now": moment(found.at_s),
        "chain": [each.name for each in found.chain],
        **_members(found.question, "object action"),
        "session": found.session,
        "links": [_link_data(each) for each in found.links],
        "approval": None if found.approval is None else _approval_data(found.approval),
        "guardrail_rows": found.guardrail_rows,
        "limits": [_limit_data(each) for each in found.limits],
        "counted_by_rules": _counting(found),
        "timeout_s": found.timeout_s,
        "would_deny": [_ground_data(each) for each in found.would_deny],
        "would_allow": [_ground_data(each) for each in found.would_allow],
    }
    if asked is not None:
        record = _members(asked, "seq decision_id timestamp allowed enforced revision")
        record |= {"reason": asked.reason or None, "ended": asked.ended or None}
        record |= {"waited": asked.approval.waited, "approved_by": list(asked.approval.by)}
        data["record"] = {**record, "same_revision": asked.revision == decision.revision}
    return data


def _members(value: object, names: str) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names.split()}


def _link_data(traced: Traced) -> dict[str, Any]:
    return {
        **_members(traced.link, "kind subject object action allowed reason"),
        **_members(traced, "engine by_default"),
        "casbin": None if traced.casbin is None else _casbin_data(traced.casbin),
        "rules": [_ground_data(ground) for ground in traced.grounds],
        "conditions": [
            {**_members(ran, "text outcome"), "read": _plain(ran.read), "source": ran.source or None}
            for ran in traced.conditions
        ],
        "nearest": [
            {**rule_data(near.rule, text), "misfits": [misfit._asdict() for misfit in near.misfits]}
            for near, text in traced.near
        ],
        "missing": None if traced.missing is None else _missing_data(traced.missing),
    }


def _missing_data(rule: RuleRef) -> dict[str, Any]:
    return {"file": f"{rule.kind.value}.csv", "text": csv_row(rule)}


def _casbin_data(asked: CasbinRequest) -> dict[str, Any]:
    said = {"unnamed": asked.unnamed or None, "failed": asked.failed or None, "compares": asked.compares}
    return {"model": asked.model, "request": _plain(asked.values), "attributes": _plain(asked.attributes), **said}


def _ground_data(ground: Ground) -> dict[str, Any]:
    return {**rule_data(ground.rule, ground.text), **_members(ground, "roles from_token sets")}


def rule_data(rule: RuleRef, text: str) -> dict[str, Any]:
    """Returns a rule with the text of its row as JSON values."""
    data = {**_members(rule, "id effect file line max_calls_per_hour"), "text": text}
    data |= {name: value or None for name, value in _members(rule, "owner reason when").items()}
    data |= {"expires_at": None if rule.expires_at is None else moment(rule.expires_at)}
    return {**data, "approval": None if rule.approval is None else rule.approval._asdict()}


def _approval_data(need: ApprovalNeed) -> dict[str, Any]:
    return {
        "rules": [rule.id for rule in need.rules],
        "holders": [holders._asdict() for holders in need.holders],
        "approved_by": list(need.given_by),
        "objection": need.objection or None,
    }


def _limit_data(charged: ChargedLimit) -> dict[str, Any]:
    charge = charged.charge
    most, takes = (in_units(each) if charge.unit else each for each in (charge.most, charge.amount))
    named = {"name": charge.limit, "kind": charge.kind, "most": most, "unit": charge.unit or None, "takes": takes}
    return {**named, "window_s": charge.window_s, "counted_for": charged.counted_for}


def _plain(read: Mapping[str, Any]) -> Any:
    return orjson.loads(orjson.dumps(read, default=str))
