"""`sidecar policy suggest`: writes the fewest rules that allow what was recorded, and nothing else that is known."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, NoReturn

import click
import orjson

from sidecar.audit.chain import MAX_LINE_BYTES
from sidecar.audit.segments import given
from sidecar.cli.timestamps import Moment
from sidecar.errors import ConfigError
from sidecar.policy import Engine, PolicySource
from sidecar.policy_tools.atomic_files import UnwrittenError, write_all
from sidecar.policy_tools.catalogue import Known, KnownCatalogue, exact_names, read_catalogue
from sidecar.policy_tools.policy_location import MODELS, POLICIES, PolicyLocation, configured
from sidecar.policy_tools.suggest import (
    SUITE_FILE,
    Present,
    Suggestion,
    SuggestQuery,
    UsageEvidence,
    prove,
    read_back,
    suite_text,
)
from sidecar.policy_tools.suggest import suggest as find
from sidecar.policy_tools.suggest.render import YAML_FILE, as_data, csv_files, notes, one_text, yaml_text
from sidecar.settings.shipped_files import shipped

INCOMPLETE, CONFIG_INVALID = 1, 3  # CONTRACT 3
_PROGRESS_LINES = 100_000
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_LOG = click.Path(exists=True, allow_dash=True, path_type=Path)


@click.command()
@click.argument("audit", nargs=-1, required=True, type=_LOG)
@click.option("-c", "--config", type=click.Path(dir_okay=False, path_type=Path), help="Names the present policy.")
@click.option("--catalogue", type=_FILE, help="What exists: YAML or JSON, server → tools.")
@click.option("--widen", type=click.IntRange(0, 1000), default=0, help="Patterns may fit so many unused objects each.")
@click.option("--patterns/--no-patterns", default=True, help="Whether a pattern may stand for several objects.")
@click.option("--include", type=click.Choice(["denied"]), help="Also calls that were refused for want of a rule.")
@click.option("--drop-terms", is_flag=True, help="Without conditions, limits, expiries and denying rows.")
@click.option("--since", type=Moment(), default=None, help="A time, or a span back from now (15m, 2h, 7d).")
@click.option("--until", type=Moment(), default=None, help="Likewise; that moment itself not included.")
@click.option("--format", "form", type=click.Choice(["csv", "yaml"]), default="csv", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object: rules, what they stand on, counts.")
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="An empty or new folder: rules, and tests/.",
)
def suggest(
    audit: tuple[Path, ...],
    config: Path | None,
    catalogue: Path | None,
    widen: int,
    patterns: bool,
    include: str | None,
    drop_terms: bool,
    since: str | None,
    until: str | None,
    form: str,
    as_json: bool,
    output: Path | None,
) -> None:
    """Write the fewest rules that allow every recorded use and nothing else that is known.

    AUDIT are audit logs, or their folders (`-` is standard input). Known is what they show, what the present policy
    names, and what --catalogue lists. Only calls that were let through count. Conditions, limits and expiries of the
    rows that allowed a call are kept, and rows that deny go over: no rule allows more than the present policy. With
    --drop-terms, all of these are left out, and each rule says whose terms its records rested on.

    Exits 1 when nothing was recorded, or something recorded cannot be written as a rule.
    """
    if output is not None and output.exists() and any(output.iterdir()):
        raise click.UsageError(f"{output} is not empty; rules are written to an empty or new folder")
    try:
        place, source = _present(config)
        evidence = _read(audit, SuggestQuery(since or "", until or "", include == "denied"))
        known = _known(evidence, source, read_catalogue(catalogue) if catalogue else KnownCatalogue())
        present = Present.of(source) if source else Present()
        if drop_terms:
            present = replace(present, source=None)
        if not evidence.traces:
            _tell_nothing(evidence, present)
        suggestion = find(evidence, known, present, patterns=patterns, widen=widen)
        if not evidence.traces:
            _tell_nothing(evidence, present)
        bare = suggestion.bare()
        proof = prove(csv_files(bare, present), place.models, bare, evidence, known)
        files = csv_files(suggestion, present)
        if form == "yaml":
            files = {YAML_FILE: yaml_text(suggestion, present)}
        engine = Engine(read_back(files, place.models, suggestion))
        if output is not None:
            if form == "yaml":  # the output is what was verified
                prove({YAML_FILE: yaml_text(bare, present)}, place.models, bare, evidence, known)
            _write(output, {**files, SUITE_FILE: suite_text(suggestion, evidence, known, engine)})
    except ConfigError as error:
        click.echo(str(error), err=True)
        sys.exit(CONFIG_INVALID)
    if as_json:
        data = as_data(suggestion, evidence, present) | {"proof": {"cells": proof.cells, "asked": proof.asked}}
        click.echo(orjson.dumps(data))
    elif output is None:
        click.echo(files[YAML_FILE] if form == "yaml" else one_text(files), nl=False)
    if not as_json:
        _tell(suggestion, evidence, present, proof.cells, output)
    if evidence.left_out:
        sys.exit(INCOMPLETE)


def _present(config: Path | None) -> tuple[PolicyLocation, PolicySource | None]:
    """Return the present policy. Without a named one or one in this folder there is none, and the built-in models
    are used.
    """
    if config is None and not Path("sidecar.yaml").exists() and not Path(POLICIES).is_dir():
        return PolicyLocation(shipped(MODELS), Path(POLICIES)), None
    place = configured(config or Path("sidecar.yaml"), os.environ)
    return place, place.load()


def _read(paths: tuple[Path, ...], wanted: SuggestQuery) -> UsageEvidence:
    evidence = UsageEvidence()
    for path in paths:
        if str(path) == "-":
            evidence.read(_lines(sys.stdin.buffer), wanted, "standard input")
            continue
        for part in _given(path):
            with part.open("rb") as file:
                evidence.read(_lines(file), wanted, str(part))
    return evidence


def _given(path: Path) -> tuple[Path, ...]:
    try:
        return given(path)
    except OSError as error:
        raise click.UsageError(f"{error.filename}: {error.strerror}") from None


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield lines of bounded length, with progress on a terminal."""
    shows = sys.stderr.isatty()
    count = 0
    while line := file.readline(MAX_LINE_BYTES):
        yield line
        count += 1
        if shows and count % _PROGRESS_LINES == 0:
            click.echo(f"\r{count:,} lines", nl=False, err=True)
    if shows and count >= _PROGRESS_LINES:
        click.echo(f"\r{count:,} lines", err=True)


