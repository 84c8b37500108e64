"""Makes patches for people to apply: the console itself changes no file of the policy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from sidecar.admin.console.side_by_side import steps_between

CONTEXT_LINES: Final = 3


def patch_of(name: str, old: str, new: str) -> str:
    """A patch for `git apply` and `patch -p1`, with one hunk from the first to the last line that differs; "" for equal
    texts. `old` is "" for a file that does not exist."""
    if old == new:
        return ""
    before, after = old.splitlines(keepends=True), new.splitlines(keepends=True)
    steps = steps_between(before, after)
    head = steps[0][2] if steps[0][0] == "equal" else 0
    tail = steps[-1][2] - steps[-1][1] if steps[-1][0] == "equal" else 0
    first = max(0, head - CONTEXT_LINES)
    last = len(before) - max(0, tail - CONTEXT_LINES), len(after) - max(0, tail - CONTEXT_LINES)
    begins = f"--- {f'a/{name}' if old else '/dev/null'}\n+++ b/{name}\n"
    span = f"@@ -{_span(first, last[0])} +{_span(first, last[1])} @@\n"
    lines = _lines(before, after, steps, first, last[0])
    return begins + span + "".join(lines)


def _lines(
    before: Sequence[str], after: Sequence[str], steps: Sequence[tuple[str, int, int, int, int]], first: int, last: int
) -> Iterator[str]:
    for tag, a, b, c, d in steps:
        if tag == "equal":
            yield from (_line(" ", before[at]) for at in range(max(a, first), min(b, last)))
        else:
            yield from (_line("-", line) for line in before[a:b])
            yield from (_line("+", line) for line in after[c:d])


def _line(mark: str, line: str) -> str:
    return f"{mark}{line}" if line.endswith("\n") else f"{mark}{line}\n\\ No newline at end of file\n"


def _span(first: int, last: int) -> str:
    many = last - first
    return f"{first + 1 if many else first},{many}"
