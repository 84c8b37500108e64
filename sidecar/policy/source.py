"""Loads models and rows, or reports all their faults.

`load_policy` reads every file, checks every row, and either returns one `PolicySource` or raises `PolicyError` with all
faults. It reads files and nothing else: no clock, no network.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from heapq import nsmallest
from itertools import chain, groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from sidecar.errors import Fault, PolicyError
from sidecar.policy.attributes import Attributes, load_attributes
from sidecar.policy.builder import MAX_ROWS, Place, PolicyBuilder
from sidecar.policy.compiler import plan_of
from sidecar.policy.conditions import Condition
from sidecar.policy.expression import ForeignNode, written
from sidecar.policy.faults import SourceLine, meant, shown
from sidecar.policy.files import COMMON_MODEL, KINDS, POLICY, PolicyFile, leads_out, policy_files, read_text
from sidecar.policy.matching import Index, index_of
from sidecar.policy.model import (
    MAX_MODEL_CHARS,
    PRIORITY,
    Model,
    ModelEntry,
    guardrail_model,
    is_own,
    model_entries,
    own_model,
)
from sidecar.policy.patterns import file_matches
from sidecar.policy.roles import MAX_DEPTH, RoleLinks
from sidecar.policy.row_readers import LinkReader, RuleReader, belongs
from sidecar.policy.rows import CsvRow, parse_rows
from sidecar.policy.table import RowTable
from sidecar.policy.yaml_rows import parse_yaml
from sidecar.settings.policy import CasbinSettings, Kind, ModelFiles, PolicyScope
from sidecar.settings.shipped_files import shipped
from sidecar.vocabulary import PermissionKind, RuleRef

if TYPE_CHECKING:  # a policy without such models, decided by compiled rules, imports neither these modules nor RE2
    from sidecar.policy.stock.reading import StockReader, StockSource
    from sidecar.policy.stock.table import StockTable

SLOW_ROWS = 500  # from this number on, a conjunct tested on every row is worth a warning
_CHECK_US = 0.5  # measured cost per row


@dataclass(frozen=True, slots=True)
class PolicySource:
    """A checked policy. `tables` are its rows, `indexes` the indexes over them, `conditions` the compiled `when` by
    text; `domains` are the roles by domain, if a model has domains, and `roles` are then those of all domains. `stock`
    are the kinds that Casbin models of other forms decide; `casbin` and `attributes` determine their requests.

    `revision` is the SHA-256 (hex) of models, rules with their ids and notes (without `created_at`), roles and sets;
    with Casbin models also of `casbin` and `attributes`. It does not depend on file names or comments, nor on the order
    of rows, except under the effect `priority` and in Casbin models of other forms."""

    models: Mapping[PermissionKind, Model]
    tables: Mapping[PermissionKind, RowTable]
    indexes: Mapping[PermissionKind, Index]
    roles: RoleLinks
    sets: RoleLinks
    domains: Mapping[str, RoleLinks]
    conditions: Mapping[str, Condition]
    revision: str
    warnings: tuple[Fault, ...] = ()
    stock: Mapping[PermissionKind, StockTable] = field(default_factory=dict)
    casbin: CasbinSettings = field(default_factory=CasbinSettings)
    attributes: Attributes = field(default_factory=Attributes)

    @property
    def rules(self) -> Iterator[RuleRef]:
        """All rules, kind by kind, in the order of their files; each is created on access. Rules of Casbin models have
        the policy's own names."""
        tables: Mapping[PermissionKind, Iterable[RuleRef]] = {**self.tables, **self.stock}
        return chain.from_iterable(tables[kind] for kind in PermissionKind if kind in tables)

    @property
    def own_rules(self) -> Iterator[RuleRef]:
        """The rules of the sidecar's own models, in the form of `rules`."""
        return chain.from_iterable(self.tables[kind] for kind in PermissionKind if kind in self.tables)

    def limited(self, most: int) -> tuple[RuleRef, ...]:
        """Returns up to `most` rows that have a limit; a rule may have several."""
        tables: Iterable[RowTable | StockTable] = (*self.tables.values(), *self.stock.values())
        return tuple(islice((table.rule(row) for table in tables for row in table.limited()), most))

    def ending(self, most: int, after_s: float) -> tuple[RuleRef, ...]:
        """Returns up to `most` rows that expire after a time (seconds since the epoch), the earliest ones."""
        tables: Iterable[RowTable | StockTable] = (*self.tables.values(), *self.stock.values())
        found = ((end_s, row, table) for table in tables for row, end_s in table.ending(after_s))
        return tuple(table.rule(row) for _, row, table in nsmallest(most, found, key=itemgetter(0)))


