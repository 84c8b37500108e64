"""Loads models and rows, or reports everything that is wrong with them.

`load_policy` reads every file, checks every row, and either returns one `PolicySource` or raises `PolicyError` with all
faults. It reads files and nothing else: no clock, no network.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Final

from sidecar.errors import Fault, PolicyError
from sidecar.policy.builder import MAX_ROWS, Place, PolicyBuilder
from sidecar.policy.compiler import plan_of
from sidecar.policy.conditions import Condition
from sidecar.policy.expression import written
from sidecar.policy.faults import SourceLine, meant, shown
from sidecar.policy.files import KINDS, PolicyFile, leads_out, policy_files, read_text
from sidecar.policy.matching import Index, index_of
from sidecar.policy.model import MAX_MODEL_CHARS, PRIORITY, Model, guardrail_model, parse_model
from sidecar.policy.patterns import file_matches
from sidecar.policy.roles import MAX_DEPTH, RoleLinks
from sidecar.policy.row_readers import LinkReader, RuleReader, belongs
from sidecar.policy.rows import CsvRow, parse_rows
from sidecar.policy.table import LIMITED, RowTable
from sidecar.policy.yaml_rows import parse_yaml
from sidecar.settings.policy import PolicyScope
from sidecar.vocabulary import PermissionKind, RuleRef

SLOW_ROWS = 500  # from this number on, a conjunct tested on every row is worth a warning
_CHECK_US, _CASBIN_US = 0.5, 20.0  # measured cost per row


@dataclass(frozen=True, slots=True)
class PolicySource:
    """A checked policy. `tables` are its rows, `indexes` the indexes over them, `conditions` the compiled `when` by
    text; `domains` are the roles by domain, where a model has domains, and `roles` are then all of them together.

    `revision` is the SHA-256 (hex) of what is decided on: models, rules with their ids and notes, roles and sets. It
    does not depend on file names, the order of rows (except under the effect `priority`), or comments."""

    models: Mapping[PermissionKind, Model]
    tables: Mapping[PermissionKind, RowTable]
    indexes: Mapping[PermissionKind, Index]
    roles: RoleLinks
    sets: RoleLinks
    domains: Mapping[str, RoleLinks]
    conditions: Mapping[str, Condition]
    revision: str
    warnings: tuple[Fault, ...] = ()

    @property
    def rules(self) -> Iterator[RuleRef]:
        """All rules, kind by kind, in the order of their files; each is created on access."""
        return chain.from_iterable(self.tables[kind] for kind in PermissionKind if kind in self.tables)

    def limited(self, most: int) -> tuple[RuleRef, ...]:
        """Return up to `most` rows that have a limit; a rule may have several."""
        rows = (
            (table, row) for table in self.tables.values() for row, bits in enumerate(table.flags) if bits & LIMITED
        )
        return tuple(table.rule(row) for table, row in islice(rows, most))


NO_IDS: Final[Mapping[str, str]] = {}


def load_policy(
    models: Path,
    policies: Path,
    *,
    scopes: Sequence[PolicyScope] = (),
    names: frozenset[str] | None = None,
    agent_ids: Mapping[str, str] = NO_IDS,
) -> PolicySource:
    """Load the policy in two folders. `names` are the existing upstreams, if rows are checked against them; `agent_ids`
    maps agents' UUIDs to their names.

    Raises PolicyError with every fault; suspicious rows that are valid are reported in `warnings`."""
    draft = PolicyBuilder(scopes, names, agent_ids)
    _read_models(models, draft)
    for file in policy_files(policies, draft.faults):
        _read_file(file, draft)
    if not any(map(len, draft.tables.values())) and not draft.faults.errors:
        # Threats K1, K14: an empty policy is far more often a broken mount or a truncated file than intended.
        draft.faults.whole("P004", "no rule in any file", str(policies), "write at least one p row")
    links = {group: _links(group, draft) for group in ("g", "g2")}
    _check_doubles(draft)
    _warn_empty_sets(links["g2"][""], draft)
    _warn_slow_parts(draft, models)
    if draft.faults.errors:
        raise PolicyError(sorted(draft.faults.errors, key=lambda fault: (fault.file, fault.line, fault.column)))
    return _source(draft, links)


def _source(draft: PolicyBuilder, links: Mapping[str, Mapping[str, RoleLinks]]) -> PolicySource:
    for kind, table in draft.tables.items():
        for facet in plan_of(draft.models[kind]).index:
            table.column(facet.column)  # adds its texts, which must exist before all texts are sorted
    moved = draft.texts.sort()
    for table in draft.tables.values():
        table.move(moved)
    indexes = {kind: index_of(draft.models[kind], table) for kind, table in draft.tables.items()}
    return PolicySource(
        models=draft.models,
        tables=draft.tables,
        indexes=indexes,
        roles=links["g"][""],
        sets=links["g2"][""],
        domains={domain: found for domain, found in links["g"].items() if domain},
        conditions=draft.conditions,
        revision=_revision(draft, indexes),
        warnings=tuple(draft.faults.warnings),
    )


def _revision(draft: PolicyBuilder, indexes: Mapping[PermissionKind, Index]) -> str:
    digest = sha256()
    for kind, model in sorted(draft.models.items()):
        parts = (kind.value, model.request, model.columns, model.groups, model.by_domain, model.effect, model.matcher)
        digest.update(repr(parts).encode())
        for said in _said(draft.tables[kind], indexes[kind], in_order=model.effect == PRIORITY):
            digest.update(said.encode())
    for group in ("g", "g2"):
        digest.update(repr(sorted(draft.links[group])).encode())
    return digest.hexdigest()


def _said(table: RowTable, index: Index, *, in_order: bool) -> Iterator[str]:
    """Yield the content of the rows with their ids and notes: in file order, or in an order independent of it."""
    if in_order:
        rows: Iterable[int] = range(len(table))
    else:  # nearly sorted already if the index is by subject and object
        rows = sorted(index.rows, key=lambda row: (table.sub[row], table.obj[row]))
    for _, same in groupby(rows, lambda row: (table.sub[row], table.obj[row])):
        told = [f"{table.content(row)}\x1e{_noted(table, row)}\n" for row in same]
        yield "".join(told if in_order else sorted(told))


def _noted(table: RowTable, row: int) -> str:
    notes = table.notes.get(row)
    return "" if notes is None else repr(notes[:5])


def _read_models(folder: Path, draft: PolicyBuilder) -> None:
    draft.add_model(guardrail_model())
    known = {f"{kind.value}.conf": kind for kind in KINDS}
    if folder.is_dir():
        for path in sorted(folder.iterdir()):
            if path.name not in known and not path.name.startswith("."):
                draft.faults.whole("P002", "no model has this name", str(path), meant(path.name, known))
    for name, kind in known.items():
        path = folder / name
        text = None if leads_out(path, folder, draft.faults) else read_text(path, draft.faults)
        if text is not None and len(text) > MAX_MODEL_CHARS:
            draft.faults.whole("P201", f"longer than {MAX_MODEL_CHARS} characters", str(path))
        elif text is not None:
            model = parse_model(kind, str(path), text, draft.faults)
            if model is not None:
                draft.add_model(model)


def _warn_slow_parts(draft: PolicyBuilder, folder: Path) -> None:
    """Warn about a conjunct that is tested on every row, with its cost."""
    for kind, model in draft.models.items():
        plan, rows = plan_of(model), len(draft.tables[kind])
        if plan.index and not plan.foreign:
            continue
        file = str(folder / f"{kind.value}.conf")
        for part in plan.foreign:
            what = "each row that the rest leaves" if plan.index else f"each of {rows} rows"
            message = f"not compiled, so pycasbin is asked about {what}, {_CASBIN_US:.0f} µs a row: {written(part)}"
            draft.faults.warn(
                "P207", message, SourceLine(file, 0, ""), hint="== != in && || ! and our functions are compiled"
            )
        if not plan.index and rows >= SLOW_ROWS:
            spent_us = rows * (_CHECK_US if plan.checks else _CASBIN_US)
            message = f"no part can be looked up: each question walks {rows} rows, some {spent_us / 1000:.1f} ms"
            hint = "compare one field of the request with one column, as in the shipped models"
            draft.faults.warn("P206", message, SourceLine(file, 0, ""), hint=hint)


def _read_file(file: PolicyFile, draft: PolicyBuilder) -> None:
    text = read_text(file.path, draft.faults)
    if text is None:
        return
    name = str(file.path)
    scopes = [scope for scope in draft.scopes if file_matches(file.relative, scope.files)]
    readers = {kind: RuleReader(draft, scopes, name, model) for kind, model in draft.models.items()}
    links = LinkReader(draft, scopes, name)
    rows: Iterable[tuple[PermissionKind | None, CsvRow]]
    if file.is_yaml:
        columns = {kind: model.columns for kind, model in draft.models.items()}
        rows = parse_yaml(name, text, draft.faults, columns, draft.agent_ids)
    else:
        reader: LinkReader | RuleReader | None = links if file.kind is None else readers.get(file.kind)
        rows = ((file.kind, row) for row in parse_rows(name, text, draft.faults, reader.take if reader else None))
    for kind, row in rows:
        draft.rows += 1
        if draft.rows > MAX_ROWS:
            draft.faults.error("P001", f"more than {MAX_ROWS} rows in all", row.line)
            return
        if kind is None and row.type == "p":
            texts = [field.text for field in row.fields[:2]]
            hint = (belongs(row, *texts) if len(texts) == 2 else "") or "p rows go into <kind>.csv"
            draft.faults.error("P111", "roles.csv holds only g and g2 rows", row.line, hint=hint)
        elif kind is None:
            links.read(row)
        elif row.type != "p":
            draft.faults.error("P111", f"a {row.type} row belongs into roles.csv", row.line, hint="move it there")
        elif kind in readers:  # else the model itself has the fault
            readers[kind].read(row)


def _check_doubles(draft: PolicyBuilder) -> None:
    """Report duplicates: a rule without an id is named by its content, so each may exist only once."""
    for table in draft.tables.values():
        first: dict[tuple[int, int, int], int] = {}
        for row, said in enumerate(zip(table.sub, table.obj, table.shape, strict=True)):
            if first.setdefault(said, row) != row and not (_named(table, row) or _named(table, first[said])):
                if draft.faults.is_full:
                    return
                file, number = _place_of(table, first[said])
                message = f"the same rule stands at {file}:{number} already"
                draft.faults.error("P108", message, draft.line_at(_place_of(table, row)), hint="take one away")


def _named(table: RowTable, row: int) -> bool:
    return row in table.notes and bool(table.notes[row].id)


def _place_of(table: RowTable, row: int) -> Place:
    return table.files[table.file[row]], table.line[row]


def _links(group: str, draft: PolicyBuilder) -> Mapping[str, RoleLinks]:
    """Return the links by domain, "" for all of them together. Reports cycles and chains that are too long."""
    found = draft.links[group]
    links = RoleLinks.of((member, container) for member, container, _ in found)
    cycle = links.cycle()
    if cycle:
        place = next(at for pair, at in found.items() if pair[:2] == cycle[:2])
        message = "a cycle: " + " in ".join(cycle)
        draft.faults.error("P301", message, draft.line_at(place), hint="take one of these rows away")
        return {"": RoleLinks()}
    chains = links.chains()
    for (member, container, _), place in found.items():
        if chains[member] == MAX_DEPTH + 1 and chains[container] == MAX_DEPTH:
            message = f"{shown(member)} is at the bottom of more than {MAX_DEPTH} levels"
            draft.faults.error("P302", message, draft.line_at(place), hint="Casbin would silently not follow them all")
    by_domain: dict[str, list[tuple[str, str]]] = {}
    for member, container, domain in found:
        if domain:
            by_domain.setdefault(domain, []).append((member, container))
    return {"": links} | {domain: RoleLinks.of(pairs) for domain, pairs in by_domain.items()}


def _warn_empty_sets(sets: RoleLinks, draft: PolicyBuilder) -> None:
    filled = {container for containers in sets.parents.values() for container in containers}
    texts = draft.texts.texts
    empty = {number for number, text in enumerate(texts) if text.startswith("set:") and text not in filled}
    for table in draft.tables.values():
        for row, number in enumerate(table.obj):
            if number in empty:
                hint = meant(texts[number], filled) or "fill it with g2 rows"
                line = SourceLine(*_place_of(table, row), "")
                draft.faults.warn("P305", f"nothing is in {shown(texts[number])}", line, hint=hint)
