"""`sidecar policy`: checks, tests and compares policies before they are used. One file per command."""

from __future__ import annotations

from collections.abc import Mapping

import click

from sidecar.cli.lazy_group import LazyGroup

COMMANDS: Mapping[str, tuple[str, str]] = {
    "check": ("sidecar.cli.policy.check", "Everything in models and rows that is refused or suspicious."),
    "test": ("sidecar.cli.policy.test", "Run the policy's own tests on the engine that serves."),
    "explain": ("sidecar.cli.policy.explain", "Why is it allowed or denied, link by link?"),
    "diff": ("sidecar.cli.policy.diff", "Whose answers change between two policies?"),
    "replay": ("sidecar.cli.policy.replay", "Recorded decisions, decided anew by a candidate policy."),
    "suggest": ("sidecar.cli.policy.suggest", "The fewest rules that allow what was recorded, and nothing else."),
    "convert": ("sidecar.cli.policy.convert", "Rows between CSV and YAML, without loss."),
    "export": ("sidecar.cli.policy.export", "The policy for plain pycasbin."),
    "bundle": ("sidecar.cli.policy.bundle", "A policy in one signed file."),
    "bench": ("sidecar.cli.policy.bench", "How long does a decision take, here and at other sizes?"),
}


@click.group(cls=LazyGroup, commands_in=COMMANDS)
def policy() -> None:
    """Policy as code, on the engine that serves."""
