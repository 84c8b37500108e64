"""How does a group of commands stay quick to ask for help?"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click

from sidecar.visible import visible_lines


class LazyGroup(click.Group):
    """Imports a command's file when the command is used, so that `--help` and completion stay quick.

    `commands_in` maps each name to the module that holds the command, under that name (`list_` for `list`, `a_b` for
    `a-b`), and to its one line of help.
    """

    def __init__(self, *args: Any, commands_in: Mapping[str, tuple[str, str]], **more: Any) -> None:
        super().__init__(*args, **more)
        self._commands_in = commands_in

    def invoke(self, ctx: click.Context) -> Any:
        """As click does; a message of wrong usage quotes names of files, and no terminal obeys it."""
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            vars(error).update(message=visible_lines(error.message))
            raise

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._commands_in)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._commands_in:
            return None
        module = importlib.import_module(self._commands_in[cmd_name][0])
        name = cmd_name.replace("-", "_")
        command = getattr(module, f"{name}_", None) or getattr(module, name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in self._commands_in.items()])
