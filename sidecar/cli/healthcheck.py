"""`sidecar healthcheck`: asks a running sidecar whether it is ready."""

from pathlib import Path

import click
import orjson

from sidecar.cli.command import NO, config_and_json, settings_in
from sidecar.cli.operator_socket import ask_control


@click.command()
@config_and_json
def healthcheck(config: Path, as_json: bool) -> None:
    """Report whether a running sidecar is ready, over its control socket. For images without a shell."""
    try:
        status, body = ask_control(settings_in(config).control_path, "/readyz")
    except OSError as error:
        status, body = 0, orjson.dumps({"status": "unreachable", "reasons": [str(error)]})
    click.echo(body if as_json else orjson.loads(body)["status"])
    if status != 200:
        raise SystemExit(NO)