NO_IDS: Final[Mapping[str, str]] = {}
NO_CASBIN: Final = CasbinSettings()
Models = Path | Mapping[Kind, ModelFiles]


def load_policy(
    models: Models,
    policies: Path,
    *,
    scopes: Sequence[PolicyScope] = (),
    names: frozenset[str] | None = None,
    agent_ids: Mapping[str, str] = NO_IDS,
    casbin: CasbinSettings = NO_CASBIN,
) -> PolicySource:
    """Loads the policy in two folders; `models` may name the files of each kind instead. `names` are the existing
    upstreams, if rows are checked against them; `agent_ids` maps agents' UUIDs to their names; `casbin` are the
    settings of Casbin models.

    Raises PolicyError with all faults (see MAX_FAULTS); suspicious rows that are valid are reported in `warnings`."""
    draft = PolicyBuilder(scopes, names, agent_ids)
    stock = _read_models(models, draft, casbin)
    for file in _files(policies, draft, frozenset(stock.files), casbin.rows):
        _read_file(file, draft, stock)
    for path, readers in stock.files.items():
        if (text := read_text(path, draft.faults)) is not None:
            for reader in readers:
                reader.read(str(path), text)
    sources = [(reader.kinds, reader.finished(casbin)) for reader in stock.readers]
    tables = stock_tables(sources)
    attributes = _attributes(policies, draft) if tables else Attributes()
    filled = any(len(table) for table in draft.tables.values()) or any(len(table) for table in tables.values())
    if not (filled or any(not found.reads_rows for _, found in sources)) and not draft.faults.errors:
        # An empty policy is nearly always a broken mount or a truncated file, and rarely intended.
        draft.faults.whole("P004", "no rule in any file", str(policies), "write at least one p row")
    links = {group: _links(group, draft) for group in ("g", "g2")}
    _check_doubles(draft)
    _warn_empty_sets(links["g2"][""], draft)
    _check_cost(draft, models if isinstance(models, Path) else shipped("models"), casbin)
    if draft.faults.errors:
        raise PolicyError(sorted(draft.faults.errors, key=lambda fault: (fault.file, fault.line, fault.column)))
    source = _source(draft, links)
    if not tables:
        return replace(source, casbin=casbin)
    revision = sha256(f"{source.revision}{_stock_revision(tables, casbin, attributes)}".encode()).hexdigest()
    return replace(source, stock=tables, casbin=casbin, attributes=attributes, revision=revision)


def _files(policies: Path, draft: PolicyBuilder, named: Container[Path], rows: Path | None) -> Iterator[PolicyFile]:
    """Yields the files of rows except those that the settings name. `rows` is the file that an adapter's rows were
    written to; files named `policy.csv` are then a fault."""
    for file in policy_files(policies, draft.faults, named):
        if rows is None or file.is_yaml or file.stem != POLICY:
            yield file
        else:
            message, hint = f"the rows of {COMMON_MODEL} come from policy.source.adapter", "remove one of the two"
            draft.faults.whole("P002", message, str(file.path), hint)
    if rows is not None:
        yield PolicyFile(rows, rows.name, POLICY)


def stock_tables(
    sources: Iterable[tuple[Sequence[PermissionKind], StockSource]],
) -> Mapping[PermissionKind, StockTable]:
    if not sources:
        return {}
    from sidecar.policy.stock.table import StockTable

    return {kind: StockTable(kind, found) for kinds, found in sources for kind in kinds}


