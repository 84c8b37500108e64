"""The command line. Each command group has its own file, imported only when it is used."""

from __future__ import annotations

from collections.abc import Mapping

import click

from sidecar import __version__
from sidecar.cli.lazy_group import Root

COMMANDS: Mapping[str, tuple[str, str]] = {
    "demo": ("sidecar.cli.demo", "A minute with everything: a real server, real clients, seven outcomes."),
    "init": ("sidecar.cli.init", "Write a working folder to start from."),
    "serve": ("sidecar.cli.serve", "Check everything, then serve."),
    "check": ("sidecar.cli.serve", "Check configuration, models, rules, budgets and keys."),
    "healthcheck": ("sidecar.cli.serve", "Ask a running sidecar whether it is ready."),
    "policy": (
        "sidecar.cli.policy",
        "Policy as code: check, test, explain, diff, replay, suggest, convert …",
    ),
    "mcp": ("sidecar.cli.mcp", "The MCP servers behind us: how they are."),
    "agent": ("sidecar.cli.agent", "CLI programs as agents: list, check, run, watch and cancel."),
    "schedule": ("sidecar.cli.schedule", "Agents that run by the clock: list, next, add, remove, run, pause, resume."),
    "wrap": ("sidecar.cli.clients", "Let an MCP client's configuration lead through a sidecar."),
    "unwrap": ("sidecar.cli.clients", "Put back what wrap changed."),
    "client-config": ("sidecar.cli.clients", "What an MCP client writes to reach our upstreams."),
    "connect": ("sidecar.cli.connect", "Be a program that an MCP client starts, and lead to a sidecar's address."),
    "principal": ("sidecar.cli.principal", "The kill switch: disable an agent, a user or a server everywhere."),
    "limits": ("sidecar.cli.limits", "Who used what, and how much is left."),
    "audit": ("sidecar.cli.audit", "Verify the evidence, or read it."),
    "token": ("sidecar.cli.token", "Keys and tokens: API keys, and signing keys and tokens for development."),
    "config": ("sidecar.cli.config", "Look at the configuration."),
    "schema": ("sidecar.cli.config", "Print the JSON Schema of one of our files, for editors."),
}


@click.group(
    cls=Root,
    commands_in=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": None},
)
@click.version_option(__version__, prog_name="sidecar")
def main() -> None:
    """Authorization for AI agents: who may call which tool, how often, with which arguments, and who remembers.

    Exit codes: 0 good, 1 the answer is no, 2 wrong usage, 3 configuration or policy invalid, 4 policy tests failed,
    5 evidence does not verify, 6 differences found.
    """
