"""What can be typed? One file per command group; each is imported only when it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

import click

from sidecar import __version__

COMMANDS: Mapping[str, tuple[str, str]] = {
    "demo": ("sidecar.cli.demo", "A minute with everything: a real server, a real client, four outcomes."),
    "init": ("sidecar.cli.init", "Write a working folder to start from."),
    "serve": ("sidecar.cli.serve", "Check everything, then serve."),
    "check": ("sidecar.cli.serve", "Check configuration, models, rules, budgets and keys."),
    "healthcheck": ("sidecar.cli.serve", "Ask a running sidecar whether it is ready."),
    "audit": ("sidecar.cli.audit", "Verify the evidence, or read it."),
    "token": ("sidecar.cli.token", "Keys and tokens: API keys, and signing keys and tokens for development."),
    "config": ("sidecar.cli.config", "Look at the configuration."),
    "schema": ("sidecar.cli.config", "Print the JSON Schema of one of our files, for editors."),
}


class _Lazy(click.Group):
    """Imports a command's file when the command is used, so that `--help` and completion stay quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(COMMANDS[cmd_name][0]), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": None})
@click.version_option(__version__, prog_name="sidecar")
def main() -> None:
    """Authorization for AI agents: who may call which tool, how often, with which arguments, and who remembers.

    Exit codes: 0 good, 1 the answer is no, 2 wrong usage, 3 configuration or policy invalid, 4 policy tests failed,
    5 evidence does not verify, 6 differences found.
    """
