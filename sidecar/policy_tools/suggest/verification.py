"""Verifies that a suggestion allows exactly the recorded use, and what it reports as widened.

Nothing is printed before this holds. The rules, roles and sets that `load_policy` reads are expanded over all known
names, and compared with the evidence.
"""

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from sidecar.policy import PolicySource, load_policy
from sidecar.policy_tools.catalogue import Known
from sidecar.policy_tools.suggest.evidence import Triple, UsageEvidence
from sidecar.policy_tools.suggest.suggestion import Suggestion


class ProofFailed(Exception):
    """The suggestion does not have the intended meaning, which is a bug in the tool."""


def read_back(files: Mapping[str, str], models: Path, suggestion: Suggestion) -> None:
    """Checks the terms and the deny rows of `files`. Raises ProofFailed if they are not those of the suggestion,
    PolicyError if the files are not a valid policy."""
    source = _loaded(files, models)
    said = {(rule.id, rule.terms.stated) for rule in suggestion.rules}
    rules = [rule for rule in source.rules if rule.effect == "allow"]
    read = {(r.id, (r.when, r.expires_at, r.max_calls_per_hour, r.per, r.approval)) for r in rules}
    denies = {(rule.id, rule.when, rule.expires_at) for rule in source.rules if rule.effect == "deny"}
    if said != read or denies != {(rule.id, rule.when, rule.expires_at) for rule in suggestion.carried.denies}:
        raise ProofFailed("the terms that are read back are not those that were suggested")


def prove(files: Mapping[str, str], models: Path, suggestion: Suggestion, evidence: UsageEvidence, known: Known) -> int:
    """Checks that `files`, of a suggestion without terms, allow exactly the used and the widened triples. Returns the
    number of triples that were compared. Raises ProofFailed with the first wrong one, PolicyError if the files are not
    a valid policy."""
    widened = {
        Triple(rule.kind, *cell)
        for rule in suggestion.rules
        for cell in product(rule.subjects, rule.widened, rule.actions)
    }
    allowed, expected = _allowed(_loaded(files, models), known), evidence.traces.keys() | widened
    for word, wrong in (("does not allow", expected - allowed), ("allows", allowed - expected)):
        if wrong:
            raise ProofFailed(f"the suggestion {word} {min(wrong)}, and {len(wrong) - 1} more")
    actions = {triple.action for triple in evidence.traces}
    return len(known.subjects) * len(known.objects) * len(actions)


def _loaded(files: Mapping[str, str], models: Path) -> PolicySource:
    with TemporaryDirectory(prefix="sidecar-suggest-") as folder:
        for name, text in files.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        return load_policy(models, Path(folder))


def _allowed(source: PolicySource, known: Known) -> set[Triple]:
    """Returns every triple of known names that some rule matches. Raises ProofFailed for a rule that is not a plain
    allow row."""
    members, elements = source.roles.contents(), source.sets.contents()
    allowed: set[Triple] = set()
    for rule in source.rules:
        if rule.effect != "allow" or rule.when or rule.expires_at is not None or rule.shadow:
            raise ProofFailed(f"{rule.id} is more than an allow row")
        subjects = members[rule.subject] if rule.subject.startswith("role:") else (rule.subject,)
        objects = elements[rule.object] if rule.object.startswith("set:") else known.fitting(rule.object)
        names = [name for name in subjects if not name.startswith("role:")]
        things = [name for name in objects if not name.startswith("set:")]
        allowed.update(Triple(rule.kind, *cell) for cell in product(names, things, rule.actions))
    return allowed
