"""Is every code of a fault explained where the codes stand, and nothing else?"""

import re
from pathlib import Path

import sidecar.settings

SOURCES = Path(sidecar.settings.__file__).parent.parent


def test_the_table_of_codes_is_the_code() -> None:
    told: list[int] = []
    for first, last in re.findall(
        r"^S(1\d\d)(?:-S(\d+))?  ", (SOURCES.parent / "docs/configuration.md").read_text("utf-8"), re.MULTILINE
    ):
        told += range(int(first), int(last or first) + 1)
    raised = {
        int(code) for path in SOURCES.rglob("*.py") for code in re.findall(r'"S(1\d\d)"', path.read_text("utf-8"))
    }
    assert told == sorted({*told}), "each code has one meaning"
    assert raised == {*told}
