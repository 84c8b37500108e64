"""`sidecar agent`: checks, runs and inspects CLI programs that are agents."""

from __future__ import annotations

from collections.abc import Mapping

import click

from sidecar.cli.lazy_group import LazyGroup

COMMANDS: Mapping[str, tuple[str, str]] = {
    "list": ("sidecar.cli.agent.listing", "Every agent that is a program, and how it stands."),
    "check": ("sidecar.cli.agent.check", "Look whether it can run, and try it; needs no running sidecar."),
    "run": ("sidecar.cli.agent.run", "Run it, and show what it says as it comes."),
    "runs": ("sidecar.cli.agent.listing", "Runs, newest first."),
    "show": ("sidecar.cli.agent.listing", "One run: states, tries, what it took, and the end of what it said."),
    "logs": ("sidecar.cli.agent.run", "What a run said; with -f as it comes."),
    "answer": ("sidecar.cli.agent.run", "Tell a run that asked what it asked for."),
    "cancel": ("sidecar.cli.agent.run", "Give a run up."),
}


@click.group(cls=LazyGroup, commands_in=COMMANDS)
def agent() -> None:
    """CLI programs as agents."""
