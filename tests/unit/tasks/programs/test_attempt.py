"""Whose fault is it that a program could not be started, or ended as it did?"""

import sys

import pytest

from sidecar.settings.agents import Resources
from sidecar.tasks.programs.attempt import failure_of_exit, failure_of_start
from sidecar.tasks.programs.run_record import Category, Failure, Usage
from sidecar.upstreams.processes.launcher import Exit, StartFailed

linux = pytest.mark.skipif(sys.platform != "linux", reason="the numbers are others there")

ENDS = [
    (Exit(code=0), "noise", None),
    (Exit(code=2), "no such option", (Category.AGENT, "exit code 2: no such option")),
    (Exit(code=2), "", (Category.AGENT, "exit code 2")),
    (Exit(code=75), "busy", (Category.TRANSIENT, "exit code 75: busy")),
    (Exit(signal=9), "", (Category.TRANSIENT, "signal 9 (SIGKILL)")),
    (Exit(signal=11), "", (Category.TRANSIENT, "signal 11 (SIGSEGV)")),
    (Exit(signal=24), "", (Category.AGENT, "it took all of its 7 s of CPU time")),
    (Exit(signal=25), "", (Category.AGENT, "it wrote a file beyond its size")),
    (Exit(), "", (Category.SYSTEM, "an unknown status")),
]


@pytest.mark.parametrize(("how", "last_words", "expected"), ENDS)
def test_an_end_is_somebodys_fault(how: Exit, last_words: str, expected: tuple[Category, str] | None) -> None:
    failure = failure_of_exit(how, last_words, Resources(cpu_s=7), Usage(), exit_codes=(75,))
    assert failure == (None if expected is None else Failure(*expected))


def test_who_is_killed_for_its_cpu_time_is_at_fault_itself() -> None:
    failure = failure_of_exit(Exit(signal=9), "", Resources(cpu_s=7), Usage(cpu_s=8.0))
    assert failure == Failure(Category.AGENT, "it took all of its 7 s of CPU time")


STARTS = [
    (11, Category.TRANSIENT, "it cannot be started: Resource temporarily unavailable"),
    (12, Category.TRANSIENT, "it cannot be started: Cannot allocate memory"),
    (2, Category.PERMANENT, "it cannot be started: No such file or directory"),
    (13, Category.PERMANENT, "it cannot be started: Permission denied"),
    (8, Category.PERMANENT, "it cannot be started: Exec format error"),
    (5, Category.SYSTEM, "it cannot be started: Input/output error"),
    (None, Category.SYSTEM, "it cannot be started"),
]


@linux
@pytest.mark.parametrize(("number", "category", "told"), STARTS)
def test_what_cannot_be_started_may_be_there_the_next_time(number: int | None, category: Category, told: str) -> None:
    assert failure_of_start(StartFailed("/opt/secret/place: why", number)) == Failure(category, told)
