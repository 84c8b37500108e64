"""Translates `${...}` references of client files into those of sidecar.yaml.

    ${VAR}  ${VAR:-default}           unchanged: sidecar.yaml supports them
    ${env:VAR}                        VS Code, Cursor: ${VAR}
    ${input:id}                       VS Code prompts for it; here it is the variable ID
    ${workspaceFolder}  ${userHome}   the folders themselves

    $VAR                              Gemini CLI (`bare`): ${VAR}

A bare `$VAR` is literal text in every other client, and therefore here.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_REFERENCE = re.compile(r"\$\{([^}]*)\}")
_VARIABLE = re.compile(r"(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(:-.*)?", re.DOTALL)
_BARE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
_OURS = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


@dataclass(frozen=True, slots=True)
class ReferencePlaces:
    """The folders that a client knows, and the ids of the inputs for which it prompts."""

    workspace: Path
    home: Path
    inputs: frozenset[str] = frozenset()
    bare: bool = False

    def folders(self) -> Mapping[str, str]:
        here = str(self.workspace)
        return {
            "workspaceFolder": here,
            "workspaceRoot": here,
            "workspaceFolderBasename": self.workspace.name,
            "userHome": str(self.home),
            "pathSeparator": "/",
            "/": "/",
        }


@dataclass(slots=True)
class TranslatedText:
    """A text with translated references, the unsupported ones, and the variables for a client's inputs."""

    text: str
    problems: list[str] = field(default_factory=list)
    inputs: dict[str, str] = field(default_factory=dict)


def translated(text: str, places: ReferencePlaces) -> TranslatedText:
    result = TranslatedText("")
    if places.bare:
        text = _BARE.sub(r"${\1}", text)

    def ours(found: re.Match[str]) -> str:
        said = found[1]
        if (folder := places.folders().get(said)) is not None:
            return folder
        if said.startswith("input:") and (identity := said.removeprefix("input:")) in places.inputs:
            result.inputs[identity] = variable_name(identity)
            return f"${{{result.inputs[identity]}}}"
        if variable := _VARIABLE.fullmatch(said):
            return f"${{{variable[1]}{variable[2] or ''}}}"
        unknown = f"no input of this file has the id {said.removeprefix('input:')}"
        result.problems.append(unknown if said.startswith("input:") else f"{found[0]} is not understood here")
        return ""

    result.text = _REFERENCE.sub(ours, text)
    if "${" in _REFERENCE.sub("", text):
        result.problems.append("a ${ that does not end")
    return result


def variables_in(text: str) -> tuple[str, ...]:
    """Returns the variables that a translated text needs: those without a default."""
    return tuple(found[1] for found in _OURS.finditer(text) if found[2] is None)


def without_defaults(text: str) -> str:
    return _OURS.sub(lambda found: f"${{{found[1]}}}", text)


def literal_in(text: str) -> str:
    """Returns the literal parts of a translated text: everything except the references, but including defaults."""
    return _OURS.sub(lambda found: found[2] or "", text)


def filled_in(text: str, environ: Mapping[str, str]) -> tuple[str, list[str]]:
    """Returns a translated text with values filled in, and the variables that are not set."""
    unset = [name for name in variables_in(text) if name not in environ]

    def value(found: re.Match[str]) -> str:
        known = environ.get(found[1], "")
        return known if found[2] is None else known or found[2]

    return _OURS.sub(value, text), unset


def variable_name(*words: str) -> str:
    """Returns a name for an environment variable: `my-token` → `MY_TOKEN`."""
    name = re.sub(r"[^A-Z0-9]+", "_", "_".join(words).upper()).strip("_")
    return name if name[:1].isalpha() else f"V_{name}"
