"""Rows of tests, beside no code: `<area>/<module>.yaml` holds the tables of `tests/…/<area>/test_<module>.py` by name.

A row is a list or a mapping of one line of JSON, so that YAML's own rules for words, numbers and times never apply.
"""

from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent


def tables(name: str) -> Any:
    return yaml.load((HERE / f"{name}.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader)
