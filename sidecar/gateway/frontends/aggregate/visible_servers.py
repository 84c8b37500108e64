"""Selects the servers that a caller may see.

A server is visible if the caller holds a live grant on it, no deny row closes it, it is not disabled, and the
credential meets the server's own requirements (`anonymous`, `scopes`). Any other server looks as if it did not exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sidecar.errors import Reason, Refusal
from sidecar.gateway.frontends.aggregate.request_reader import SpreadIntent
from sidecar.gateway.kill_switch import KillSwitch
from sidecar.gateway.snapshot import Service, Snapshot, any_of
from sidecar.identity import check_caller
from sidecar.protocols.mcp.messages import server_question
from sidecar.vocabulary import Call, Caller, Decision, Question


class VisibleServers(NamedTuple):
    """The servers that one caller sees. `decision` is the decision for the whole request; without servers it is the
    denial."""

    servers: tuple[Service, ...]
    decision: Decision
    questions: tuple[Question, ...]


def view_of(
    now: Snapshot, caller: Caller, spread: SpreadIntent, now_s: float, switch: KillSwitch, *, shadow: bool
) -> VisibleServers:
    """Returns the servers that a request may reach, in the order of their names. Raises Refusal if there are none for a
    reason other than policy."""
    answers = now.enter_each(caller.chain, spread.call, now_s)
    opened = {name: answer for name, answer in answers.items() if answer.allowed or shadow}
    seen, refusals = _admitted(now, caller, spread.call, opened, now_s, switch)
    if opened and not seen:
        raise refusals[0]
    decision = any_of(seen or answers) or now.engine.enter(caller.chain, spread.call.question, now_s)
    questions = tuple(server_question(name, spread.call.question.action) for name in seen or answers)
    for question in spread.also:
        answer = now.engine.decide(caller.chain, question, now_s)
        if question.server not in seen and not shadow:
            answer = answer._replace(allowed=False, reason=answer.reason or Reason.NO_MATCHING_RULE)
        decision = _both(decision, answer)
    return VisibleServers(
        tuple(now.services[name] for name in seen), decision, (*(questions or spread.call.questions), *spread.also)
    )


def _admitted(
    now: Snapshot,
    caller: Caller,
    call: Call,
    opened: Mapping[str, Decision],
    now_s: float,
    switch: KillSwitch,
) -> tuple[dict[str, Decision], list[Refusal]]:
    seen, refusals = dict[str, Decision](), list[Refusal]()
    for name, answer in opened.items():
        there = call._replace(upstream=name)
        try:
            for disabled in (switch.disabled, now.disabled):
                disabled.refuse((), there, now_s)
            switch.switched_off.refuse_use(there, now_s)
            check_caller(caller, now.audience(name))
        except Refusal as refusal:
            refusals.append(refusal)
        else:
            seen[name] = answer
    return seen, refusals


def _both(one: Decision, other: Decision) -> Decision:
    decisive = one if not one.allowed else other
    ends = [answer.until for answer in (one, other) if answer.until is not None]
    return one._replace(
        allowed=decisive.allowed,
        reason=decisive.reason,
        links=(*one.links, *other.links),
        until=min(ends, default=None),
        would_deny=(*one.would_deny, *other.would_deny),
        would_allow=(*one.would_allow, *other.would_allow),
    )
