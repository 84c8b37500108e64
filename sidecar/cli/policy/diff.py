"""`sidecar policy diff`: shows whose access changes between two policies."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import click
import orjson

from sidecar.errors import ConfigError, visible_lines
from sidecar.policy_tools.catalogue import read_catalogue
from sidecar.policy_tools.diff import Difference, difference, load
from sidecar.policy_tools.diff.formats import as_data, as_markdown, as_text
from sidecar.policy_tools.git_revisions import Revision, opened
from sidecar.policy_tools.policy_location import configured

INVALID, DIFFERENT = 3, 6  # CONTRACT 3
_WORKING_TREE = "working tree"


@click.command()
@click.argument("old")
@click.argument("new", required=False)
@click.option(
    "-c", "--config", type=click.Path(dir_okay=False, path_type=Path), default="sidecar.yaml", show_default=True,
    help="Names the present policy, for when NEW is left out.",
)  # fmt: skip
@click.option(
    "--catalogue",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="What exists, YAML or JSON, server → tools: only answers about that and about names in the policies.",
)
@click.option("--markdown", is_flag=True, help="For a comment on a pull request.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option(
    "--fail-on",
    type=click.Choice(["wider", "any"]),
    help="wider: exit 6 only if an answer or an amount is wider or unknown. any: exit 6 for any difference at all.",
)
def diff(
    old: str,
    new: str | None,
    config: Path,
    catalogue: Path | None,
    markdown: bool,
    as_json: bool,
    fail_on: Literal["wider", "any"] | None,
) -> None:
    """Which answers change between two policies?

    OLD and NEW are folders (with policies/ and perhaps models/, or of rows themselves) or git revisions: main, HEAD~1,
    abc123, or rev:path. NEW is the present policy, if it is left out.

    Computed from rules, roles and sets, never from samples. Each region of (subject, object, action) is wider (was
    denied, is allowed), narrower, or unknown (it depends on conditions or on the time); where regions meet, unknown
    goes before. Also told: rules, limits, budgets, expiries, conditions, shadow flags, roles, sets and models.

    Exits 6 if answers differ, 0 if not. With --fail-on it exits 6 as that says, and 0 otherwise. Exits 3 if a policy
    cannot be read.
    """
    if markdown and as_json:
        raise click.UsageError("--markdown and --json exclude each other")
    try:
        found = _found(old, new, config, catalogue)
    except ConfigError as error:
        click.echo(str(error), err=True)
        sys.exit(INVALID)
    if as_json:
        click.echo(orjson.dumps(as_data(found)))
    else:
        click.echo(visible_lines(as_markdown(found) if markdown else as_text(found)))
    if _fails(found, fail_on):
        sys.exit(DIFFERENT)


def _found(old: str, new: str | None, config: Path, catalogue: Path | None) -> Difference:
    objects = None if catalogue is None else read_catalogue(catalogue).objects
    with ExitStack() as stack:
        before = stack.enter_context(opened(old, directory=Path()))
        if new is None:
            after = Revision(_WORKING_TREE, configured(config, os.environ))
        else:
            after = stack.enter_context(opened(new, directory=Path()))
        return difference(load(before), load(after), objects)


def _fails(found: Difference, fail_on: Literal["wider", "any"] | None) -> bool:
    match fail_on:
        case "wider":
            return found.may_be_wider
        case "any":
            return found.anything
    return bool(found.regions)
