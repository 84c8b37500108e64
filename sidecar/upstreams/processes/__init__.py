"""Starts and ends programs, with all their descendants.

    launcher.py   Processes: start(Program) → Process, with its three streams, wait() and end(); output_of(Program)
    warden.py     a small process that forks the programs and outlives the sidecar

A child has its own session and process group, exactly the given environment, no descriptors except its three streams,
the umask 077, and cannot gain privileges. When it or the sidecar ends, everything that it started ends too: on Linux
including processes that left its session or were orphaned, because its keeper is a *subreaper*; on other systems
(macOS) its process group.
"""
