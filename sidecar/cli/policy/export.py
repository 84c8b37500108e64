"""`sidecar policy export`: writes the policy for plain pycasbin."""

from __future__ import annotations

import os
from pathlib import Path

import click
import orjson

from sidecar.errors import ConfigError
from sidecar.policy_tools.atomic_files import UnwrittenError, write_all
from sidecar.policy_tools.export import export as exported
from sidecar.policy_tools.policy_location import configured

INVALID = 3


@click.command()
@click.option("--casbin", "folder", type=click.Path(path_type=Path), required=True, help="Folder to write.")
@click.option("-c", "--config", "path", type=click.Path(path_type=Path), default="sidecar.yaml", show_default=True)
@click.option("--force", is_flag=True, help="Overwrite files.")
@click.option("--json", "as_json", is_flag=True, help="Print what was done as JSON.")
def export(folder: Path, path: Path, force: bool, as_json: bool) -> None:
    """The policy for plain pycasbin: models, rows, and an enforce.py with our functions."""
    try:
        place = configured(path, os.environ)
        source = place.load()
        done = exported(source, place.models)
    except ConfigError as error:
        click.echo(str(error), err=True)
        raise SystemExit(INVALID) from None
    try:
        write_all({folder / name: raw for name, raw in done.files.items()}, force=force)
    except UnwrittenError as unwritten:
        raise click.UsageError(str(unwritten)) from None
    if as_json:
        said = {"files": list(done.files), "rules": done.rules, "shadow_rules_left_out": done.shadows}
        click.echo(orjson.dumps({**said, "revision": source.revision}, option=orjson.OPT_INDENT_2))
        return
    click.echo(f"{done.rules} rules of revision {source.revision[:16]} in {folder}")
    if done.shadows:
        click.echo(f"shadow rules change nothing and were left out: {', '.join(done.shadows)}")
    click.echo(f"try: python {folder / 'enforce.py'} nhi:planner tool:demo/add tools/call")
