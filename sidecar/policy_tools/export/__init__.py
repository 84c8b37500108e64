"""Exports models, rows and functions for plain pycasbin.

The export is a folder for evaluation without a sidecar: for each kind a model and rows that Casbin's own file adapter
reads, and `enforce.py`, which provides our five functions.

That adapter does not support quotes, and interprets brackets and commas (threats K7). Rows therefore contain no
conditions, only `when:<digest>`, with the texts in conditions.json; the characters `% , ( ) [ ]` in a name are
percent-encoded (`%2C`). `enforce.py` reverses both. Shadow rules change nothing, and are left out.
"""

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import orjson

from sidecar.errors import PolicyError
from sidecar.policy import PolicySource
from sidecar.policy.faults import Faults
from sidecar.policy.files import KINDS, read_text
from sidecar.policy.grammar import NONE
from sidecar.policy.model import DOMAIN, PRIORITY, guardrail_model
from sidecar.policy_tools.rule_text import columns, place
from sidecar.vocabulary import PermissionKind, RuleRef

_TAKEN_BY_CASBIN = '%,()[]"'
_ENCODED = str.maketrans({character: f"%{ord(character):02X}" for character in _TAKEN_BY_CASBIN})


class Exported(NamedTuple):
    """The files by name, the number of exported rules, and the shadow rules left out."""

    files: Mapping[str, bytes]
    rules: int
    shadows: tuple[str, ...]


def export(source: PolicySource, models: Path) -> Exported:
    """Export the policy for plain pycasbin. Raises PolicyError for models that cannot be exported equivalently."""
    _check(source, models)
    rows: dict[PermissionKind, list[tuple[RuleRef, list[str]]]] = {kind: [] for kind in PermissionKind}
    shadows: list[str] = []
    for rule in source.rules:
        if rule.shadow:
            shadows.append(rule.id)
        else:
            texts = columns(rule) | {
                "sub": encoded(rule.subject),
                "obj": encoded(rule.object),
                "act": "|".join(rule.actions),
                "when": _name(source.conditions[rule.when].digest) if rule.when else NONE,
            }
            rows[rule.kind].append((rule, [texts[column] for column in source.models[rule.kind].columns]))
    found: dict[str, bytes] = {"enforce.py": files(__package__).joinpath("enforce.py.txt").read_bytes()}
    for kind in PermissionKind:
        found[f"{kind.value}.conf"] = _conf(kind, models).encode()
        found[f"{kind.value}.csv"] = _csv(kind, [texts for _, texts in rows[kind]], source).encode()
    found["conditions.json"] = _json(
        {
            _name(condition.digest): {"text": text, "reads": [list(path) for path in condition.paths]}
            for text, condition in source.conditions.items()
        }
    )
    found["rules.json"] = _json({kind.value: [_said(rule, texts) for rule, texts in rows[kind]] for kind in rows})
    return Exported(found, sum(map(len, rows.values())), tuple(dict.fromkeys(shadows)))


def _check(source: PolicySource, models: Path) -> None:
    """Refuse models with priorities or domains, which need more than rows and roles."""
    faults = Faults()
    for kind, model in source.models.items():
        if DOMAIN in (*model.request, *model.columns) or model.effect == PRIORITY:
            hint = "only models without domains and without priority can be exported"
            faults.whole("P208", "this model cannot be exported", str(models / f"{kind.value}.conf"), hint)
    if faults.errors:
        raise PolicyError(faults.errors)


def encoded(name: str) -> str:
    """Encode a name so that Casbin's file adapter leaves it unchanged."""
    return name.translate(_ENCODED)


def _name(digest: str) -> str:
    return f"when:{digest[:16]}"


def _conf(kind: PermissionKind, models: Path) -> str:
    if kind in KINDS:
        faults = Faults()
        text = read_text(models / f"{kind.value}.conf", faults)
        if text is None:
            raise PolicyError(faults.errors)
        return text
    model = guardrail_model()
    groups = "".join(f"{group} = _, _\n" for group in model.groups)
    return (
        "# Deny rules asked of all callers.\n"
        "[request_definition]\nr = sub, obj, act, ctx\n\n"
        f"[policy_definition]\np = {', '.join(model.columns)}\n\n"
        f"[role_definition]\n{groups}\n"
        f"[policy_effect]\ne = {model.effect}\n\n"
        f"[matchers]\nm = {model.matcher}\n"
    )


def _csv(kind: PermissionKind, rows: list[list[str]], source: PolicySource) -> str:
    lines = [", ".join(("p", *row)) for row in rows]
    for group, links in (("g", source.roles), ("g2", source.sets)):
        if group in source.models[kind].groups:
            pairs = ((member, container) for member, above in links.parents.items() for container in above)
            lines += [f"{group}, {encoded(member)}, {encoded(container)}" for member, container in pairs]
    return "".join(f"{line}\n" for line in (f"# {kind.value}, revision {source.revision}", *lines))


def _said(rule: RuleRef, texts: list[str]) -> dict[str, object]:
    notes = {name: getattr(rule, name) for name in ("id", "owner", "reason", "per")}
    return {"row": texts, **notes, "place": place(rule)}


def _json(value: object) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
