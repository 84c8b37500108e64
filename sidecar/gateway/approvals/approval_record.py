"""One request for approval: its states, what it is bound to, and who answered.

A record is found by its `id`, a digest of everything that the approval is bound to: the chain, the upstream, the
objects and actions, the hash of the arguments, and the terms of the rules. Calls that are alike share it. Each request
for approval has a `serial` of its own; `name`, which people and evidence use, is both.

A change is stored first, together with the event that must be recorded for it (`unrecorded`). The event is cleared once
it is in the audit log. Any process that reads the record in between records the event, so a crash loses none. No
approval is used before its event is recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

from sidecar.audit.record import without_query
from sidecar.storage.record_kind import RecordKind, record_codec
from sidecar.vocabulary import Caller, Principal

KEPT_S: Final = 86_400.0  # after its last deadline, so that lists show the result
TARGET: Final = "approvals"  # one list of all of them
ASKED, SHOWN, GIVEN, REFUSED, EXPIRED, WITHDRAWN = (
    f"approval-{word}" for word in ("asked", "shown", "given", "refused", "expired", "withdrawn")
)
"""The events of its control records."""


class ApprovalState(StrEnum):
    WAITING = "waiting"
    APPROVED = "approved"
    USED = "used"  # by the one call that it was for
    REFUSED = "refused"
    EXPIRED = "expired"  # not answered, or not used, in time; or its approver lost the role or was disabled
    WITHDRAWN = "withdrawn"  # its caller cancelled what waited for it


_ENDS: Final = (ApprovalState.REFUSED, ApprovalState.EXPIRED, ApprovalState.WITHDRAWN)
MOVES: Final[Mapping[ApprovalState, frozenset[ApprovalState]]] = {
    ApprovalState.WAITING: frozenset({ApprovalState.APPROVED, *_ENDS}),
    ApprovalState.APPROVED: frozenset({ApprovalState.USED, *_ENDS}),
    ApprovalState.USED: frozenset({ApprovalState.APPROVED}),  # returned by a call that could not be recorded
    ApprovalState.REFUSED: frozenset(),
    ApprovalState.EXPIRED: frozenset(),
    ApprovalState.WITHDRAWN: frozenset(),
}


class Approver(NamedTuple):
    """A person who answers: the principal, and the credential as the audit names it."""

    principal: Principal
    by: str


class Demand(NamedTuple):
    """What one rule demands: a person with `role`, who gives a reason if `reason`."""

    rule: str
    role: str
    reason: bool


class PersonAnswer(NamedTuple):
    """One person's answer. `roles` are the demanded roles that the person answered for."""

    name: str
    issuer: str
    granted: tuple[str, ...]
    by: str
    roles: tuple[str, ...]
    at_s: float
    reason: str

    @property
    def principal(self) -> Principal:
        return Principal(self.name, self.issuer, frozenset(self.granted))


class AskedQuestion(NamedTuple):
    """One question of the call, with its arguments, which only approvers see."""

    object: str
    action: str
    arguments: Mapping[str, Any]


class ApprovalRecord(NamedTuple):
    """One request for approval. Times are in seconds since the epoch. People can answer it until `deadline_s`; once
    approved, it may be used until `usable_until_s`: once, or for `valid_s`. `used_by` is the decision that used it;
    `rounds` counts how often that call continued after its server required input. `told`: its caller has received the
    refusal that it expired, so the next call makes a new request. `unrecorded` is the event that must still be
    recorded."""

    id: str
    serial: str
    caller: Caller
    protocol: str
    upstream: str
    questions: tuple[AskedQuestion, ...]
    args_hash: str
    demands: tuple[Demand, ...]
    policy_revision: str
    valid_s: float | None
    within_s: float
    created_at: float
    deadline_s: float
    decision_id: str
    state: ApprovalState = ApprovalState.WAITING
    given: tuple[PersonAnswer, ...] = ()
    shown: tuple[str, ...] = ()
    usable_until_s: float = 0.0
    used_by: str = ""
    told: bool = False
    rounds: int = 0
    unrecorded: str = ASKED
    revision: int = 0

    @property
    def name(self) -> str:
        """The id of this request for approval; the store's key is its first part."""
        return f"{self.id}-{self.serial}"

    @property
    def next_round(self) -> str:
        """The round number in the state of a call that used it. Each round of the call is executed once."""
        return f"{self.name}-{self.rounds}"

    @property
    def object_name(self) -> str:
        """The called object, without the query of a URI, which only approvers see."""
        object_ = self.questions[0].object
        return without_query(object_, object_)

    @property
    def owner(self) -> str:
        return self.caller.last.name

    @property
    def target(self) -> str:
        return TARGET

    @property
    def standing(self) -> str:
        return self.state

    @property
    def is_done(self) -> bool:
        return self.state not in (ApprovalState.WAITING, ApprovalState.APPROVED)

    @property
    def expires_at(self) -> float:
        return max(self.deadline_s, self.usable_until_s) + KEPT_S

    @property
    def open_roles(self) -> tuple[str, ...]:
        """The demanded roles for which no one has answered yet."""
        answered = {role for verdict in self.given for role in verdict.roles}
        return tuple(dict.fromkeys(demand.role for demand in self.demands if demand.role not in answered))

    @property
    def needs_reason(self) -> bool:
        return any(demand.reason for demand in self.demands)

    def is_late(self, now_s: float) -> bool:
        """Whether the time to answer it, or to use it, has ended."""
        if self.state is ApprovalState.WAITING:
            return now_s >= self.deadline_s
        return self.state is ApprovalState.APPROVED and now_s >= self.usable_until_s

    def answered(self, verdict: PersonAnswer, *, approves: bool) -> ApprovalRecord:
        """Returns the record with one person's answer. It is approved once every demanded role is answered for."""
        changed = self._replace(given=(*self.given, verdict), unrecorded=GIVEN if approves else REFUSED)
        if not approves:
            return changed.moved(ApprovalState.REFUSED)
        if changed.open_roles:
            return changed._replace(revision=self.revision + 1)
        lasts_s = self.within_s if self.valid_s is None else self.valid_s
        return changed._replace(usable_until_s=verdict.at_s + lasts_s).moved(ApprovalState.APPROVED)

    def moved(self, state: ApprovalState) -> ApprovalRecord:
        """Returns the next revision, in another state. Raises ValueError for a move that MOVES does not have."""
        if state not in MOVES[self.state]:
            raise ValueError(f"an approval that is {self.state} cannot become {state}")
        return self._replace(state=state, revision=self.revision + 1)

    @property
    def facts(self) -> dict[str, object]:
        """Returns the members of its control records. Arguments are given by their hash."""
        facts: dict[str, object] = {
            "approval": self.name,
            "chain": [principal.name for principal in self.caller.chain],
            "object": self.object_name,
            "action": self.questions[0].action,
            "args_hash": self.args_hash,
            "rules": [demand.rule for demand in self.demands],
            "roles": list(dict.fromkeys(demand.role for demand in self.demands)),
            "call": self.decision_id,
        }
        if self.given:
            last = self.given[-1]
            facts |= {"principal": last.name, "answered_for": list(last.roles), "reason": last.reason}
        return facts

    @property
    def evidence(self) -> dict[str, object]:
        """Returns the members of the record of the decision that uses it."""
        return {"id": self.name, "by": [verdict.name for verdict in self.given]}


APPROVALS: Final = RecordKind("a request for approval", record_codec(ApprovalRecord), key="approvals", is_work=False)
