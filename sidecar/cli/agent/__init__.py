"""`sidecar agent`: checks, runs and inspects CLI programs that are agents."""

from __future__ import annotations

from collections.abc import Mapping

import click

from sidecar.cli.lazy_group import Group

COMMANDS: Mapping[str, tuple[str, str]] = {
    "list": ("sidecar.cli.agent.listing", "Every agent that is a CLI program, and its state."),
    "check": ("sidecar.cli.agent.check", "Check whether it can run, and run it once; needs no running sidecar."),
    "run": ("sidecar.cli.agent.run", "Run it, and show its output as it comes."),
    "runs": ("sidecar.cli.agent.listing", "Runs, newest first."),
    "show": ("sidecar.cli.agent.listing", "One run: states, attempts, usage, and the end of its output."),
    "logs": ("sidecar.cli.agent.run", "The output of a run; with -f as it comes."),
    "answer": ("sidecar.cli.agent.run", "Answer a run that waits for input."),
    "cancel": ("sidecar.cli.agent.run", "Cancel a run."),
}


@click.group(cls=Group, commands_in=COMMANDS)
def agent() -> None:
    """CLI programs as agents."""
