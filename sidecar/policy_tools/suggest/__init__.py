"""Suggests the fewest rules that allow recorded use and nothing else.

evidence → who used what, from audit lines          known → what else exists
grid → the used cells, alike ones as one            pool, cover, exact → the fewest boxes around them
shape → each box as a rule, as cheaply as it goes   naming → what roles, sets and rules are called
suggestion → all of it, with its records            present, terms → what the present policy lends to it
render → files and data                             proof → read back, it says exactly that
suite → tests that hold it to that
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
