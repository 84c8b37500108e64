"""Exports models, rows and functions for plain pycasbin.

The export is a folder for evaluation without a sidecar: for each kind a model and rows that Casbin's own file adapter
reads, and `enforce.py`, which provides the five functions of the sidecar's models.

That adapter does not support quotes, and interprets brackets and commas. Rows therefore contain no conditions, only
`when:<digest>`, with the texts in conditions.json; the characters `% , ( ) [ ] "` in a name are percent-encoded
(`%2C`). `enforce.py` reverses both.

Shadow rules change nothing and are omitted. Plain pycasbin cannot ask a person, so calls that a row allows only with an
approval are denied: by a deny row with the same condition, because another row could allow the call. If the condition
fails, the row denies.

Casbin models of other forms, and their rows, are exported byte for byte; several files of rows become one. Names,
attributes and the settings that a Casbin program makes in code are in casbin.json, which `enforce.py` reads.
"""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import orjson

from sidecar.errors import PolicyError
from sidecar.policy import PolicySource
from sidecar.policy.faults import Faults
from sidecar.policy.files import COMMON_MODEL, KINDS, POLICY, read_text
from sidecar.policy.grammar import NONE
from sidecar.policy.model import ALLOW_AND_DENY, ALLOW_OVERRIDE, DOMAIN, guardrail_model
from sidecar.policy.rows import MAX_FILE_BYTES
from sidecar.policy.stock.expression import text_fields
from sidecar.policy.stock.model import StockModel
from sidecar.policy.stock.reading import EXPIRES_AT, LIMIT, WHEN, path_of
from sidecar.policy_tools.casbin_calls import is_asked
from sidecar.policy_tools.diff.terms import approvable_actions
from sidecar.policy_tools.rule_text import columns, place
from sidecar.settings.reading import read_bounded
from sidecar.vocabulary import PermissionKind, RuleRef

_TAKEN_BY_CASBIN = '%,()[]"'
_ENCODED = str.maketrans({character: f"%{ord(character):02X}" for character in _TAKEN_BY_CASBIN})


class Exported(NamedTuple):
    """The files by name, the number of exported rules, the ids of the omitted shadow rules, and those of the rules
    whose calls are denied because they demand an approval."""

    files: Mapping[str, bytes]
    rules: int
    shadows: tuple[str, ...]
    denied: tuple[str, ...] = ()


def export(source: PolicySource, models: Path) -> Exported:
    """Exports the policy for plain pycasbin. `models` is the folder of the sidecar's own models. Raises PolicyError for
    models that cannot be exported equivalently, or cannot be read."""
    _check(source, models)
    rows: dict[PermissionKind, list[tuple[RuleRef, list[str]]]] = {kind: [] for kind in PermissionKind}
    shadows: list[str] = []
    denied: list[str] = []
    count = 0
    for rule in source.own_rules:
        if rule.shadow:
            shadows.append(rule.id)
            continue
        if rule.approval is not None:  # the deny row comes first, in case the order decides
            denied.append(rule.id)
            waiting = tuple(sorted(approvable_actions(rule)))
            rows[rule.kind].append((rule, _row(rule._replace(actions=waiting, effect="deny"), source)))
        rows[rule.kind].append((rule, _row(rule, source)))
        count += 1
    found: dict[str, bytes] = {"enforce.py": files(__package__).joinpath("enforce.py.txt").read_bytes()}
    for kind in source.models:
        found[f"{kind.value}.conf"] = _conf(kind, models).encode()
        found[f"{kind.value}.csv"] = _csv(kind, [texts for _, texts in rows[kind]], source).encode()
    found["conditions.json"] = _json(
        {
            _name(condition.digest): {"text": text, "reads": [list(path) for path in condition.paths]}
            for text, condition in source.conditions.items()
        }
    )
    ids = {kind.value: [_said(rule, texts) for rule, texts in rows[kind]] for kind in source.models}
    kinds: dict[str, dict[str, object]] = {}
    for (model, policy), decided in _stock_files(source).items():
        first = source.stock[decided[0]].source
        found[model] = read_bounded(Path(first.file), MAX_FILE_BYTES)
        found[policy] = _joined([read_bounded(Path(file), MAX_FILE_BYTES) for file in first.names])
        for kind in decided:
            table = source.stock[kind]
            about = {"model": model, "policy": policy, "use": table.source.model.suffix}
            kinds[kind.value] = {**about, "fields": _fields(table.source.model, source)}
            if is_asked(source, kind):
                ids[kind.value] = [_said(rule, [*row]) for rule, row in zip(table, table.source.rows, strict=True)]
    if kinds:
        found["casbin.json"] = _json({"kinds": kinds, **_asked(source)})
    found["rules.json"] = _json(ids)
    stock = {id(table.source): len(table) for table in source.stock.values()}
    return Exported(found, count + sum(stock.values()), tuple(dict.fromkeys(shadows)), tuple(dict.fromkeys(denied)))


