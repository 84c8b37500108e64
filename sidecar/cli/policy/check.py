"""`sidecar policy check`: reports errors and warnings in a policy."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from sidecar.cli.command import CONFIG, CONFIG_VARIABLE, FILE, INVALID, catalogue_option, settings_in, usual_config
from sidecar.cli.timestamps import Instant
from sidecar.errors import ConfigError
from sidecar.policy_tools.catalogue import read_catalogue
from sidecar.policy_tools.check import CheckReport, check as checked, repository_of
from sidecar.policy_tools.check.formats import FORMATS
from sidecar.policy_tools.check.linted_policy import Granting
from sidecar.policy_tools.policy_location import PolicyLocation, configured, in_folder


@click.command()
@click.argument("path", required=False, type=click.Path(path_type=Path))
@click.option("-c", "--config", type=FILE, help=f"Default: ${CONFIG_VARIABLE}, or {CONFIG}.")
@click.option(
    "--format",
    "form",
    type=click.Choice(list(FORMATS)),
    default="text",
    show_default=True,
    help="The format of the output.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option("--strict", is_flag=True, help="Exit with 3 for warnings too; require owners.")
@click.option(
    "--soon",
    type=click.FloatRange(min=0),
    default=14,
    metavar="DAYS",
    show_default=True,
    help="Warn about what expires within so many days.",
)
@click.option("--now", type=Instant(), help="The time to check at (RFC 3339); by default now.")
@catalogue_option
def check(
    path: Path | None,
    config: Path | None,
    form: str,
    as_json: bool,
    strict: bool,
    soon: float,
    now: float | None,
    catalogue: Path | None,
) -> None:
    """Report errors and warnings in models, rows and budgets: the part of `sidecar check` that needs no keys, addresses
    or stores.

    PATH is a folder with policies/ and optionally models/, or of rows; by default the policy that sidecar.yaml names.
    With both, PATH is checked as if it were the policy of that sidecar.yaml. Exits with 3 for errors."""
    try:
        place, granting = surroundings(path, config)
        known = read_catalogue(catalogue) if catalogue is not None else None
        report = checked(place, granting=granting, catalogue=known, now_s=now, soon_days=soon, strict=strict)
    except ConfigError as error:
        place, report = None, CheckReport(tuple(error.faults))
    where = str(path or (place.policies if place else config or usual_config()))
    root = repository_of(place.policies if place else Path())
    click.echo(FORMATS["json" if as_json else form](report, where, root))
    if not report.valid or (strict and report.faults):
        raise SystemExit(INVALID)


def surroundings(path: Path | None, config: Path | None) -> tuple[PolicyLocation, Sequence[Granting] | None]:
    """Returns the policy, and the roles that tokens can grant; None without a sidecar.yaml. Raises SettingsError."""
    if path is not None and config is None:
        return in_folder(path), None
    file = config or usual_config()
    place = configured(file, os.environ)
    if path is not None:
        folder = in_folder(path)
        place = replace(place, models=folder.models, policies=folder.policies)
    if not file.exists():
        return place, None
    claims = [claim for issuer in settings_in(file).identity.issuers if (claim := issuer.roles_from) is not None]
    return place, [Granting(claim.namespace, tuple(claim.only), claim.required) for claim in claims]
