"""Runs `sidecar policy check` and `sidecar policy test` for operators, each in a process of its own.

Checking a large policy takes seconds of one core, which would delay calls. A process at lower priority does it, one run
at a time, and once for each state of the files: later requests for the same state get the same report.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import orjson

from sidecar.settings.timestamps import rfc3339
from sidecar.upstreams.processes.launcher import CapturedOutput, Processes, Program, StartFailed, output_of

Examined = Literal["check", "test"]
DEADLINE_S: Final = 120.0
MAX_REPORT_BYTES: Final = 8 * 2**20
MAX_TOLD: Final = 2_000  # characters of the reason why there is no report
ARGUMENTS: Final[Mapping[Examined, tuple[str, ...]]] = {"check": ("--json",), "test": ("--json", "--coverage")}
OUTCOMES: Final = ("failed", "skipped", "passed")
_BEGINNING: Final = "import os; os.nice(10); from sidecar.cli import main; main()"

log = logging.getLogger("sidecar.app.policy_examinations")


@dataclass(slots=True)
class Examination:
    """One run. `files` identifies the state of the files that it examines; `report` is None until it is available, and
    `why` is the reason if it never will be."""

    files: object
    began_at: float
    report: Mapping[str, Any] | None = None
    took_s: float | None = None
    why: str = ""

    def plain(self) -> Mapping[str, Any]:
        state = "failed" if self.why else "running" if self.report is None else "done"
        told = {"state": state, "began_at": rfc3339(self.began_at), "took_s": self.took_s, "why": self.why or None}
        return {**told, "report": self.report}


@dataclass(slots=True)
class PolicyExaminations:
    """The last reports on the files that `config` names. `files` returns a new object after each change of the
    files."""

    config: Path
    processes: Processes
    files: Callable[[], object]
    _last: dict[Examined, Examination] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)

    def see(self, what: Examined) -> Mapping[str, Any]:
        """Returns the examination of the current state of the files, which starts if there is none, or the one in
        progress, whose files may have changed since."""
        files, last = self.files(), self._last.get(what)
        if last is None or (last.files is not files and (last.report is not None or last.why)):
            last = self._last[what] = Examination(files, time.time())
            task = asyncio.create_task(self._examine(what, last), name=f"policy {what}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return last.plain()

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _examine(self, what: Examined, one: Examination) -> None:
        began_s = time.monotonic()
        command = ["policy", what, *ARGUMENTS[what], "-c", str(self.config.absolute())]
        program = Program(
            sys.executable,
            [sys.executable, "-P", "-c", _BEGINNING, *command],
            self.processes.environ,
            str(self.config.absolute().parent),
        )
        try:
            async with self._one_at_a_time, asyncio.timeout(DEADLINE_S):
                said = await output_of(self.processes, program, most=MAX_REPORT_BYTES)
            one.report, one.why = await asyncio.to_thread(_report_in, said)
        except TimeoutError:
            one.why = f"it took longer than {DEADLINE_S:.0f} s: run sidecar policy {what} where the policy is made"
        except StartFailed as error:
            one.why = f"its process cannot be started: {error}"
        except Exception as error:  # shown to operators; calls do not depend on it
            log.exception("the policy could not be examined", extra={"what": what})
            one.why = type(error).__name__
        finally:
            one.took_s = round(time.monotonic() - began_s, 3)


def _report_in(said: CapturedOutput) -> tuple[Mapping[str, Any] | None, str]:
    """Returns the report, with failing tests first, or the reason why there is none. Runs in a thread."""
    if len(said.stdout) >= MAX_REPORT_BYTES:
        return None, f"the report is larger than {MAX_REPORT_BYTES // 2**20} MiB: run the command in a shell"
    try:
        report = orjson.loads(said.stdout)
    except orjson.JSONDecodeError:
        told = said.stderr.decode("utf-8", "replace").strip()
        return None, told[:MAX_TOLD] or f"it ended with {said.exit}"
    if "tests" in report:
        report["tests"].sort(key=lambda one: OUTCOMES.index(one["outcome"]))
    return report, ""
