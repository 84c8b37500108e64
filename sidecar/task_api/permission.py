"""May this chain have what it asks for, as things are now, though it sends no request?"""

from __future__ import annotations

from sidecar.arrival import AGENTS
from sidecar.audit import Recording
from sidecar.disabled import KillSwitch
from sidecar.errors import Reason, Refusal
from sidecar.identity import check_caller
from sidecar.snapshot import Snapshot
from sidecar.vocabulary import Call, Caller, Decision


def check_standing(switch: KillSwitch, now: Snapshot, caller: Caller, call: Call, now_s: float) -> None:
    """Raises Refusal where one of them is disabled, or nobody vouches for them any more, or they lack what the agent's
    address asks for."""
    for disabled in (switch.disabled, now.disabled):
        disabled.refuse(caller.chain, call, now_s)
    if not now.identity.vouches_for(caller):
        raise Refusal(Reason.BAD_CREDENTIAL)
    check_caller(caller, now.audience(call.upstream, AGENTS))


def decided(now: Snapshot, call: Call, recording: Recording, now_s: float) -> Decision:
    """What policy says to the caller of this record, and it is in the record. Raises Refusal."""
    assert recording.caller is not None
    decision = recording.decision = now.decide(recording.caller.chain, call, now_s)
    shadows = now.shadows(now_s)
    recording.enforcement = "shadow" if shadows else "enforce"
    if not shadows:
        decision.or_refuse()
    return decision
