"""Where does a program spend its CPU time?

`python -m bench.sampling OUT PROGRAM...` runs `python -m PROGRAM...` and looks at its stack at every tick of its CPU
time. Costs the program nothing that could be measured, so that shares are real ones; what C code does is counted where
Python called it.
"""

from __future__ import annotations

import json
import runpy
import signal
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

TICK_S = 0.001  # the kernel makes of it what its clock allows, often 4 ms


class Sampler:
    """Counts lines that were running, and functions that were on the stack."""

    def __init__(self) -> None:
        self.lines: Counter[str] = Counter()
        self.functions: Counter[str] = Counter()
        self.samples = 0

    def look(self, _signal: int, frame: FrameType | None) -> None:
        if frame is None:
            return
        self.samples += 1
        self.lines[f"{_name(frame)}:{frame.f_lineno}"] += 1
        seen = set()
        below: FrameType | None = frame
        while below is not None:
            seen.add(_name(below))
            below = below.f_back
        self.functions.update(seen)

    def report(self) -> Mapping[str, Any]:
        return {
            "samples": self.samples,
            "lines": self.lines.most_common(60),
            "functions": self.functions.most_common(400),
        }


def _name(frame: FrameType) -> str:
    path = Path(frame.f_code.co_filename)
    return f"{path.parent.name}/{path.stem}.{frame.f_code.co_qualname}"


def main() -> None:
    """Run the program that the command line names."""
    out, program = Path(sys.argv[1]), sys.argv[2]
    sys.argv = sys.argv[2:]
    sampler = Sampler()
    signal.signal(signal.SIGPROF, sampler.look)
    # Only from SIGUSR1 on: what a start costs is another question.
    signal.signal(signal.SIGUSR1, lambda *_: signal.setitimer(signal.ITIMER_PROF, TICK_S, TICK_S))
    try:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        out.write_text(json.dumps(sampler.report()), "utf-8")


if __name__ == "__main__":
    main()
