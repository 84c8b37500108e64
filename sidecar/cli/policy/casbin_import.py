"""`sidecar policy import`: imports the policy of a Casbin program into an existing working folder."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from sidecar.cli.casbin_folder import MODEL_FILE, POLICY_FILE, CasbinFolder, attributes_yaml, read_folder
from sidecar.cli.command import EXISTING_FILE, EXISTING_FOLDER, CommandFailed, json_option, print_json
from sidecar.cli.policy.convert import write_files
from sidecar.errors import visible
from sidecar.policy.files import KINDS
from sidecar.policy.rows import MAX_FILE_BYTES
from sidecar.policy_tools.policy_location import CONFIG, MODELS, POLICIES
from sidecar.settings.reading import read_bounded
from sidecar.settings.shipped_files import shipped

ATTRIBUTES = f"{POLICIES}/attributes.yaml"


@click.command("import")
@click.argument("folder", metavar="[DIR]", type=EXISTING_FOLDER, default=".")
@click.option(
    "--casbin",
    type=(EXISTING_FILE, click.Path(exists=True, path_type=Path)),
    metavar="MODEL POLICY",
    required=True,
    help="The model of a Casbin program, and its rows or a folder of them.",
)
@click.option(
    "--kind",
    type=click.Choice(["all", *(kind.value for kind in KINDS)]),
    default="agent_to_tool",
    show_default=True,
    help="The permission kind that it decides.",
)
@click.option(
    "--map", "map_path", type=EXISTING_FILE, help="YAML file with names and settings, as for `sidecar init --casbin`."
)
@click.option("--force", is_flag=True, help="Overwrite the model and the file of rows.")
@json_option
def import_(
    folder: Path, casbin: tuple[Path, Path], kind: str, map_path: Path | None, force: bool, as_json: bool
) -> None:
    """Import the policy of a Casbin program into the working folder DIR. The model and the rows are copied byte for
    byte.

    Prints the keys to add under `policy` in its sidecar.yaml, which is not changed. To create a new folder, use
    `sidecar init --casbin`."""
    if not (folder / CONFIG).is_file():
        raise CommandFailed(f"{folder} has no {CONFIG}", hint="a new folder is written by sidecar init --casbin")
    rows = POLICY_FILE if kind == "all" else f"{POLICIES}/{kind}.csv"
    taken = read_folder(*casbin, map_path, rows)
    if taken.proposal.settings.use != 1:
        hint = "name model, policy and use there for each kind"
        raise CommandFailed("only policy.models chooses a second definition", hint=hint)
    model = MODEL_FILE if kind == "all" else f"{MODELS}/{kind}.conf"
    written = {model, *taken.rows} if force else set()
    if left := sorted({*_in_the_way(folder, kind, model)} - written):
        hint = "remove what the Casbin policy replaces; --force overwrites files of the same name"
        raise CommandFailed(f"nothing was written: {folder} has {', '.join(left)}", hint=hint)
    files = {model: taken.model, **taken.rows}
    attributes = attributes_yaml(taken.proposal)
    if attributes and not (folder / ATTRIBUTES).exists():
        files[ATTRIBUTES] = attributes.encode()
    write_files({folder / name: raw for name, raw in files.items()}, force=True)
    _tell(folder, [*files], taken, as_json)


def _in_the_way(folder: Path, kind: str, model: str) -> Iterator[str]:
    """Yields the models and rows that the new ones replace, or that would be next to them. An unchanged shipped model
    is ignored if it is that of the one kind."""
    models = [folder / model] if kind != "all" else [*(folder / MODELS).glob("*.conf")]
    for path in models:
        own = shipped(MODELS) / path.name
        if path.exists() and (
            kind == "all" or not own.exists() or read_bounded(path, MAX_FILE_BYTES) != own.read_bytes()
        ):
            yield path.relative_to(folder).as_posix()
    stems = [each.value for each in KINDS] + ["policy"] if kind == "all" else [kind]
    for path in (folder / POLICIES).rglob("*.csv"):
        if path.name.partition(".")[0] in stems:
            yield path.relative_to(folder).as_posix()


def _tell(folder: Path, files: Sequence[str], taken: CasbinFolder, as_json: bool) -> None:
    proposal, settings = taken.proposal, taken.settings(with_models=False)
    notes = [*proposal.notes, *([proposal.example] if proposal.example else [])]
    if as_json:
        print_json({"folder": str(folder), "files": [*files], "notes": notes, "settings": f"policy:\n{settings}"})
        return
    for note in notes:
        click.echo(visible(f"note: {note}"), err=True)
    click.echo(f"wrote {len(files)} files to {folder}; add to {folder / CONFIG}:", err=True)
    click.echo(f"policy:\n{settings}", nl=False)
    click.echo(f"next: sidecar check -c {folder / CONFIG}", err=True)
