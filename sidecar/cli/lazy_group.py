"""A command group that imports each command only when it is used, and ends commands on errors."""

import errno
import importlib
import io
import os
import sys
from collections.abc import Mapping
from typing import Any

import click
from click.shell_completion import CompletionItem

from sidecar.cli.command import INVALID, CommandFailed
from sidecar.errors import ConfigError, visible_lines

Command = tuple[str, str] | tuple[str, Mapping[str, tuple[str, str]]]


class Group(click.Group):
    """A group of commands, each imported only when it is used, so that `--help` stays fast.

    `commands_in` maps a name to its module (there it is `list_` for `list`, `a_b` for `a-b`) and its one-line help, or
    to a group's help and commands.
    A command ends with a message if an operator's file is invalid or unreadable."""

    def __init__(self, *args: Any, commands_in: Mapping[str, Command] = {}, **more: Any) -> None:
        super().__init__(*args, **more)
        self._commands_in = commands_in

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if ctx.resilient_parsing or name.startswith("-") or self.get_command(ctx, name) is not None:
            return super().resolve_command(ctx, args)
        from sidecar.settings.validation_errors import did_you_mean

        raise click.UsageError(f"there is no command {name!r}; {did_you_mean(name, self.list_commands(ctx))}", ctx)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ConfigError as error:
            raise CommandFailed(str(error), INVALID)
        except click.ClickException as error:  # usage errors quote file names
            vars(error).update(message=visible_lines(error.message))
            raise
        except OSError as error:
            if error.errno == errno.EPIPE:  # click exits silently
                raise
            what = error.strerror or str(error)
            told = f"{error.filename}: {what}" if error.filename else what
            raise click.ClickException(visible_lines(told)) from None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        if not self._commands_in or incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [CompletionItem(name, help=told) for name, told in self._helps() if name.startswith(incomplete)]

    def _helps(self) -> list[tuple[str, str]]:
        """Returns the name and the help of each command, without importing any of them."""
        return [(name, two if isinstance(two, str) else one) for name, (one, two) in self._commands_in.items()]

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._commands_in) or super().list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._commands_in:
            return super().get_command(ctx, cmd_name)
        told, inside = self._commands_in[cmd_name]
        if not isinstance(inside, str):
            return Group(cmd_name, help=told, commands_in=inside)
        module = importlib.import_module(told)
        name = cmd_name.replace("-", "_")
        command = getattr(module, f"{name}_", None) or getattr(module, name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if not self._commands_in:
            super().format_commands(ctx, formatter)
            return
        with formatter.section("Commands"):
            formatter.write_dl(self._helps())


class Root(Group):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")  # a file name need not be UTF-8
        for word in args:
            if not word.isprintable() and any("\ud800" <= char <= "\udfff" for char in word):
                raise click.UsageError(f"the argument {word!a} is not UTF-8", ctx)
        if os.environ.get("NO_COLOR"):  # https://no-color.org; rich reads it too
            ctx.color = False
        return super().parse_args(ctx, args)
