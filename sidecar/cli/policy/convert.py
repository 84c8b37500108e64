"""`sidecar policy convert`, `fmt` and `export`: converts rules between CSV and YAML, formats CSV, and writes the rules
for plain pycasbin."""

import os
from collections.abc import Collection, Mapping
from pathlib import Path

import click

from sidecar.cli.command import (
    DIFFERENT,
    EXISTING_FOLDER,
    NO,
    CommandFailed,
    config_option,
    json_option,
    print_json,
    print_result,
)
from sidecar.errors import ConfigError, PolicyError, visible
from sidecar.policy.faults import Faults
from sidecar.policy.files import POLICY, STEMS
from sidecar.policy_tools import convert as parts
from sidecar.policy_tools.casbin_calls import first_call
from sidecar.policy_tools.convert.content import DifferentError, columns_of
from sidecar.policy_tools.export import export as exported
from sidecar.policy_tools.policy_location import PolicyLocation, configured, in_folder
from sidecar.settings.writing import UnwrittenError, write_all


@click.command()
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.option("--to", type=click.Choice(["yaml", "csv"]), required=True, help="The new format.")
@click.option("-o", "--out", type=click.Path(path_type=Path), help="File or folder to write; a folder for a folder.")
@click.option("--kind", type=click.Choice(STEMS), help="Kind of the rows in a CSV file whose name does not contain it.")
@click.option(
    "--models", type=click.Path(path_type=Path), help="Folder of the models; by default models/ next to the policy."
)
@click.option("--force", is_flag=True, help="Overwrite files.")
@json_option
def convert(
    source: Path, to: parts.Form, out: Path | None, kind: str | None, models: Path | None, force: bool, as_json: bool
) -> None:
    """Convert rows between CSV and YAML, without loss. SOURCE is a file, or the folder of a policy.

    Without -o, a file is printed. With a folder, all other files in it (budgets, tests) are copied. The command checks
    that the result has the same rows, and the same revision if SOURCE is a complete policy."""
    if source.is_dir() and out is None:
        raise click.UsageError("a folder needs -o FOLDER: both forms in one policy would be every rule twice")
    try:
        place = in_folder(source if source.is_dir() else source.parent)
        where = place.policies if source.is_dir() else source
        if out is not None and source.is_dir() and out.resolve().is_relative_to(where.resolve()):
            raise click.UsageError(
                f"{out} is inside {where}: with both formats in one policy, every rule would be there twice"
            )
        _refuse_casbin(place, source)
        folder = models or place.own_models
        done = parts.convert(_files(where, kind), to, folder, columns_of(folder), str(place.policies))
    except DifferentError as different:
        raise CommandFailed(f"{different}\nnothing was written", NO)
    if not done.sources:
        raise click.UsageError(f"{source} holds no rows in {'CSV' if to == 'yaml' else 'YAML'}")
    if out is None and len(done.files) > 1:
        raise click.UsageError(f"this becomes several files ({', '.join(done.files)}): say -o FOLDER")
    if out is None:
        for raw in done.files.values():
            click.echo(raw.decode(), nl=False)
    else:
        write_files(_targets(source, out, done), force=force)
    _tell(done, out, as_json)


def _refuse_casbin(place: PolicyLocation, source: Path) -> None:
    """Raises UsageError, because rows of Casbin models have only Casbin's form."""
    files, stems = _of_casbin(place)
    if stems and (source.is_dir() or source.name.partition(".")[0] in stems):
        where = ", ".join(sorted(dict.fromkeys(file for file in files if file.endswith(".csv"))))
        raise click.UsageError(
            f"{where or source} has rows of a Casbin model, which have no YAML form: convert the files with rows of "
            "the sidecar's own models one by one"
        )


def _of_casbin(place: PolicyLocation) -> tuple[set[str], Collection[str]]:
    """The files of rows of Casbin models, and the stems of such files."""
    try:
        stock = place.load().stock
    except ConfigError:  # the rows of the sidecar's own models are converted even if others have faults
        return set(), ()
    files = {file for table in stock.values() for file in (*table.source.names, table.source.file)}
    return files, {kind.value for kind in stock} | ({POLICY} if stock else set())