def _stock_revision(tables: Mapping[PermissionKind, StockTable], casbin: CasbinSettings, attributes: Attributes) -> str:
    asked = CasbinSettings(**{name: getattr(casbin, name) for name in CasbinSettings.model_fields})
    digest = sha256(repr((asked, sorted(attributes.entries.items()))).encode())
    known = dict[int, str]()  # one policy may decide several kinds
    for kind, table in sorted(tables.items()):
        said = known.get(id(table.source)) or known.setdefault(id(table.source), _stock_digest(table.source))
        digest.update(f"{kind.value} {said}\n".encode())
    return digest.hexdigest()


def _stock_digest(source: StockSource) -> str:
    digest = sha256(repr(source.model).encode())
    digest.update("\n".join(source.rows.texts).encode())
    for column in source.rows.columns:
        digest.update(column.tobytes())
    for key, links in sorted(source.links.items()):
        digest.update(repr((key, sorted(links))).encode())
    return digest.hexdigest()


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
    """Yields the content of the rows with their ids and notes: in file order, or in an order independent of it."""
    if in_order:
        rows: Iterable[int] = range(len(table))
    else:  # nearly sorted already if the index is by subject and object
        rows = sorted(index.rows, key=lambda row: (table.sub[row], table.obj[row]))
    for _, same in groupby(rows, lambda row: (table.sub[row], table.obj[row])):
        told = [f"{table.content(row)}\x1e{_noted(table, row)}\n" for row in same]
        yield "".join(told if in_order else sorted(told))


def _noted(table: RowTable, row: int) -> str:
    notes = table.notes.get(row)
    if notes is None:
        return ""
    return repr(notes[:5]) if notes.approval is None else repr((*notes[:5], tuple(notes.approval)))


@dataclass(slots=True)
class _StockModels:
    """The Casbin models of a policy. `by_stem` are those whose rows are under the policy folder, by the beginning of
    the files' names, None for a model with faults; `files` are the files of rows that the settings name."""

    readers: list[StockReader] = field(default_factory=list)
    by_stem: dict[str, StockReader | None] = field(default_factory=dict)
    files: dict[Path, list[StockReader]] = field(default_factory=dict)

    def add(self, reader: StockReader | None, kind: PermissionKind) -> None:
        if reader is not None:
            reader.kinds.append(kind)
            if reader not in self.readers:
                self.readers.append(reader)


def _read_models(models: Models, draft: PolicyBuilder, casbin: CasbinSettings) -> _StockModels:
    draft.add_model(guardrail_model())
    if isinstance(models, Path):
        return _read_folder(models, draft, casbin)
    found = _StockModels()
    known: dict[object, StockReader | None] = {}
    for kind in KINDS:
        files = models.get(cast(Kind, kind.value))
        if files is None:
            _read_own_model(kind, shipped("models"), draft)
            continue
        key = files.model, files.policy, files.use
        if key not in known:
            known[key] = reader = _stock_reader(files.model, None, files.use, draft, casbin)
            for path in files.policy:
                found.files.setdefault(path.absolute(), []).extend([] if reader is None else [reader])
        found.add(known[key], kind)
    return found


def _read_folder(folder: Path, draft: PolicyBuilder, casbin: CasbinSettings) -> _StockModels:
    found, known = _StockModels(), (*(f"{kind.value}.conf" for kind in KINDS), COMMON_MODEL)
    common = folder / COMMON_MODEL
    try:
        paths = sorted(folder.iterdir()) if folder.is_dir() else []
        shared = [kind for kind in KINDS if common.exists() and not (folder / f"{kind.value}.conf").exists()]
    except OSError as error:
        draft.faults.unreadable(error, folder)
        return found
    for path in paths:
        if path.name not in known and not path.name.startswith("."):
            draft.faults.whole("P002", "no model has this name", str(path), meant(path.name, known))
    for kind in KINDS:
        if kind not in shared:
            reader = _read_own_model(kind, folder, draft, casbin)
            if kind not in draft.models:
                found.by_stem[kind.value] = reader
            found.add(reader, kind)
    if shared:
        found.by_stem[POLICY] = reader = _stock_reader(common, folder, 1, draft, casbin)
        for kind in shared:
            found.add(reader, kind)
    elif common.exists():
        draft.faults.whole("P002", "every kind has a model of its own, so this one decides nothing", str(common))
    return found


