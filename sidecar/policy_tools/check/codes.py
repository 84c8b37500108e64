"""The catalogue of check codes, with explanations: `codes.txt`, parsed.

It is the only table of the codes of policy faults: `docs/policy-errors.md`, SARIF's rules and the tests read it. Codes
of other files (`sidecar.yaml`, `budgets.yaml`) begin with other letters and belong to their own readers.

Each entry is `code level: about`, and below it how the fault is mended. The level `error` is left out.
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
