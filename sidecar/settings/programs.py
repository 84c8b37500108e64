"""Resolves the command and environment of programs."""

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from sidecar.errors import Fault, SettingsError, fault_in
from sidecar.settings.yaml_document import read_bytes

# Programs need these to find executables, home and temporary folders, and the language. They hold no secrets. All other
# variables must be set in the settings of the program.
INHERITED: Final = ("PATH", "HOME", "LANG", "TMPDIR")
MAX_BYTES: Final = 64 * 1024
_ASSIGNMENT = re.compile(
    r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_.-]*)=(?:'([^']*)'|\"([^\"\\$`]*)\"|([^\s'\"\\$`#]*))\s*(?:#.*)?"
)


def environment_of(named: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of a program: the `named` variables, and those of INHERITED in `environ`, the sidecar's own
    environment."""
    return {name: environ[name] for name in INHERITED if name in environ} | dict(named)


def executable_of(command: str, named: Mapping[str, str], environ: Mapping[str, str]) -> str | None:
    """The absolute path of a command's executable, found on the PATH that the program will have; None if there is
    none."""
    search = environment_of(named, environ).get("PATH", os.defpath)
    found = shutil.which(command, path=search)
    return None if found is None else os.path.abspath(found)  # noqa: PTH100  keeps links: programs look at their name


def variables_in_file(path: Path) -> dict[str, str]:
    """The variables in a file with lines `NAME=value`, whose values are quoted if they have blanks, and `#` comments.
    Shells, systemd and container tools read such a file alike. Nothing is expanded. Raises SettingsError, which
    contains no value."""
    raw = read_bytes(path, max_bytes=MAX_BYTES)
    if len(raw) > MAX_BYTES:
        raise SettingsError([fault_in(path, f"larger than {MAX_BYTES} bytes", code="Y002")])
    try:
        lines = raw.decode("utf-8").split("\n")
    except UnicodeDecodeError:
        raise SettingsError([fault_in(path, "not UTF-8", code="Y003")]) from None
    found: dict[str, str] = {}
    faults: list[Fault] = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        assigned = _ASSIGNMENT.fullmatch(line)
        if assigned is None or "\0" in line:
            hint = "write NAME=value, or NAME='a value with blanks'; values are not expanded"
            fault = fault_in(path, "this line does not set a variable", code="S132", hint=hint)
            faults.append(replace(fault, line=number, column=1))
        elif assigned[1] in found:
            fault = fault_in(path, f"{assigned[1]} is set twice", code="S132", hint="keep one")
            faults.append(replace(fault, line=number, column=1))
        else:
            found[assigned[1]] = assigned[2] or assigned[3] or assigned[4] or ""
    if faults:
        raise SettingsError(faults)
    return found
