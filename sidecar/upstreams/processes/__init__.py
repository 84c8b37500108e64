"""Starts and ends programs, with all their descendants.

    launcher.py   Processes: start(Program) → Process, with its three streams, wait() and end(); output_of(Program)
    warden.py     a small process that forks the programs and outlives the sidecar

A child has its own session and process group, exactly the given environment, no descriptors but its three streams, the
umask 077, and cannot gain privileges. When it ends or is ended, everything that it started ends too: on Linux also what
left its session or was orphaned, because its keeper is a *subreaper* and becomes the parent of all of it; elsewhere
(macOS) its process group. That holds when the sidecar is killed: the keeper's line breaks, and it ends the program. A
program may also have an end set in advance, which the sidecar must keep extending (`WaitLimit`). Nothing in here knows
what the program is for.
"""

from sidecar.upstreams.processes.launcher import (
    CapturedOutput,
    Exit,
    Process,
    Processes,
    ProcessUsage,
    Program,
    StartFailed,
    WaitLimit,
    output_of,
)

__all__ = [
    "CapturedOutput",
    "Exit",
    "Process",
    "ProcessUsage",
    "Processes",
    "Program",
    "StartFailed",
    "WaitLimit",
    "output_of",
]
