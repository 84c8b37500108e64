"""`sidecar policy diff`: shows the access that changes between two policies."""

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import click

from sidecar.cli.command import DIFFERENT, catalogue_option, config_option_for, json_option, print_json
from sidecar.errors import visible_lines
from sidecar.policy_tools.catalogue import read_catalogue
from sidecar.policy_tools.diff import difference, load
from sidecar.policy_tools.diff.formats import as_data, as_markdown, as_text
from sidecar.policy_tools.git_revisions import Revision, opened
from sidecar.policy_tools.policy_location import configured


@click.command()
@click.argument("old")
@click.argument("new", required=False)
@config_option_for("Names the policy NEW if NEW is missing.")
@catalogue_option
@click.option("--markdown", is_flag=True, help="Print Markdown, for a comment on a pull request.")
@json_option
@click.option(
    "--fail-on",
    type=click.Choice(["wider", "any"]),
    help="wider: exit with 6 only if a decision or an amount is wider or unknown. any: exit with 6 for any difference.",
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
    """Show which decisions change between two policies.

    OLD and NEW are folders (with policies/ and optionally models/, or of rows) or git revisions: main, HEAD~1, abc123,
    or rev:path. By default NEW is the policy of the configuration. With --catalogue, only decisions about its tools and
    about names in the policies are compared.

    The result is computed from rules, roles and sets, not from samples. Each region of (subject, object, action) is
    wider (was denied, is allowed), narrower, or unknown (it depends on conditions or on the time); overlapping regions
    are unknown. An approval that is no longer required is wider, a new one narrower. Changed rules, limits, budgets,
    expiries, conditions, terms of approvals, shadow flags, roles, sets and models are listed too.

    Exits with 6 if decisions differ (see --fail-on), and with 3 if a policy cannot be read."""
    if markdown and as_json:
        raise click.UsageError("--markdown and --json exclude each other")
    objects = None if catalogue is None else read_catalogue(catalogue).objects
    with ExitStack() as stack:
        before = stack.enter_context(opened(old, directory=Path()))
        if new is None:
            after = Revision("working tree", configured(config, os.environ))
        else:
            after = stack.enter_context(opened(new, directory=Path()))
        found = difference(load(before), load(after), objects)
    if as_json:
        print_json(as_data(found))
    else:
        click.echo(visible_lines(as_markdown(found) if markdown else as_text(found)))
    if {"wider": found.may_be_wider, "any": found.anything, None: bool(found.regions)}[fail_on]:
        sys.exit(DIFFERENT)
