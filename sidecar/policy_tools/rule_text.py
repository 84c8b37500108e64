"""Formats rules, names, and times, in the same way for every tool."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime

from sidecar.policy.grammar import NONE, ONCE, REQUIRED, USE, USED, duration_text
from sidecar.settings.yaml_scalars import DoubtfulScalarError, meaning_of
from sidecar.vocabulary import ApprovalTerms, RuleRef

# Texts that YAML reads as plain strings, also inside [ ] and { }.
_PLAIN = re.compile(r"[A-Za-z0-9_./(](?:[A-Za-z0-9_./:@+()=<>&|!?*'\-]| (?=[^#]))*")
_QUOTED_IN_CSV = re.compile(r'[,"]|^[ \t]|[ \t]$')


def moment(at_s: float) -> str:
    """Returns a time in seconds since the epoch as RFC 3339 in UTC, like in rows."""
    return datetime.fromtimestamp(at_s, UTC).isoformat().replace("+00:00", "Z")


def place(rule: RuleRef) -> str:
    """Returns `policies/agent_to_tool.csv:12`; "" for a rule without a file."""
    return f"{rule.file}:{rule.line}" if rule.file else ""


def cut(items: Sequence[str], most: int, more: str = "and {} more") -> list[str]:
    """Returns the first `most` items and, as a last one, `and 7 more`; all items if there is at most one more."""
    rest = len(items) - most
    return [*items] if rest <= 1 else [*items[:most], more.format(rest)]


def columns(rule: RuleRef) -> dict[str, str]:
    """Returns the fields of a rule by the columns of the built-in models."""
    actions = list(rule.actions)
    if set(USED) <= set(actions):
        actions = [USE, *(action for action in actions if action not in USED)]
    return {
        "sub": rule.subject,
        "obj": rule.object,
        "act": "|".join(actions),
        "expires_at": NONE if rule.expires_at is None else moment(rule.expires_at),
        "max_calls_per_hour": NONE if rule.max_calls_per_hour is None else str(rule.max_calls_per_hour),
        "when": rule.when or NONE,
        "eft": rule.effect,
    }


def approval_notes(terms: ApprovalTerms) -> dict[str, str]:
    """Returns the notes of a row that demands an approval with these terms, by key."""
    valid = ONCE if terms.valid_s is None else duration_text(terms.valid_s)
    notes = {"approval": terms.role, "within": duration_text(terms.within_s), "valid": valid}
    return notes | ({"approval_reason": REQUIRED} if terms.reason else {})


def approval_text(terms: ApprovalTerms) -> str:
    """Returns `role:oncall, within 15m, valid once, with a reason`."""
    notes = approval_notes(terms)
    valid = "valid once" if terms.valid_s is None else f"valid for {notes['valid']}"
    words = [terms.role, f"within {notes['within']}", valid]
    return ", ".join([*words, "with a reason"] if terms.reason else words)


def csv_quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def csv_field(text: str) -> str:
    return csv_quoted(text) if _QUOTED_IN_CSV.search(text) else text


def csv_row(rule: RuleRef) -> str:
    return ", ".join(("p", *map(csv_field, columns(rule).values())))


def scalar(text: str) -> str:
    """Returns a text as YAML: plain if it is unambiguous, otherwise quoted."""
    if _PLAIN.fullmatch(text) and ": " not in text and not text.endswith((":", " ")) and _is_text(text):
        return text
    if '"' not in text and "\\" not in text and text.isprintable():
        return f'"{text}"'
    if text.isprintable():
        return "'" + text.replace("'", "''") + "'"
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\t", "\\t") + '"'


def _is_text(text: str) -> bool:
    try:
        return meaning_of(text) == text
    except DoubtfulScalarError:
        return False
