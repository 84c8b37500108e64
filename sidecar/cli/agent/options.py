"""Options that all `sidecar agent` commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

OPERATOR: Final = "nhi:operator"
DEADLINE_S: Final = 30.0  # for starting and for cancelling a run

config = click.option(
    "-c", "--config", "path", type=click.Path(dir_okay=False, path_type=Path), default="sidecar.yaml", show_default=True
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
