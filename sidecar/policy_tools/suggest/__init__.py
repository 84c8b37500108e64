"""Suggests the fewest rules that allow recorded use and nothing else.

evidence       who used what, from audit records
grid           the used cells, with equal ones merged, and the boxes that cannot grow; box_cover, the fewest around all
rule_shape     each box as a rule, in its shortest form
suggestion     the whole suggestion, with its names and records
terms          what the present policy contributes to it
render         files and data
verification   reads the result back and verifies it; tests that pin it
"""

from sidecar.policy_tools.suggest.evidence import SuggestQuery, UsageEvidence
from sidecar.policy_tools.suggest.suggestion import Suggested, Suggestion, suggest
from sidecar.policy_tools.suggest.terms import Present
from sidecar.policy_tools.suggest.verification import SUITE_FILE, ProofFailed, prove, read_back, suite_text

__all__ = [
    "SUITE_FILE",
    "Present",
    "ProofFailed",
    "SuggestQuery",
    "Suggested",
    "Suggestion",
    "UsageEvidence",
    "prove",
    "read_back",
    "suggest",
    "suite_text",
]
