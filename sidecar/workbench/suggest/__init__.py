"""Which are the fewest rules that allow what agents were recorded to do, and nothing else that is known?

evidence → who used what, from audit lines          known → what else exists
grid → the used cells, alike ones as one            pool, cover, exact → the fewest boxes around them
shape → each box as a rule, as cheaply as it goes   naming → what roles, sets and rules are called
suggestion → all of it, with its records            present, terms → what the present policy lends to it
render → files and data                             proof → read back, it says exactly that
suite → tests that hold it to that
"""

from sidecar.workbench.suggest.evidence import Evidence, Wanted
from sidecar.workbench.suggest.known import Known, names_in
from sidecar.workbench.suggest.present import Present
from sidecar.workbench.suggest.proof import ProofFailed, prove, read_back
from sidecar.workbench.suggest.suggestion import Suggested, Suggestion, suggest
from sidecar.workbench.suggest.suite import SUITE_FILE, suite_text

__all__ = [
    "SUITE_FILE",
    "Evidence",
    "Known",
    "Present",
    "ProofFailed",
    "Suggested",
    "Suggestion",
    "Wanted",
    "names_in",
    "prove",
    "read_back",
    "suggest",
    "suite_text",
]
