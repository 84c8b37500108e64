"""`sidecar policy export`: writes the policy for plain pycasbin."""

from __future__ import annotations

import os
from pathlib import Path

import click

from sidecar.cli.command import config_option, json_option, print_json
from sidecar.cli.policy import write_files
from sidecar.policy_tools.export import export as exported
from sidecar.policy_tools.policy_location import configured


@click.command()
@click.option("--casbin", "folder", type=click.Path(path_type=Path), required=True, help="Folder to write.")
@config_option
@click.option("--force", is_flag=True, help="Overwrite files.")
@json_option
def export(folder: Path, config: Path, force: bool, as_json: bool) -> None:
    """Write the policy for plain pycasbin: models, rows, and an enforce.py with the sidecar's functions."""
    place = configured(config, os.environ)
    source = place.load()
    done = exported(source, place.models)
    write_files({folder / name: raw for name, raw in done.files.items()}, force=force)
    if as_json:
        said = {"files": list(done.files), "rules": done.rules, "shadow_rules_left_out": done.shadows}
        print_json({**said, "revision": source.revision})
        return
    click.echo(f"{done.rules} rules of revision {source.revision[:16]} in {folder}")
    if done.shadows:
        click.echo(f"shadow rules change nothing and were left out: {', '.join(done.shadows)}")
    click.echo(f"try: python {folder / 'enforce.py'} nhi:planner tool:demo/add tools/call")