def _row(rule: RuleRef, source: PolicySource) -> list[str]:
    texts = columns(rule) | {
        "sub": encoded(rule.subject),
        "obj": encoded(rule.object),
        "act": "|".join(rule.actions),
        "when": _name(source.conditions[rule.when].digest) if rule.when else NONE,
    }
    return [texts[column] for column in source.models[rule.kind].columns]


def _stock_files(source: PolicySource) -> dict[tuple[str, str], list[PermissionKind]]:
    """Returns the names of the files for each Casbin model of another form and for its rows, with the kinds that it
    decides."""
    groups: dict[tuple[str, ...], list[PermissionKind]] = {}
    for kind, table in source.stock.items():
        groups.setdefault((table.source.file, *table.source.names), []).append(kind)
    if len(groups) == 1:
        return {(COMMON_MODEL, f"{POLICY}.csv"): kinds for kinds in groups.values()}
    return {(f"{kinds[0].value}.conf", f"{kinds[0].value}.csv"): kinds for kinds in groups.values()}


def _fields(model: StockModel, source: PolicySource) -> dict[str, str]:
    """Returns for each field of a request the name of its text (`sub`), otherwise the path of its value."""
    texts = text_fields(model.request)
    return {name: texts.get(name) or path_of(name, source.casbin) or "" for name in model.request}


def _joined(rows: Sequence[bytes]) -> bytes:
    """Returns the bytes of one file unchanged; those of several one after the other, each with a line break at its
    end."""
    if len(rows) == 1:
        return rows[0]
    return b"".join(raw + b"\n" * (raw[-1:] not in (b"", b"\n")) for raw in rows)


def _asked(source: PolicySource) -> dict[str, object]:
    casbin = source.casbin
    return {
        "names": casbin.names.model_dump(),
        "roles": {key: said.model_dump(exclude_none=True) for key, said in casbin.roles.items()},
        "request": dict(casbin.request),
        "attributes": dict(source.attributes.entries),
    }


def _check(source: PolicySource, models: Path) -> None:
    """Raises PolicyError for models with domains, whose roles differ from caller to caller also in guardrails, for
    columns that plain pycasbin ignores, and for approvals in models in which no row denies."""
    faults = Faults()
    for kind, model in source.models.items():
        if DOMAIN in (*model.request, *model.columns):
            hint = "only models without domains can be exported"
            faults.whole("P208", "this model cannot be exported", str(models / f"{kind.value}.conf"), hint)
    for rule in source.own_rules:
        if rule.approval is not None and not rule.shadow and source.models[rule.kind].effect == ALLOW_OVERRIDE:
            message, hint = f"what waits for the approval of {rule.id} cannot be denied", f"write e = {ALLOW_AND_DENY}"
            faults.whole("P208", message, str(models / f"{rule.kind.value}.conf"), hint)
            break
    for table in source.stock.values():
        if own := [name for name in (EXPIRES_AT, LIMIT, WHEN) if name in table.source.model.columns]:
            message = f"plain pycasbin would not obey {', '.join(own)}"
            faults.whole("P208", message, table.source.file, "only the sidecar reads these columns")
    if faults.errors:
        raise PolicyError(faults.errors)


def encoded(name: str) -> str:
    """Encodes a name so that Casbin's file adapter leaves it unchanged."""
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
