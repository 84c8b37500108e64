"""`sidecar reload`: makes a running sidecar read its files again."""

from pathlib import Path

import click

from sidecar.cli.command import INVALID, CommandFailed, config_and_json, print_json, settings_in
from sidecar.cli.operator_socket import exchange, refused

HINT = "is it running? If it is, `sidecar status` shows the revision in force"


@click.command()
@config_and_json
def reload(config: Path, as_json: bool) -> None:
    """Reload all files, as SIGHUP does, and print the policy revision in force.

    If a file is invalid, the command prints the faults and exits with 3; the previous policy stays in force."""
    status, answer = exchange(settings_in(config).control_path, "/api/reload", {}, hint=HINT)
    faults = answer.get("faults", ())
    if as_json:
        print_json(answer)
        if faults:
            raise SystemExit(INVALID)
    if faults:
        raise CommandFailed("\n".join([*faults, answer["error"]]), INVALID)
    if status >= 300:
        refused(status, answer, quiet=as_json)
    if not as_json:
        click.echo(f"revision {answer['revision']} serves")
        for section in answer["needs_restart"]:
            click.echo(f"   note: {section} changed, which takes effect at a restart")
