"""Suggests the fewest rules that allow recorded use and nothing else.

evidence                   who used what, from audit records
catalogue                  what else is known to exist
usage_grid                 the used cells, with equal ones merged
maximal_boxes, box_cover, exact_cover
                           the fewest boxes around them
rule_shape                 each box as a rule, in its shortest form
naming                     names of roles, sets and rules
suggestion                 the whole suggestion, with its records
current_policy, terms      what the present policy contributes to it
render                     files and data
verification               reads the result back and verifies it
policy_tests               tests that pin it
"""

from sidecar.policy_tools.suggest.catalogue import Known, names_in
from sidecar.policy_tools.suggest.current_policy import Present
from sidecar.policy_tools.suggest.evidence import SuggestQuery, UsageEvidence
from sidecar.policy_tools.suggest.policy_tests import SUITE_FILE, suite_text
from sidecar.policy_tools.suggest.suggestion import Suggested, Suggestion, suggest
from sidecar.policy_tools.suggest.verification import ProofFailed, prove, read_back

__all__ = [
    "SUITE_FILE",
    "Known",
    "Present",
    "ProofFailed",
    "SuggestQuery",
    "Suggested",
    "Suggestion",
    "UsageEvidence",
    "names_in",
    "prove",
    "read_back",
    "suggest",
    "suite_text",
]
