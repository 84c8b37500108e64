"""The catalogue of check codes: `codes.txt`, parsed into `code level: about` and the remedy below it.

`docs/policy-errors.md`, SARIF's rules and the tests read it. The level `error` is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Literal, NamedTuple, cast

Level = Literal["error", "warning", "note"]


class CodeMeaning(NamedTuple):
    """`about` in one line, `mend` in one or two sentences. A note is a warning of less weight, without effect yet."""

    about: str
    mend: str
    level: Level = "error"


_ENTRY = re.compile(r"^(P\d{3})(?: (warning|note))?: (.*)\n((?:  .*\n)+)", re.MULTILINE)
CODES: Mapping[str, CodeMeaning] = {
    code: CodeMeaning(about, " ".join(mend.split()), cast("Level", level or "error"))
    for code, level, about, mend in _ENTRY.findall(files(__package__).joinpath("codes.txt").read_text("utf-8"))
}
