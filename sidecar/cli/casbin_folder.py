"""Converts the files of a Casbin program into a working folder, or into the settings for an existing one."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import click

from sidecar.errors import SettingsError
from sidecar.policy.files import COMMON_MODEL, KINDS
from sidecar.policy.rows import MAX_FILE_BYTES
from sidecar.policy_tools.casbin_program import CasbinMap, Proposal, check_program, files_in, propose, read_program
from sidecar.policy_tools.rule_text import scalar
from sidecar.settings.policy import ObjectTarget
from sidecar.settings.reading import read_bounded
from sidecar.settings.yaml_document import read_document

POLICY_FILE = "policies/policy.csv"
MODEL_FILE = f"models/{COMMON_MODEL}"
_TABLES = {
    "subjects": "callers: r.{}",
    "objects": "what is called; what no entry matches is denied",
    "actions": "actions of calls: r.{}",
    "domains": "namespaces of callers: r.{}",
    "roles": "roles that tokens grant",
}


class CasbinFolder(NamedTuple):
    """The unchanged model and rows, by their new names, with the proposed settings."""

    model: bytes
    rows: Mapping[str, bytes]
    proposal: Proposal

    def settings(self, *, with_models: bool = True) -> str:
        """Returns the keys of `policy` in sidecar.yaml, without `path`."""
        lines = _lines(self.proposal) if not with_models else (*_models(self), *_lines(self.proposal))
        return "".join(f"  {line}\n" for line in lines)


def read_folder(model: Path, policy: Path, map_path: Path | None, rows: str = POLICY_FILE) -> CasbinFolder:
    """Reads the files of a program. `rows` is the name of its rows in the folder. Raises PolicyError and SettingsError
    with every fault, at its place in these files."""
    given = CasbinMap() if map_path is None else read_document(map_path, error=SettingsError).validate(CasbinMap)
    files = files_in([policy])
    program = read_program(model, files, given.use)
    if program is None:
        check_program(model, files, given)
        raise AssertionError("a model that is none is refused")
    asked = _ask if map_path is None and sys.stdin.isatty() else None
    proposal = propose(program, given, asked)
    check_program(model, files, proposal.settings)
    stem = rows.removesuffix(".csv")
    named = {rows: files[0]} if len(files) == 1 else {f"{stem}.{path.stem}.csv": path for path in files}
    found = {name: read_bounded(path, MAX_FILE_BYTES) for name, path in named.items()}
    return CasbinFolder(read_bounded(model, MAX_FILE_BYTES), found, proposal)


def attributes_yaml(proposal: Proposal) -> str:
    """Returns attributes.yaml with only an example of the attributes that the policy reads; "" if it reads none."""
    read = proposal.attributes
    if not any(read.values()):
        return ""
    names = {"principal": "nhi:planner", "object": next(iter(proposal.settings.names.objects))}
    examples = "".join(
        f"#   {_quoted(names[side])}: {{{', '.join(f'{name}: …' for name in found)}}}\n"
        for side, found in read.items()
        if found
    )
    return (
        "# What the policy reads of principals and objects, by their names or by patterns. A request that needs an\n"
        f"# attribute which is not here is denied.\nversion: 1\nattributes: {{}}\n{examples}"
    )


def upstreams_of(proposal: Proposal) -> str:
    return "".join(
        f"  {scalar(name)}:".ljust(33) + f"# callers use http://127.0.0.1:8070/mcp/{name}\n"
        f"    mcp:\n      url: {_quoted(url)}\n"
        for name, url in proposal.settings.upstreams.items()
    )


def _ask(question: str, default: str, answers: Sequence[str]) -> str:
    kind = click.Choice(answers) if answers else str
    found: str = click.prompt(question, default=default, type=kind, err=True)
    return found


def _models(folder: CasbinFolder) -> Iterator[str]:
    use = folder.proposal.settings.use
    if use == 1:
        yield "models: models                 # how a question is decided"
        return
    yield "models:"
    rows = ", ".join(map(_quoted, folder.rows))
    for kind in KINDS:
        yield f"  {kind.value}: {{model: {MODEL_FILE}, policy: [{rows}], use: {use}}}"


def _lines(proposal: Proposal) -> Iterator[str]:
    settings, why = proposal.settings, proposal.why
    yield f"names:{' ' * 25}# names of calls → names of the policy; the first match counts"
    for table, about in _TABLES.items():
        entries = getattr(settings.names, table)
        if table in ("subjects", "objects") or dict(entries) != {"*": "*"}:
            yield from _table(table, about, entries, why.get(table, ""))
    yield from _map("roles", {key: said.model_dump(exclude_none=True) for key, said in settings.roles.items()}, why)
    yield from _map("request", settings.request, why)
    for name in ("default", "engine", "casbin_max_rows"):
        if (value := getattr(settings, name)) != CasbinMap.model_fields[name].default:
            yield f"{name}: {value}" + (f"  # {why[name]}" if name in why else "")


def _table(name: str, about: str, entries: Mapping[str, str | ObjectTarget], why: str) -> Iterator[str]:
    field = {"subjects": "sub", "actions": "act", "domains": "dom"}.get(name, "")
    yield f"  {name}:".ljust(31) + f"# {about.format(field)}"
    if why:
        yield f"    # {why}"
    for ours, theirs in entries.items():
        value = theirs if isinstance(theirs, str) else {"obj": theirs.obj, "act": theirs.act}
        yield f"    {_quoted(ours)}: {_flow(value)}"


def _map(name: str, entries: Mapping[str, object], why: Mapping[str, str]) -> Iterator[str]:
    if entries:
        yield f"{name}:"
    for key, value in entries.items():
        comment = why.get(f"{name}.{key}")
        yield f"  {key}: {_flow(value)}" + (f"  # {comment}" if comment else "")


def _flow(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_flow(each)}" for key, each in value.items()) + "}"
    return _quoted(str(value))


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
