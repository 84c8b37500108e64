#!/usr/bin/env python3
"""Looks a text file over, and writes what it found as JSON: a linter, as it might run by the clock.

lint.py FILE REPORT
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

LONGEST = 120


def findings(lines: list[str]) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(lines, 1):
        if len(line) > LONGEST:
            yield number, f"longer than {LONGEST} characters"
        if line != line.rstrip():
            yield number, "ends with blanks"
        if "\t" in line:
            yield number, "has a tab"
        if "TODO" in line:
            yield number, "is not done"


def main(path: str, report: str) -> int:
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    found = [{"line": number, "what": what} for number, what in findings(lines)]
    Path(report).write_text(json.dumps({"lines": len(lines), "findings": found}, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
