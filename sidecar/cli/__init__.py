"""The command line. Each command group has its own file, imported only when it is used."""

from __future__ import annotations

from collections.abc import Mapping

import click

from sidecar import __version__
from sidecar.cli.lazy_group import Root

COMMANDS: Mapping[str, tuple[str, str]] = {
    "demo": ("sidecar.cli.demo", "See everything in one minute: a real server, real clients, seven outcomes."),
    "init": ("sidecar.cli.init", "Write a working folder to start from."),
    "serve": ("sidecar.cli.serve", "Check everything, then serve."),
    "check": ("sidecar.cli.check", "Check configuration, models, rules, budgets and keys."),
    "healthcheck": ("sidecar.cli.healthcheck", "Ask a running sidecar whether it is ready."),
    "policy": (
        "sidecar.cli.policy",
        "Policy as code: check, test, explain, diff, replay, suggest, convert …",
    ),
    "mcp": ("sidecar.cli.mcp", "The MCP servers behind the sidecar: state, tools and pins."),
    "agent": ("sidecar.cli.agent", "CLI programs as agents: list, check, run, watch and cancel."),
    "schedule": ("sidecar.cli.schedule", "Agents that run by the clock: list, next, add, remove, run, pause, resume."),
    "wrap": ("sidecar.cli.wrap", "Lead an MCP client's configuration through a sidecar."),
    "unwrap": ("sidecar.cli.wrap", "Undo wrap."),
    "client-config": ("sidecar.cli.client_config", "Print the configuration of an MCP client."),
    "connect": ("sidecar.cli.connect", "Connect an MCP client that only starts programs to a sidecar."),
    "principal": ("sidecar.cli.principal", "The kill switch: disable an agent, a user or a server everywhere."),
    "limits": ("sidecar.cli.limits", "Show used and remaining limits, and reset them."),
    "audit": ("sidecar.cli.audit", "Verify and read the audit log."),
    "token": ("sidecar.cli.token", "Keys and tokens: API keys, and signing keys and tokens for development."),
    "config": ("sidecar.cli.config", "Inspect the configuration."),
    "schema": ("sidecar.cli.config", "Print the JSON Schema of a sidecar file, for editors."),
}


@click.group(
    cls=Root,
    commands_in=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": None},
)
@click.version_option(__version__, prog_name="sidecar")
def main() -> None:
    """Authorization for AI agents: who may call which tool, how often, and with which arguments, with an audit log.

    Exit codes: 0 good, 1 the answer is no, 2 wrong usage, 3 configuration or policy invalid, 4 policy tests failed,
    5 the audit log does not verify, 6 differences found.
    """