def _read_own_model(
    kind: PermissionKind, folder: Path, draft: PolicyBuilder, casbin: CasbinSettings = NO_CASBIN
) -> StockReader | None:
    """Reads the model of one kind. Adds a model of the sidecar; returns the reader of a Casbin model of another
    form."""
    path = folder / f"{kind.value}.conf"
    entries = _entries(path, folder, draft)
    if entries is None:
        return None
    if not is_own(entries):
        return _stock_reader_of(entries, path, 1, draft, casbin)
    model = own_model(kind, str(path), entries, draft.faults)
    if model is not None:
        draft.add_model(model)
    return None


def _stock_reader(
    path: Path, folder: Path | None, use: int, draft: PolicyBuilder, casbin: CasbinSettings
) -> StockReader | None:
    entries = _entries(path, folder, draft)
    if entries is not None and is_own(entries):
        hint = "name it as its kind in the folder policy.models, and its rows too"
        draft.faults.whole("P202", "a model with r.ctx decides one kind", str(path), hint)
        return None
    return None if entries is None else _stock_reader_of(entries, path, use, draft, casbin)


def _stock_reader_of(
    entries: Mapping[str, ModelEntry], path: Path, use: int, draft: PolicyBuilder, casbin: CasbinSettings
) -> StockReader | None:
    from sidecar.policy.stock.reading import StockReader, stock_model

    model = stock_model(entries, str(path), use, casbin, draft.faults)
    return None if model is None else StockReader(draft, str(path), model, entries)


def _entries(path: Path, folder: Path | None, draft: PolicyBuilder) -> Mapping[str, ModelEntry] | None:
    """Reads the entries of a model; None if it cannot be read, and for a Casbin model of another form with faults."""
    before = len(draft.faults.errors)
    text = None if folder and leads_out(path, folder, draft.faults) else read_text(path, draft.faults)
    if text is None:
        return None
    if len(text) > MAX_MODEL_CHARS:
        draft.faults.whole("P201", f"longer than {MAX_MODEL_CHARS} characters", str(path))
        return None
    entries = model_entries(str(path), text, draft.faults)
    return entries if is_own(entries) or len(draft.faults.errors) == before else None


def _attributes(policies: Path, draft: PolicyBuilder) -> Attributes:
    try:
        return load_attributes(policies)
    except PolicyError as error:
        draft.faults.errors += error.faults
        return Attributes()


def _check_cost(draft: PolicyBuilder, folder: Path, casbin: CasbinSettings) -> None:
    """Reports matchers that are tried on every row, with their cost."""
    for kind, model in draft.models.items():
        plan, table = plan_of(model), draft.tables[kind]
        file, rows = str(folder / f"{kind.value}.conf"), len(table)
        if kind is PermissionKind.GUARDRAIL and rows:  # a guardrail's model is in no file
            file = table.files[table.file[0]]
        if plan.foreign or (rows and casbin.engine != "compiled"):
            foreign = [part.text if isinstance(part, ForeignNode) else written(part) for part in plan.foreign]
            from sidecar.policy.stock.reading import check_casbin_rows

            check_casbin_rows(", ".join(foreign), rows, casbin, draft.faults, file)
        if not plan.index and not plan.foreign and rows >= SLOW_ROWS:
            message = (
                f"no part can be looked up: each decision evaluates {rows} rows, some {rows * _CHECK_US / 1000:.1f} ms"
            )
            hint = "compare one field of the request with one column, as in the shipped models"
            draft.faults.warn("P206", message, SourceLine(file, 0, ""), hint=hint)


