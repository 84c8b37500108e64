"""`sidecar policy`: checks, tests and compares policies before they are used. One file per command."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from sidecar.cli.lazy_group import Group

COMMANDS: Mapping[str, tuple[str, str]] = {
    "check": ("sidecar.cli.policy.check", "Report errors and warnings in models and rows."),
    "test": ("sidecar.cli.policy.test", "Run the policy's own tests on the engine that serves."),
    "explain": ("sidecar.cli.policy.explain", "Show why a call is allowed or denied, link by link."),
    "diff": ("sidecar.cli.policy.diff", "Show whose access changes between two policies."),
    "replay": ("sidecar.cli.policy.replay", "Decide recorded calls again, with a candidate policy."),
    "suggest": ("sidecar.cli.policy.suggest", "Write the fewest rules that allow what was recorded, and nothing else."),
    "convert": ("sidecar.cli.policy.convert", "Convert rows between CSV and YAML, without loss."),
    "export": ("sidecar.cli.policy.export", "Write the policy for plain pycasbin."),
    "bundle": ("sidecar.cli.policy.bundle", "Pack a policy into one signed file."),
    "bench": ("sidecar.cli.policy.bench", "Measure decisions, of this policy and at other sizes."),
}


@click.group(cls=Group, commands_in=COMMANDS)
def policy() -> None:
    """Policy as code, on the engine that serves."""


def write_files(files: Mapping[Path, bytes], *, force: bool = False) -> None:
    """Write all of the files or none. Raises UsageError, also if one exists and may not be overwritten."""
    from sidecar.policy_tools.atomic_files import UnwrittenError, write_all

    try:
        write_all(files, force=force)
    except UnwrittenError as unwritten:
        raise click.UsageError(str(unwritten)) from None
