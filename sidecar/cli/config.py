"""`sidecar config` and `sidecar schema`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import orjson
import yaml

from sidecar.cli.lazy_group import Group
from sidecar.errors import ConfigError, visible
from sidecar.settings.load import ShownSettings, load, shown_settings
from sidecar.settings.schema import json_schema

INVALID = 3


@click.group(cls=Group)
def config() -> None:
    """Look at the configuration."""


@config.command()
@click.option("-c", "--config", "path", type=click.Path(path_type=Path), default="sidecar.yaml", show_default=True)
@click.option("--origin", is_flag=True, help="Say where each value comes from.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(path: Path, origin: bool, as_json: bool) -> None:
    """Print the configuration in force, secrets masked."""
    try:
        settings = shown_settings(load(path, os.environ, check_files=False))
    except ConfigError as error:
        click.echo(str(error), err=True)
        raise SystemExit(INVALID) from None
    if as_json:
        value = [_with_origin(setting) for setting in settings] if origin else _tree(settings)
        click.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2))
    elif origin:
        click.echo("\n".join(map(visible, _table(settings))))
    else:
        click.echo(yaml.safe_dump(_tree(settings), sort_keys=False, allow_unicode=True), nl=False)


@click.command()
@click.argument("kind", type=click.Choice(["config", "policy", "test", "budgets", "openapi"]))
def schema(kind: str) -> None:
    """Print the JSON Schema of one of our YAML files, for editors; or the OpenAPI document of plain calls."""
    click.echo(orjson.dumps(schema_of(kind), option=orjson.OPT_INDENT_2))


def schema_of(kind: str) -> dict[str, Any]:
    """Return the JSON Schema of a sidecar file, or the OpenAPI document."""
    if kind == "config":
        from sidecar.settings.sidecar_file import Settings

        return json_schema(Settings, "sidecar.yaml")
    if kind == "policy":
        from sidecar.policy.yaml_rows import policy_schema

        return policy_schema()
    if kind == "test":
        from sidecar.policy_tools.suites.suite_schema import SuiteFile

        return json_schema(SuiteFile, "policy tests")
    if kind == "budgets":
        from sidecar.limits.budgets import BudgetsFile

        return json_schema(BudgetsFile, "budgets.yaml")
    if kind == "openapi":
        from sidecar.admin.openapi import document

        return document()
    raise click.UsageError(f"this version reads no YAML file of kind {kind}, and so has no schema for it")


def _name(setting: ShownSettings) -> str:
    return ".".join(map(str, setting.loc))


def _with_origin(setting: ShownSettings) -> dict[str, Any]:
    return {"setting": _name(setting), "value": setting.value, "origin": setting.origin}


def _table(settings: Sequence[ShownSettings]) -> list[str]:
    """Return one line per setting; settings that are unset and have no default are left out."""
    told = [(_name(s), _written(s.value), s.origin) for s in settings if s.value is not None]
    names = max((len(name) for name, _, _ in told), default=0)
    values = min(48, max((len(value) for _, value, _ in told), default=0))
    return [f"{name:<{names}}  {value:<{values}}  {origin}" for name, value, origin in told]


def _written(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _tree(settings: Sequence[ShownSettings]) -> dict[str, Any]:
    """Return the settings as nested mappings and lists; unset ones are left out."""
    root: dict[str, Any] = {}
    for setting in settings:
        if setting.value is not None:
            _put(root, setting.loc, setting.value)
    return root


def _put(tree: Any, loc: Sequence[str | int], value: Any) -> None:
    for step, following in pairwise(loc):
        tree = _child(tree, step, [] if isinstance(following, int) else {})
    if isinstance(tree, list):
        tree.append(value)
    else:
        tree[loc[-1]] = value


def _child(tree: Any, step: str | int, fresh: Any) -> Any:
    if isinstance(tree, dict):
        return tree.setdefault(step, fresh)
    if step == len(tree):
        tree.append(fresh)
    return tree[step]