def _read_file(file: PolicyFile, draft: PolicyBuilder, stock: _StockModels) -> None:
    text = read_text(file.path, draft.faults)
    if text is None:
        return
    name = str(file.path)
    scopes = [scope for scope in draft.scopes if file_matches(file.relative, scope.files)]
    if not file.is_yaml and file.stem in stock.by_stem:
        if (reader := stock.by_stem[file.stem]) is None:
            return
        if scopes:
            message = "a scope cannot bound the rows of a Casbin model, whose names are its own"
            draft.faults.whole("P112", message, name, f"move the file out of {scopes[0].files}")
        else:
            reader.read(name, text)
        return
    if file.stem == POLICY and not file.is_yaml:
        draft.faults.whole("P002", f"these rows are those of {COMMON_MODEL}, which is not in policy.models", name)
        return
    readers = {kind: RuleReader(draft, scopes, name, model) for kind, model in draft.models.items()}
    links = LinkReader(draft, scopes, name)
    rows: Iterable[tuple[PermissionKind | None, CsvRow]]
    if file.is_yaml:
        columns = {kind: model.columns for kind, model in draft.models.items()}
        rows = parse_yaml(name, text, draft.faults, columns, draft.agent_ids)
    else:
        own: LinkReader | RuleReader | None = links if file.kind is None else readers.get(file.kind)
        rows = ((file.kind, row) for row in parse_rows(name, text, draft.faults, own.take if own else None))
    for kind, row in rows:
        draft.rows += 1
        if draft.rows > MAX_ROWS:
            draft.faults.error("P001", f"more than {MAX_ROWS} rows in all", row.line)
            return
        if kind is None and row.type == "p":
            texts = [field.text for field in row.fields[:2]]
            hint = (belongs(row, *texts) if len(texts) == 2 else "") or "p rows go into <kind>.csv"
            draft.faults.error("P111", "roles.csv contains only g and g2 rows", row.line, hint=hint)
        elif kind is None:
            links.read(row)
        elif row.type != "p":
            draft.faults.error("P111", f"a {row.type} row belongs in roles.csv", row.line, hint="move it there")
        elif kind in readers:  # otherwise the model itself has the fault
            readers[kind].read(row)
        elif any(kind in reader.kinds for reader in stock.readers):
            message, hint = "a Casbin model decides this kind", "its rows are in CSV files of its own"
            draft.faults.error("P111", message, row.line, hint=hint)


def _check_doubles(draft: PolicyBuilder) -> None:
    """Reports duplicates: a rule without an id is identified by its content, which must therefore be unique."""
    for table in draft.tables.values():
        first: dict[tuple[int, int, int], int] = {}
        for row, said in enumerate(zip(table.sub, table.obj, table.shape, strict=True)):
            if first.setdefault(said, row) != row and not (_named(table, row) or _named(table, first[said])):
                if draft.faults.is_full:
                    return
                file, number = _place_of(table, first[said])
                message = f"the same rule is already at {file}:{number}"
                draft.faults.error("P108", message, draft.line_at(_place_of(table, row)), hint="remove one")


def _named(table: RowTable, row: int) -> bool:
    return row in table.notes and bool(table.notes[row].id)


def _place_of(table: RowTable, row: int) -> Place:
    return table.files[table.file[row]], table.line[row]


def _links(group: str, draft: PolicyBuilder) -> Mapping[str, RoleLinks]:
    """Returns the links by domain; "" holds those of all domains. Reports cycles and chains that are too long."""
    found = draft.links[group]
    links = RoleLinks.of((member, container) for member, container, _ in found)
    cycle = links.cycle()
    if cycle:
        place = next(at for pair, at in found.items() if pair[:2] == cycle[:2])
        message = "a cycle: " + " in ".join(cycle)
        draft.faults.error("P301", message, draft.line_at(place), hint="remove one of these rows")
        return {"": RoleLinks()}
    chains = links.chains()
    for (member, container, _), place in found.items():
        if chains[member] == MAX_DEPTH + 1 and chains[container] == MAX_DEPTH:
            message = f"{shown(member)} is nested more than {MAX_DEPTH} levels deep"
            draft.faults.error(
                "P302", message, draft.line_at(place), hint="Casbin would silently follow only some of them"
            )
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
                draft.faults.warn("P305", f"{shown(texts[number])} is empty", line, hint=hint)
