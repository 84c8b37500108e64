"""Applies environment variables to the settings.

    SIDECAR_STORE__URL=redis://...          sets store.url; only variables that contain `__` are settings
    SIDECAR_STORE__URL_FILE=/run/secrets/x  sets it to the content of a file
    ${VAR}  ${VAR:-default}  ${env:VAR}     inside upstreams and agents

Values follow the rules of unquoted YAML scalars; one that begins with `[` is a YAML list.

    S201  names no setting     S202  set twice     S203  its file cannot be read     S204  ${VAR} cannot be expanded
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sidecar.errors import Fault, fault_in
from sidecar.settings.reading import read_bounded
from sidecar.settings.yaml_document import Document
from sidecar.settings.yaml_nodes import Loc, YamlNode, YamlSpan, compose
from sidecar.settings.yaml_scalars import DoubtfulScalarError, meaning_of

PREFIX = "SIDECAR_"
MAX_SECRET_BYTES = 64 * 1024
NAMED = ("upstreams", "agents", "schedules")  # sections whose keys the operator chooses
_FROM_FILE = "_FILE"
_SEGMENT = re.compile(r"[A-Z0-9]+(?:_[A-Z0-9]+)*")
_PLACEHOLDER = re.compile(r"\$\{(?:env:)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<default>:-[^}]*)?\}")


@dataclass(frozen=True, slots=True)
class _Variable:
    """A variable that sets the setting at `loc`."""

    name: str
    loc: Loc
    value: str
    from_file: bool


def overlay(document: Document, environ: Mapping[str, str]) -> tuple[Document, list[Fault]]:
    """Applies the environment to the document. Returns the result and the faults of the variables."""
    faults: list[Fault] = []
    root = document.root
    taken: dict[Loc, str] = {}
    for variable in _variables(environ, faults):
        if earlier := taken.get(variable.loc):
            message = f"set twice: also by {earlier}"
            faults.append(fault_in(f"env {variable.name}", message, code="S202", hint="unset one of them"))
            continue
        taken[variable.loc] = variable.name
        if node := _node_of(variable, faults):
            section, *rest = variable.loc
            if section in NAMED:  # names in variables have underscores in place of hyphens: `MY_SERVER` is `my-server`
                rest[0] = str(rest[0]).replace("_", "-")
            root = _laid_over(root, (section, *rest), node, faults)
    changed = replace(document, root=root) if taken else document
    return _filled_in(changed, environ, faults), faults


def _variables(environ: Mapping[str, str], faults: list[Fault]) -> Iterator[_Variable]:
    for name in sorted(environ):
        if not name.upper().startswith(PREFIX) or "__" not in name[len(PREFIX) :]:
            continue
        from_file = name.endswith(_FROM_FILE)
        segments = name.removeprefix(PREFIX).removesuffix(_FROM_FILE if from_file else "").split("__")
        if not name.startswith(PREFIX) or len(segments) < 2 or not all(map(_SEGMENT.fullmatch, segments)):
            hint = "write upper-case words joined by two underscores: SIDECAR_STORE__URL"
            faults.append(fault_in(f"env {name}", "no setting has this name", code="S201", hint=hint))
            continue
        loc = tuple(int(part) if part.isdigit() else part.lower() for part in segments)
        yield _Variable(name, loc, environ[name], from_file)


def _node_of(variable: _Variable, faults: list[Fault]) -> YamlNode | None:
    span = YamlSpan(f"env {variable.name}")
    if variable.from_file:
        text = _secret(variable, faults)
        return None if text is None else YamlNode(text, span, span, secret=True)
    if variable.value.startswith("["):
        node, found = compose(variable.value, span.file)
        faults += [fault_in(span.file, fault.message, code=fault.code, hint=fault.hint) for fault in found]
        return None if found else node.mapped(lambda leaf, _: replace(leaf, span=span, key=None))
    try:
        return YamlNode(meaning_of(variable.value), span, span)
    except DoubtfulScalarError as doubt:
        hint = doubt.hint.partition(", or quote")[0] if "or quote" in doubt.hint else ""
        faults.append(fault_in(span.file, doubt.message, code="Y012", hint=hint))
        return None


def _secret(variable: _Variable, faults: list[Fault]) -> str | None:
    """The text of a file without the final line break that editors add; None with a fault if it cannot be used."""
    try:
        return read_bounded(Path(variable.value), MAX_SECRET_BYTES).decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        problem = f"{variable.value} is not UTF-8"
    except (OSError, ValueError) as error:
        problem = f"{variable.value} cannot be read: {getattr(error, 'strerror', None) or 'no such path'}".lower()
    faults.append(fault_in(f"env {variable.name}", problem, code="S203"))
    return None


def _laid_over(node: YamlNode, loc: Loc, leaf: YamlNode, faults: list[Fault]) -> YamlNode:
    """The tree with `leaf` at `loc`. Missing sections are created at the leaf's position."""
    if not loc:
        return replace(leaf, key=node.key or leaf.key)
    step, rest = loc[0], loc[1:]
    below = node.child(step) or YamlNode({} if rest else None, leaf.span, leaf.span)
    if isinstance(node.value, dict):
        return replace(node, value={**node.value, str(step): _laid_over(below, rest, leaf, faults)})
    if node.value is None:
        return replace(node, value={str(step): _laid_over(below, rest, leaf, faults)})
    if isinstance(node.value, list) and isinstance(step, int) and step <= len(node.value):
        entries = [*node.value[:step], _laid_over(below, rest, leaf, faults), *node.value[step + 1 :]]
        return replace(node, value=entries)
    what = "a list: write its entry's number" if isinstance(node.value, list) else "a value, not a section"
    faults.append(fault_in(leaf.span.file, f"the part before {str(step).upper()} is {what}", code="S201"))
    return node


def _filled_in(document: Document, environ: Mapping[str, str], faults: list[Fault]) -> Document:
    """Expands `${VAR}` in upstreams and agents. Elsewhere a dollar sign has no meaning."""

    def expanded(node: YamlNode, loc: Loc) -> YamlNode:
        if loc and loc[0] in ("upstreams", "agents") and isinstance(node.value, str) and "${" in node.value:
            text, problems = _expand(node.value, environ)
            faults.extend(document.fault(loc, problem, "S204", hint) for problem, hint in problems)
            return replace(node, value=text, shown=node.value)
        return node

    return replace(document, root=document.root.mapped(expanded))


def _expand(text: str, environ: Mapping[str, str]) -> tuple[str, list[tuple[str, str]]]:
    problems: list[tuple[str, str]] = []

    def value_of(found: re.Match[str]) -> str:
        name, default = found["name"], found["default"]
        value = environ.get(name, "")
        if default is not None:
            return value or default.removeprefix(":-")  # as in a shell, `:-` also replaces an empty value
        if name not in environ:
            problems.append((f"the variable {name} is not set", f"set it, or write ${{{name}:-default}}"))
        return value

    filled = _PLACEHOLDER.sub(value_of, text)
    if "${" in _PLACEHOLDER.sub("", text):
        problems.append(("this form of ${...} is unknown", "write ${VAR}, ${VAR:-default} or ${env:VAR}"))
    return filled, problems
