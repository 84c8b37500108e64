"""`sidecar audit`: verifies and shows audit records. One file per command."""

from __future__ import annotations

from collections.abc import Mapping

import click

from sidecar.cli.lazy_group import LazyGroup

COMMANDS: Mapping[str, tuple[str, str]] = {
    "verify": ("sidecar.cli.audit.verify", "Find whatever was changed, removed, moved, put in or cut off."),
    "show": ("sidecar.cli.audit.show", "Print records, follow them, or count them."),
    "gather": ("sidecar.cli.audit.gather", "Read a log back from where it was sent."),
    "prove": ("sidecar.cli.audit.prove", "Does the hash of a record stand for these arguments?"),
}


@click.group("audit", cls=LazyGroup, commands_in=COMMANDS)
def audit() -> None:
    """Check and read the evidence."""
