"""The command line: a table of all commands, each imported only when it is used."""

from collections.abc import Mapping

import click

from sidecar import __version__
from sidecar.cli.lazy_group import Command, Root

COMMANDS: Mapping[str, Command] = {
    "demo": ("sidecar.cli.demo", "See everything in one minute: a real server, real clients, nine outcomes."),
    "init": ("sidecar.cli.init", "Write a working folder to start from."),
    "serve": ("sidecar.cli.serve", "Check everything, then serve."),
    "check": ("sidecar.cli.check", "Check configuration, models, rules, budgets and keys."),
    "status": ("sidecar.cli.status", "Show the state of a running sidecar on one screen."),
    "reload": ("sidecar.cli.reload", "Make a running sidecar read its files again."),
    "healthcheck": ("sidecar.cli.healthcheck", "Ask a running sidecar whether it is ready."),
    "policy": (
        "Policy as code: check, test, explain, diff, replay, suggest, convert …",
        {
            "check": ("sidecar.cli.policy.check", "Report errors and warnings in models and rows."),
            "test": ("sidecar.cli.policy.test", "Run the policy's own tests on the engine that serves."),
            "explain": ("sidecar.cli.policy.explain", "Show why a call is allowed or denied, link by link."),
            "diff": ("sidecar.cli.policy.diff", "Show whose access changes between two policies."),
            "replay": ("sidecar.cli.policy.replay", "Decide recorded calls again, with a candidate policy."),
            "suggest": (
                "sidecar.cli.policy.suggest",
                "Write the fewest rules that allow what was recorded, and nothing else.",
            ),
            "convert": ("sidecar.cli.policy.convert", "Convert rows between CSV and YAML, without loss."),
            "fmt": ("sidecar.cli.policy.convert", "Format the CSV files of a policy."),
            "import": ("sidecar.cli.policy.casbin_import", "Take the policy of a Casbin program into this folder."),
            "export": ("sidecar.cli.policy.convert", "Write the policy for plain pycasbin."),
            "bundle": ("sidecar.cli.policy.bundle", "Pack a policy into one signed file."),
            "bench": ("sidecar.cli.policy.bench", "Measure decisions, of this policy and at other sizes."),
        },
    ),
    "decide": ("sidecar.cli.decide", "Ask a running sidecar whether a call is allowed."),
    "mcp": (
        "The MCP servers behind the sidecar: state, tools and pins.",
        {
            "list": ("sidecar.cli.mcp.switch", "The state of each server, and what is switched off."),
            "test": ("sidecar.cli.mcp.test", "Connect to a server and report on it; needs no running sidecar."),
            "tools": ("sidecar.cli.mcp.tools", "A server's tools, how they differ from their pins, and pinning them."),
            "disable": ("sidecar.cli.mcp.switch", "Switch off a server, or one tool of it, at once and everywhere."),
            "enable": ("sidecar.cli.mcp.switch", "Switch it on again."),
        },
    ),
    "agent": (
        "CLI programs as agents: list, check, run, watch and cancel.",
        {
            "list": ("sidecar.cli.agent.listing", "Every agent that is a CLI program, and its state."),
            "check": (
                "sidecar.cli.agent.check",
                "Check whether it can run, and run it once; needs no running sidecar.",
            ),
            "run": ("sidecar.cli.agent.run", "Run it, and show its output as it comes."),
            "runs": ("sidecar.cli.agent.listing", "Runs, newest first."),
            "show": ("sidecar.cli.agent.listing", "One run: states, attempts, usage, and the end of its output."),
            "logs": ("sidecar.cli.agent.run", "The output of a run; with -f as it comes."),
            "answer": ("sidecar.cli.agent.run", "Answer a run that waits for input."),
            "cancel": ("sidecar.cli.agent.run", "Cancel a run."),
        },
    ),
    "schedule": ("sidecar.cli.schedule", "Agents that run by the clock: list, next, add, remove, run, pause, resume."),
    "wrap": ("sidecar.cli.wrap", "Lead an MCP client's configuration through a sidecar."),
    "unwrap": ("sidecar.cli.wrap", "Undo wrap."),
    "client-config": ("sidecar.cli.wrap", "Print the configuration of an MCP client."),
    "connect": ("sidecar.cli.connect", "Connect an MCP client that only starts programs to a sidecar."),
    "approval": ("sidecar.cli.approval", "Calls that wait for a person: list, show, approve, refuse."),
    "principal": ("sidecar.cli.principal", "The kill switch: disable an agent, a user or a server everywhere."),
    "limits": ("sidecar.cli.limits", "Show used and remaining limits, and reset them."),
    "audit": (
        "Verify and read the audit log.",
        {
            "verify": (
                "sidecar.cli.audit.verify",
                "Find records that were changed, removed, moved, inserted or cut off.",
            ),
            "show": ("sidecar.cli.audit.show", "Print records, follow them, or count them."),
            "gather": ("sidecar.cli.audit.gather", "Read a log back from where it was sent."),
            "prove": ("sidecar.cli.audit.prove", "Check whether the hash of a record is that of these arguments."),
        },
    ),
    "token": ("sidecar.cli.token", "Keys and tokens: API keys, and signing keys and tokens for development."),
    "config": ("sidecar.cli.config", "Inspect the configuration."),
    "schema": ("sidecar.cli.config", "Print the JSON Schema of a sidecar file, for editors."),
    "completion": ("sidecar.cli.completion", "Print the completion script of bash, zsh or fish."),
}


@click.group(
    cls=Root, commands_in=COMMANDS, context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": None}
)
@click.version_option(__version__, prog_name="sidecar")
def main() -> None:
    """Authorization for AI agents: who may call which tool, how often, and with which arguments, with an audit log.

    Exit codes: 0 good, 1 the answer is no, 2 wrong usage, 3 configuration or policy invalid, 4 policy tests failed,
    5 the audit log does not verify, 6 differences found."""