def _files(source: Path, kind: str | None) -> dict[str, bytes]:
    if source.is_dir():
        return parts.files_below(source)
    faults = Faults()
    raw = parts.bounded(source, faults)
    if raw is None:
        raise PolicyError(faults.errors)
    named = kind is None or source.suffix != ".csv" or source.name.partition(".")[0] == kind
    return {source.name if named else f"{kind}.{source.name}": raw}


def write_files(files: Mapping[Path, bytes], *, force: bool = False) -> None:
    """Writes all of the files or none. Raises UsageError, also if one exists and may not be overwritten."""
    try:
        write_all(files, force=force)
    except UnwrittenError as unwritten:
        raise click.UsageError(str(unwritten)) from None


def _targets(source: Path, out: Path, done: parts.Converted) -> dict[Path, bytes]:
    """Returns the target of each file. A single file may be named; several are written into a folder."""
    single = source.is_file() and len(done.files) == 1 and not out.is_dir()
    if single and out.suffix in (".csv", ".yaml", ".yml"):
        return {out: next(iter(done.files.values()))}
    if out.is_file():
        raise click.UsageError(f"{out} is a file, and this becomes several: {', '.join(done.files)}")
    return {out / path: raw for path, raw in done.files.items()}


def _tell(done: parts.Converted, out: Path | None, as_json: bool) -> None:
    if as_json:
        said = {
            "files": {source: list(targets) for source, targets in done.sources.items()},
            "rows": done.rows,
            "revision": done.revision or None,
            "why_no_revision": done.why_not or None,
        }
        print_json(said, err=out is None)
        return
    for source, targets in done.sources.items():
        click.echo(f"{source} -> {', '.join(targets) or 'nothing: it has no rows'}", err=True)
    proof = f"revision {done.revision[:16]} unchanged" if done.revision else f"rows compared; {done.why_not}"
    click.echo(f"{done.rows} rows, read again and the same: {proof}", err=True)


@click.command()
@click.argument("path", required=False, type=EXISTING_FOLDER)
@config_option
@click.option("--check", "only_check", is_flag=True, help="Do not write; exit with 6 if a file would change.")
@json_option
def fmt(path: Path | None, config: Path, only_check: bool, as_json: bool) -> None:
    """Format the CSV files of a policy: one space after a comma, quotes where needed, at most one empty line.

    PATH is a folder with policies/, or of rows; by default the policy that sidecar.yaml names. Rows, their order and
    comments do not change. YAML files and policies with their own Casbin models are not formatted."""
    place = configured(config, os.environ) if path is None else in_folder(path)
    models, changed = place.own_models, dict[str, bytes]()
    try:
        if not _of_casbin(place)[1]:
            files = parts.files_below(place.policies)
            changed = parts.formatted(files, models, columns_of(models), str(place.policies))
    except DifferentError as different:
        raise CommandFailed(f"{different}\nnothing was written", NO)
    targets = {place.policies / name: raw for name, raw in changed.items()}
    if not only_check:
        write_files(targets, force=True)
    print_result({"files": [*map(str, targets)]}, "\n".join(visible(str(file)) for file in targets), as_json)
    if only_check and targets:
        raise SystemExit(DIFFERENT)


@click.command()
@click.option("--casbin", "folder", type=click.Path(path_type=Path), required=True, help="Folder to write.")
@config_option
@click.option("--force", is_flag=True, help="Overwrite files.")
@json_option
def export(folder: Path, config: Path, force: bool, as_json: bool) -> None:
    """Write the policy for plain pycasbin: models, rows, and an enforce.py with the sidecar's functions."""
    place = configured(config, os.environ)
    source = place.load()
    done = exported(source, place.own_models)
    write_files({folder / name: raw for name, raw in done.files.items()}, force=force)
    if as_json:
        said = {"files": list(done.files), "rules": done.rules, "shadow_rules_left_out": done.shadows}
        print_json({**said, "approvals_denied": done.denied, "revision": source.revision})
        return
    click.echo(f"{done.rules} rules of revision {source.revision[:16]} in {folder}")
    if done.shadows:
        click.echo(f"shadow rules change nothing and were left out: {', '.join(done.shadows)}")
    if done.denied:
        click.echo(f"plain Casbin can ask no person, so calls that wait for one are denied: {', '.join(done.denied)}")
    asked = " ".join(first_call(source) or ("nhi:planner", "tool:demo/add", "tools/call"))
    click.echo(visible(f"try: python {folder / 'enforce.py'} {asked}"))
