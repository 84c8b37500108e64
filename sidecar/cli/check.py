"""`sidecar check`: checks everything that a start would check, and reports suspicious parts of the policy."""

import os
from dataclasses import replace
from pathlib import Path

import click

from sidecar.cli.command import INVALID, catalogue_option, check_installation, config_and_json, print_json
from sidecar.cli.policy.check import surroundings
from sidecar.errors import ConfigError, Fault
from sidecar.policy_tools.catalogue import read_catalogue
from sidecar.policy_tools.check import CheckReport, check as checked
from sidecar.policy_tools.check.formats import plain


@click.command()
@config_and_json
@click.option("--strict", is_flag=True, help="Exit with 3 for warnings too; require owners.")
@click.option(
    "--soon",
    "soon_days",
    type=click.FloatRange(min=0),
    default=14,
    metavar="DAYS",
    show_default=True,
    help="Warn about what expires within so many days.",
)
@catalogue_option
def check(config: Path, as_json: bool, strict: bool, soon_days: float, catalogue: Path | None) -> None:
    """Check configuration, models, rules, budgets and keys without serving. Includes the findings of `policy check`."""
    check_installation()
    report = _reported(config, strict, soon_days, catalogue)
    if as_json:
        said = {"valid": report.valid, "faults": [plain(fault) for fault in report.faults]}
        print_json({**said, "revision": report.revision, "rules": report.rules} if report.valid else said)
    else:
        for fault in report.faults:
            click.echo(str(fault), err=True)
        if report.valid:
            counted = ", ".join(f"{count} {kind}" for kind, count in report.rules.items() if count)
            click.echo(f"{config} is valid: {counted or 'no'} rules, revision {report.revision}")
    if not report.valid or (strict and report.faults):
        raise SystemExit(INVALID)


def _reported(config: Path, strict: bool, soon_days: float, catalogue: Path | None) -> CheckReport:
    from sidecar.app.loader import check_files  # takes twice as long to import as the rest, which is enough for help

    faults, rules = list[Fault](), dict[str, int]()
    try:
        engine, doubts = check_files(config, os.environ)
        faults, rules = list(doubts), dict(engine.rule_counts)
    except ConfigError as error:
        faults = list(error.faults)
    try:
        place, granting = surroundings(None, config)
        known = read_catalogue(catalogue) if catalogue is not None else None
        report = checked(place, granting=granting, catalogue=known, soon_days=soon_days, strict=strict)
    except ConfigError as error:
        report = CheckReport(tuple(error.faults))
    told = {_place_of(fault) for fault in faults}
    faults += [fault for fault in report.faults if _place_of(fault) not in told]
    return replace(report, faults=tuple(faults), rules=rules)


def _place_of(fault: Fault) -> tuple[str, int, str, str]:
    return fault.file, fault.line, fault.code, fault.message
