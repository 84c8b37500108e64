"""`sidecar policy suggest`: writes the fewest rules that allow the recorded use and nothing else that is known."""

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import click

from sidecar.audit.chain import MAX_LINE_BYTES
from sidecar.cli.audit.log_files import logs
from sidecar.cli.command import FILE, FOLDER, NO, CommandFailed, catalogue_option, json_option, print_json, usual_config
from sidecar.cli.policy.convert import write_files
from sidecar.cli.terminal import progress
from sidecar.cli.timestamps import Moment
from sidecar.policy import PolicySource
from sidecar.policy_tools.catalogue import Known, KnownCatalogue, exact_names, read_catalogue
from sidecar.policy_tools.policy_location import MODELS, POLICIES, PolicyLocation, configured
from sidecar.policy_tools.suggest.evidence import SuggestQuery, UsageEvidence
from sidecar.policy_tools.suggest.render import as_data, csv_files, notes, one_text
from sidecar.policy_tools.suggest.suggestion import Suggestion, suggest as find
from sidecar.policy_tools.suggest.terms import Present
from sidecar.policy_tools.suggest.verification import prove, read_back
from sidecar.settings.shipped_files import shipped
from sidecar.vocabulary import PermissionKind

_LOG = click.Path(exists=True, allow_dash=True, path_type=Path)


@click.command()
@click.argument("audit", nargs=-1, required=True, type=_LOG)
@click.option("-c", "--config", type=FILE, help="Names the current policy.")
@catalogue_option
@click.option(
    "--widen", type=click.IntRange(0, 1000), default=0, help="Number of unused objects that each pattern may match."
)
@click.option("--include", type=click.Choice(["denied"]), help="Include calls that no rule allowed.")
@click.option("--since", type=Moment(), default=None, help="A time, or a span back from now (15m, 2h, 7d).")
@click.option("--until", type=Moment(), default=None, help="End of the time span, exclusive; same formats as --since.")
@json_option
@click.option("-o", "--output", type=FOLDER, help="An empty or new folder for the rules.")
def suggest(
    audit: tuple[Path, ...],
    config: Path | None,
    catalogue: Path | None,
    widen: int,
    include: str | None,
    since: str | None,
    until: str | None,
    as_json: bool,
    output: Path | None,
) -> None:
    """Write the fewest rules that allow every recorded call and no other known one.

    AUDIT are audit logs or their folders (`-` is standard input). Known names are those in the logs, in the current
    policy and in --catalogue. Only allowed calls count. The new rules have the conditions, limits, expiries and
    approvals of the rows that allowed a call, and denying rows are copied: no rule allows more than the current policy.

    Exits with 1 if nothing was recorded, or if a recorded call cannot be written as a rule."""
    if output is not None and output.exists() and any(output.iterdir()):
        raise click.UsageError(f"{output} is not empty; rules are written to an empty or new folder")
    place, source = _present(config)
    evidence = _read(audit, SuggestQuery(since or "", until or "", include == "denied"))
    if source is not None:
        _leave_to_casbin(evidence, source)
    listed = read_catalogue(catalogue) if catalogue else KnownCatalogue()
    subjects, objects = exact_names((source.own_rules,), (source,)) if source else ([], [])
    everything = {*evidence.objects, *objects, *listed.objects}
    known = Known.of({*evidence.subjects, *subjects}, everything, listed.servers)
    present = Present.of(source) if source else Present()
    suggestion = find(evidence, known, present, widen=widen) if evidence.traces else None
    if suggestion is None or not evidence.traces:  # finding may discard all of them; an empty policy is refused (P004)
        for note in notes(Suggestion((), {}, {}, frozenset()), evidence, present):
            click.echo(f"note: {note}", err=True)
        raise CommandFailed("nothing was recorded that a rule could allow")
    bare = suggestion.bare()
    cells = prove(csv_files(bare, present), place.own_models, bare, evidence, known)
    files = csv_files(suggestion, present)
    read_back(files, place.own_models, suggestion)
    if output is not None:
        write_files({output / name: text.encode() for name, text in files.items()})
    if as_json:
        print_json(as_data(suggestion, evidence, present) | {"proof": {"cells": cells}})
    elif output is None:
        click.echo(one_text(files), nl=False)
    if not as_json:
        _tell(suggestion, evidence, present, cells, output)
    if evidence.left_out:
        sys.exit(NO)


def _leave_to_casbin(evidence: UsageEvidence, source: PolicySource) -> None:
    """Removes the uses that a Casbin model decides: the sidecar's own rows never apply to them, and rows in Casbin's
    form that allow exactly these uses cannot be determined for matchers in general. Raises CommandFailed if no use is
    left."""
    uses: Counter[PermissionKind] = Counter()
    for triple in [triple for triple in evidence.traces if triple.kind in source.stock]:
        uses[triple.kind] += evidence.traces.pop(triple).uses
    for kind, count in uses.items():
        model = source.stock[kind].source.file
        said = f"{count} uses that {model} decides ({kind.value}): rules are written for the sidecar's own models only"
        if not evidence.traces:
            hint = "sidecar policy explain --decision ID shows the rows that allowed a call"
            raise CommandFailed(f"nothing is suggested for {said}", hint=hint)
        click.echo(f"note: left out are {said}", err=True)


def _present(config: Path | None) -> tuple[PolicyLocation, PolicySource | None]:
    """Returns the present policy: the named one, or that of this folder; otherwise none, with the built-in models."""
    if config is None and not usual_config().exists() and not Path(POLICIES).is_dir():
        return PolicyLocation(shipped(MODELS), Path(POLICIES)), None
    place = configured(config or usual_config(), os.environ)
    return place, place.load()


def _read(paths: tuple[Path, ...], wanted: SuggestQuery) -> UsageEvidence:
    evidence = UsageEvidence()
    with progress("lines read") as tell:
        for path in paths:
            if str(path) == "-":
                evidence.read(_lines(sys.stdin.buffer, tell), wanted, "standard input")
                continue
            for part in logs([path]):
                with part.open("rb") as file:
                    evidence.read(_lines(file, tell), wanted, str(part))
    return evidence


def _lines(file: BinaryIO, tell: Callable[[int], None]) -> Iterator[bytes]:
    for count, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES), b""), start=1):
        yield line
        tell(count)


def _tell(suggestion: Suggestion, evidence: UsageEvidence, present: Present, cells: int, output: Path | None) -> None:
    count, triples = len(suggestion.rules), len(evidence.traces)
    bound = "; no smaller set exists" if suggestion.fewest else ""
    where = f", in {output}" if output else ""
    click.echo(f"{count} rules for {triples} recorded triples{where}{bound}", err=True)
    click.echo(f"checked against all {cells:,} known (subject, object, action)", err=True)
    for note in notes(suggestion, evidence, present):
        click.echo(f"note: {note}", err=True)
