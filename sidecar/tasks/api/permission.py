"""Decides whether a chain may still have its task carried out."""

from __future__ import annotations

from sidecar.audit import Recording
from sidecar.errors import Reason, Refusal
from sidecar.gateway.kill_switch import KillSwitch
from sidecar.gateway.routing import AGENTS
from sidecar.gateway.snapshot import Snapshot
from sidecar.identity import check_caller
from sidecar.vocabulary import Call, Caller, Decision


def check_standing(switch: KillSwitch, now: Snapshot, caller: Caller, call: Call, now_s: float) -> None:
    """Raises Refusal if one of the chain is disabled, a credential is no longer trusted, or the chain lacks what the
    agent's address requires."""
    for disabled in (switch.disabled, now.disabled):
        disabled.refuse(caller.chain, call, now_s)
    if not now.identity.vouches_for(caller):
        raise Refusal(Reason.BAD_CREDENTIAL)
    check_caller(caller, now.audience(call.upstream, AGENTS))


def decided(now: Snapshot, call: Call, recording: Recording, now_s: float) -> Decision:
    """Returns policy's decision for the caller of this record, and adds it to the record. Raises Refusal."""
    assert recording.caller is not None
    decision = recording.decision = now.decide(recording.caller.chain, call, now_s)
    shadows = now.shadows(now_s)
    recording.enforcement = "shadow" if shadows else "enforce"
    if not shadows:
        decision.or_refuse()
    return decision
