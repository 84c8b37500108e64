"""`sidecar audit`: verifies and shows audit records. One file per command."""

from __future__ import annotations

from collections.abc import Mapping

import click

from sidecar.cli.lazy_group import Group

COMMANDS: Mapping[str, tuple[str, str]] = {
    "verify": ("sidecar.cli.audit.verify", "Find records that were changed, removed, moved, inserted or cut off."),
    "show": ("sidecar.cli.audit.show", "Print records, follow them, or count them."),
    "gather": ("sidecar.cli.audit.gather", "Read a log back from where it was sent."),
    "prove": ("sidecar.cli.audit.prove", "Check whether the hash of a record is that of these arguments."),
}


@click.group("audit", cls=Group, commands_in=COMMANDS)
def audit() -> None:
    """Verify and read the audit log."""
