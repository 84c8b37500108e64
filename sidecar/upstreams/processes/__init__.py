"""Starts and ends programs, with all their descendants.

    Processes    start(Program) → Process: its three streams, wait(), end()
    output_share.py    what programs say, read at nobody's cost
    warden.py    the program that starts them for us: small, forked from again and again, and there when we are not

A child has its own session and process group, exactly the environment that it is given, no descriptor but its three
streams, the umask 077, and can gain no privileges. When it ends or is ended, everything that it ever started ends too:
on Linux also what left its session or was orphaned, because its keeper is a *subreaper* and becomes the parent of all
of it; elsewhere (macOS) its process group. That holds when the sidecar is killed: the keeper's line breaks, and it ends
what it keeps. Whoever may live only as long as somebody says so again and again has its end set ahead (`WaitLimit`).
Nothing in here knows who the program is for.
"""

from sidecar.upstreams.processes.launcher import Exit, Process, Processes, ProcessUsage, Program, StartFailed, WaitLimit

__all__ = ["Exit", "Process", "ProcessUsage", "Processes", "Program", "StartFailed", "WaitLimit"]
