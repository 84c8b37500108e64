"""Asks people for approval of calls that policy allows only with one.

    approval_record.py   one request for approval: its states, what it is bound to, who answered
    approvals.py         requires approvals of calls, and takes the answers

`Stages.carry_out` requires an approval after a call's arguments are checked, and uses it before the decision is
recorded. Policy rows demand approvals (`vocabulary.ApprovalTerms`).
"""

from sidecar.gateway.approvals.approval_record import APPROVALS, ApprovalRecord, ApprovalState, Approver, PersonAnswer
from sidecar.gateway.approvals.approvals import ApprovalError, Approvals, Outcome, ended_without

__all__ = [
    "APPROVALS", "ApprovalError", "ApprovalRecord", "ApprovalState", "Approvals", "Approver", "Outcome", "PersonAnswer",
    "ended_without",
]  # fmt: skip
