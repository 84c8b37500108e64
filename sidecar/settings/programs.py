"""Which program does a command name, and what of our own environment does it get?"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import Final

# What programs need to be found, to find their folders and to write in the right language. No secret lives in these;
# everything else is named, or it does not get there (threats X3).
INHERITED: Final = ("PATH", "HOME", "LANG", "TMPDIR")


def environment_of(named: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """All of a program's environment. `environ` is the sidecar's own."""
    return {name: environ[name] for name in INHERITED if name in environ} | dict(named)


def executable_of(command: str, named: Mapping[str, str], environ: Mapping[str, str]) -> str | None:
    """The executable file that a command names, found as the program itself would find it; None where there is none."""
    search = environment_of(named, environ).get("PATH", os.defpath)
    found = shutil.which(command, path=search)
    return None if found is None else os.path.abspath(found)  # noqa: PTH100  links stay: programs look at their name
