"""`sidecar config` and `sidecar schema`."""

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import orjson
import yaml

from sidecar.cli.command import config_option, json_option, print_json
from sidecar.cli.lazy_group import Group
from sidecar.errors import visible
from sidecar.settings.load import ShownSettings, load, shown_settings
from sidecar.settings.schema import json_schema


@click.group(cls=Group)
def config() -> None:
    """Inspect the configuration."""


@config.command()
@config_option
@click.option("--origin", is_flag=True, help="Show where each value comes from.")
@json_option
def show(config: Path, origin: bool, as_json: bool) -> None:
    """Print the effective configuration, with secrets masked."""
    settings = shown_settings(load(config, os.environ, check_files=False))
    if as_json:
        told = [{"setting": _name(one), "value": one.value, "origin": one.origin} for one in settings]
        print_json(told if origin else _tree(settings))
    elif origin:
        click.echo("\n".join(map(visible, _table(settings))))
    else:
        click.echo(yaml.safe_dump(_tree(settings), sort_keys=False, allow_unicode=True), nl=False)


MODELS: Mapping[str, tuple[str, str, str]] = {
    "config": ("sidecar.settings.sidecar_file", "Settings", "sidecar.yaml"),
    "test": ("sidecar.policy_tools.suites.suite_schema", "SuiteFile", "policy tests"),
    "budgets": ("sidecar.limits.budgets", "BudgetsFile", "budgets.yaml"),
    "pins": ("sidecar.upstreams.mcp.pins_file", "PinsFile", "pins.yaml"),
    "disabled": ("sidecar.gateway.kill_switch.file", "DisabledFile", "disabled.yaml"),
    "attributes": ("sidecar.policy.attributes", "AttributesFile", "attributes.yaml"),
    "keys": ("sidecar.identity.api_keys", "KeyFile", "keys.yaml"),
}
"""The kinds of files that one model describes: its module, its name, and the title of the schema."""


@click.command()
@click.argument("kind", type=click.Choice([*MODELS, "policy", "openapi"]))
def schema(kind: str) -> None:
    """Print the JSON Schema of a sidecar YAML file, for editors; or the OpenAPI document of plain HTTP."""
    print_json(schema_of(kind))


def schema_of(kind: str) -> dict[str, Any]:
    if kind in MODELS:
        module, name, title = MODELS[kind]
        return json_schema(getattr(import_module(module), name), title)
    if kind == "policy":
        from sidecar.policy.yaml_rows import policy_schema

        return policy_schema()
    from sidecar.admin.openapi import document

    return document()


def _name(setting: ShownSettings) -> str:
    return ".".join(map(str, setting.loc))


def _table(settings: Sequence[ShownSettings]) -> list[str]:
    told = [(_name(s), _written(s.value), s.origin) for s in settings if s.value is not None]
    names = max((len(name) for name, _, _ in told), default=0)
    values = min(48, max((len(value) for _, value, _ in told), default=0))
    return [f"{name:<{names}}  {value:<{values}}  {origin}" for name, value, origin in told]


def _written(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _tree(settings: Sequence[ShownSettings]) -> dict[str, Any]:
    root: dict[str | int, Any] = {}
    for setting in settings:
        if setting.value is not None:
            at = root
            for step in setting.loc[:-1]:
                at = at.setdefault(step, {})
            at[setting.loc[-1]] = setting.value
    return {str(name): _with_lists(below) for name, below in root.items()}


def _with_lists(tree: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    below = {name: _with_lists(value) for name, value in tree.items()}
    return list(below.values()) if below and all(isinstance(name, int) for name in below) else below