def _known(evidence: UsageEvidence, source: PolicySource | None, catalogue: KnownCatalogue) -> Known:
    subjects, objects = exact_names((source.rules,), (source,)) if source else ([], [])
    everything = {*evidence.objects, *objects, *catalogue.objects}
    return Known.of({*evidence.subjects, *subjects}, everything, catalogue.servers)


def _write(folder: Path, files: dict[str, str]) -> None:
    try:
        write_all({folder / name: text.encode() for name, text in files.items()}, force=False)
    except UnwrittenError as unwritten:
        raise click.UsageError(str(unwritten)) from None


def _tell_nothing(evidence: UsageEvidence, present: Present) -> NoReturn:
    """Report that nothing was recorded and exit: an empty policy is refused (P004)."""
    for note in notes(Suggestion((), {}, {}, frozenset(), 0), evidence, present):
        click.echo(f"note: {note}", err=True)
    click.echo("nothing was recorded that a rule could allow", err=True)
    sys.exit(INCOMPLETE)


def _tell(suggestion: Suggestion, evidence: UsageEvidence, present: Present, cells: int, output: Path | None) -> None:
    """Print the summary beside the output."""
    count, triples = len(suggestion.rules), len(evidence.traces)
    bound = "the fewest there can be" if suggestion.at_least == count else f"at least {suggestion.at_least} are needed"
    where = f", in {output}" if output else ""
    click.echo(f"{count} rules for {triples} recorded triples{where}; {bound}", err=True)
    click.echo(f"checked against all {cells:,} known (subject, object, action)", err=True)
    for note in notes(suggestion, evidence, present):
        click.echo(f"note: {note}", err=True)
