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


# Stages of a call, by the file that runs: the first match counts, and the innermost frame that has one. What matches
# none (the event loop, its system calls) is the loop's.
STAGES = (
    ("aiohttp/", "http server"),
    ("sidecar/http/server/", "http server"),
    ("sidecar/gateway/routing", "http server"),
    ("sidecar/identity/", "identity"),
    ("sidecar/gateway/frontends/", "parse"),
    ("sidecar/protocols/", "parse"),
    ("sidecar/policy/similar_keys", "arguments"),
    ("sidecar/policy/", "policy"),
    ("sidecar/upstreams/mcp/arguments", "arguments"),
    ("sidecar/upstreams/mcp/catalogue", "arguments"),
    ("sidecar/limits/", "limits"),
    ("sidecar/audit/", "audit"),
    ("sidecar/upstreams/", "upstream"),
    ("sidecar/http/client/", "upstream"),
    ("sidecar/gateway/response_", "response"),
    ("sidecar/gateway/request_metrics", "metrics"),
    ("sidecar/observability/", "metrics"),
    ("sidecar/gateway/", "pipeline"),
)
LOOP = "loop"


class Sampler:
    """Counts lines that were running, functions that were on the stack, and stages. A signal is handled in the main
    thread, so that what another thread does counts for what the main thread is at."""

    def __init__(self) -> None:
        self.lines: Counter[str] = Counter()
        self.functions: Counter[str] = Counter()
        self.stages: Counter[str] = Counter()
        self.samples = 0

    def look(self, _signal: int, frame: FrameType | None) -> None:
        if frame is None:
            return
        self.samples += 1
        self.lines[f"{_name(frame)}:{frame.f_lineno}"] += 1
        self.stages[_stage(frame)] += 1
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
            "stages": dict(self.stages),
        }


def _stage(frame: FrameType | None) -> str:
    while frame is not None:
        for part, stage in STAGES:
            if part in frame.f_code.co_filename:
                return stage
        frame = frame.f_back
    return LOOP


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
