"""Holds the result of a verification: extent, contradictions, proven facts and open ones."""

from collections import Counter
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal

MAX_PROBLEMS: Final = 100  # shown; all are counted

Ending = Literal["sealed", "attested", "open"]
"""`sealed`: the last two records are a stop and its checkpoint; `attested`: the last is a checkpoint, as in a rotated
part; `open`: the records after the last checkpoint rest on the anchor alone."""


@dataclass(frozen=True, slots=True)
class VerificationProblem:
    """One contradiction. `line` counts from 1; 0 is the whole file."""

    path: str
    line: int
    kind: str
    message: str

    def __str__(self) -> str:
        where = f"{self.path}:{self.line}" if self.line else self.path
        return f"{where}: {self.kind}: {self.message}"


@dataclass(slots=True)
class VerificationReport:
    """The result of a verification. `ok`: nothing contradicts the evidence; `unproved` states what remains open.
    `unfinished` are decisions without an outcome; `signed_up_to` is the last record under a verified signature;
    `instances` wrote control records."""

    records: int = 0
    first_seq: int = 0
    last_seq: int = 0
    events: Counter[str] = field(default_factory=Counter)
    checkpoints: int = 0
    signed_up_to: int = 0
    instances: list[str] = field(default_factory=list)
    end: Ending = "open"
    problems: list[VerificationProblem] = field(default_factory=list)
    problem_count: int = 0
    proved: list[str] = field(default_factory=list)
    unproved: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unfinished: set[str] = field(default_factory=set)

    @property
    def ok(self) -> bool:
        return self.problem_count == 0

    def add(self, path: Path, line: int, kind: str, message: str) -> None:
        """Counts a problem, and stores it while there is room."""
        self.problem_count += 1
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(VerificationProblem(str(path), line, kind, message))

    def as_data(self) -> dict[str, Any]:
        said = {each.name: getattr(self, each.name) for each in fields(self)}
        said |= {"problems": [asdict(one) for one in self.problems], "unfinished": len(self.unfinished)}
        return {"ok": self.ok, **said, "events": dict(self.events), "not_proved": said.pop("unproved")}
