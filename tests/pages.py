"""What stands on a page of the documentation?

The convention of README.md and docs/, which tests/unit/test_docs.py and tests/flow/test_docs.py hold it to. The pages
of docs/tutorial/ are one page for it: what one of them made, the next one has. A fenced block says in its first line
what it is:

    ```sh                  runs: all blocks of a page in order, in one shell, in one fresh folder
    ```sh exit=3           runs, and its last command must end with this code
    ```text output         what the block before it printed: each line in its order; `…` stands for anything
    ```yaml FILE           a whole file (also csv, json, python): written where it stands, and it must be valid
    ```csv FILE wrong      the same, and it must not be valid
    ```yaml                a part of sidecar.yaml: valid beside `version: 1`
    ```console  ```text    to look at: never run (other languages: ini, nginx, `yaml` of OTHERS)
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
_AT_THE_TOP = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "DECISIONS.md", "SECURITY.md")
PAGES = (*(ROOT / name for name in _AT_THE_TOP if (ROOT / name).is_file()), *sorted((ROOT / "docs").rglob("*.md")))
NAMES = [path.relative_to(ROOT).as_posix() for path in PAGES]

_OPEN = re.compile(r"( *)```(\w+)(?: +(\S.*?))? *\Z")
OTHERS = ("kubernetes", "envoy", "agentgateway", "litellm")  # whose files are shown as `yaml envoy`
FILE = re.compile(r"[\w./-]+\.(?:yaml|csv|json|conf|py)\Z")


@dataclass(frozen=True)
class Block:
    """One fenced block. `line` is that of its first line of text, counted from 1."""

    language: str
    info: str
    text: str
    line: int

    @property
    def runs(self) -> bool:
        return self.language == "sh"

    @property
    def is_output(self) -> bool:
        return (self.language, self.info) == ("text", "output")

    @property
    def file(self) -> str:
        """The file that it is, or ""."""
        name = self.info.removesuffix(" wrong")
        return name if self.language not in ("sh", "text") and FILE.match(name) else ""

    @property
    def wrong(self) -> bool:
        """Whether the file is shown for its fault."""
        return self.info.endswith(" wrong")

    @property
    def exit_code(self) -> int:
        """What its last command ends with."""
        return int(self.info.removeprefix("exit=") or 0) if self.runs else 0


def blocks_of(text: str) -> Iterator[Block]:
    """Every fenced block of a page, in order. Fails for one that says nothing about itself, or does not end."""
    lines = text.split("\n")
    at = 0
    while at < len(lines):
        opened = _OPEN.match(lines[at])
        if opened is None:
            assert "```" not in lines[at], f"line {at + 1}: a fence that does not say what it holds"
            at += 1
            continue
        indent = opened[1]
        end = lines.index(f"{indent}```", at + 1)
        inside = [line.removeprefix(indent) for line in lines[at + 1 : end]]
        yield Block(opened[2], opened[3] or "", "\n".join(inside) + "\n", at + 2)
        at = end + 1


def prose_of(text: str) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE)
