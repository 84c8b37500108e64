"""The common parts of all commands: exit codes, options, JSON output, and how a command ends."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click
import orjson

from sidecar.errors import visible_lines

if TYPE_CHECKING:
    from sidecar.settings.sidecar_file import Settings

NO, USAGE, INVALID, TESTS_FAILED, UNVERIFIED, DIFFERENT = range(1, 7)  # exit statuses
FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
CONFIG = "sidecar.yaml"
EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
EXISTING_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)

CONFIG_VARIABLE = "SIDECAR_CONFIG"
"""Names the configuration if there is no -c."""


def config_option_for(told: str = "The configuration.") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    shown: dict[str, Any] = {"default": CONFIG, "show_default": True, "envvar": CONFIG_VARIABLE, "show_envvar": True}
    return click.option("-c", "--config", type=FILE, help=told, **shown)


def usual_config() -> Path:
    """The configuration of a command without -c."""
    return Path(os.environ.get(CONFIG_VARIABLE) or CONFIG)


config_option = config_option_for()
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
catalogue_option = click.option(
    "--catalogue", type=EXISTING_FILE, help="The tools that exist, YAML or JSON: server → tools."
)


_OBJECT = re.compile(r"(tool|prompt|resource):[^/\s]+/\S+|nhi:\S+")


def config_and_json(command: Callable[..., None]) -> Callable[..., None]:
    return config_option(json_option(command))


class CommandFailed(click.ClickException):
    def __init__(self, message: str, code: int = NO, *, hint: str = "") -> None:
        super().__init__(visible_lines(message) + (f"\n   hint: {hint}" if hint else ""))
        self.exit_code = code  # type: ignore[misc]

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(self.message, err=True)


def print_json(value: object, *, as_line: bool = False, err: bool = False) -> None:
    """Prints a value as JSON, with terminal control characters as equivalent JSON escapes."""
    from sidecar.protocols.hidden_characters import revealed

    click.echo(revealed(orjson.dumps(value, option=0 if as_line else orjson.OPT_INDENT_2).decode()), err=err)


def print_result(value: object, text: str, as_json: bool) -> None:
    if as_json:
        print_json(value)
    else:
        click.echo(text)


def settings_in(config: Path, *, check_files: bool = False) -> Settings:
    """The settings of a configuration and of the environment. Raises SettingsError."""
    from sidecar.settings.load import load_settings

    return load_settings(config, os.environ, check_files=check_files)


def check_installation() -> None:
    """Raises CommandFailed if JupyterLab's package, the distribution `sidecar`, is in the same folder as this one: they
    have the same import name, and each has overwritten files of the other."""
    from importlib.metadata import distributions

    folder = Path(__file__).parents[2]
    for other in distributions(name="sidecar", path=[str(folder)]):
        hint = (
            "make a fresh virtual environment and install nhi-sidecar there; removing one package removes files of both"
        )
        message = (
            f"{folder} also holds JupyterLab's package sidecar {other.version}, which overwrites files of nhi-sidecar"
        )
        raise CommandFailed(message, INVALID, hint=hint)


def check_known(name: str, known: Collection[str], kind: str, config: Path, *, hint: str = "") -> None:
    """Raises CommandFailed if no such object is configured."""
    if name not in known:
        there = ", ".join(known) or "none at all"
        raise CommandFailed(f"{config} names no {kind} {name!r}: there is {there}", USAGE, hint=hint)


def check_object(text: str, option: str) -> None:
    """Raises BadParameter for a text that is not an object of rules."""
    if not _OBJECT.fullmatch(text):
        hint = "write tool:<server>/<tool>, prompt:<server>/<name>, resource:<server>/<uri> or nhi:<name>"
        raise click.BadParameter(f"{text!r} is not an object: {hint}", param_hint=option)


def json_object(text: str, option: str) -> dict[str, Any]:
    """The JSON object in an option. Raises BadParameter."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise click.BadParameter(f"this is not JSON: {error}", param_hint=option) from None
    if not isinstance(value, dict):
        raise click.BadParameter('this is not a JSON object, such as {"repo": "acme/site"}', param_hint=option)
    return value
