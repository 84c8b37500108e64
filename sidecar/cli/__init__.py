"""The command line: a table of all commands, each imported only when it is used."""

from collections.abc import Mapping

import click

from sidecar import __version__
from sidecar.cli.lazy_group import Command, Root

COMMANDS: Mapping[str, Command] = {
    "demo": ("sidecar.cli.demo", "Run a demo: nine calls with different outcomes."),
    "init": ("sidecar.cli.init", "Create a working folder."),
    "serve": ("sidecar.cli.serve", "Check the configuration and the policy, then serve."),
    "check": ("sidecar.cli.check", "Check configuration, models, rules, budgets and keys."),
    "status": ("sidecar.cli.status", "Show the state of a running sidecar on one screen."),
    "reload": ("sidecar.cli.reload", "Reload the files of a running sidecar."),
    "healthcheck": ("sidecar.cli.healthcheck", "Report whether a running sidecar is ready."),
    "policy": (
        "Policy as code: check, test, explain, diff, replay, suggest, convert …",
        {
            "check": ("sidecar.cli.policy.check", "Report errors and warnings in models and rows."),
            "test": ("sidecar.cli.policy.test", "Run the policy's tests with the engine that the sidecar serves with."),
            "explain": ("sidecar.cli.policy.explain", "Show why a call is allowed or denied, link by link."),
            "diff": ("sidecar.cli.policy.diff", "Show whose access changes between two policies."),
            "replay": ("sidecar.cli.policy.replay", "Decide recorded calls again, with a candidate policy."),
            "suggest": ("sidecar.cli.policy.suggest", "Write the fewest rules that allow the recorded calls only."),
            "convert": ("sidecar.cli.policy.convert", "Convert rows between CSV and YAML, without loss."),
            "fmt": ("sidecar.cli.policy.convert", "Format the CSV files of a policy."),
            "import": ("sidecar.cli.policy.casbin_import", "Import the policy of a Casbin program into this folder."),
            "export": ("sidecar.cli.policy.convert", "Write the policy for plain pycasbin."),
            "bundle": ("sidecar.cli.policy.bundle", "Pack a policy into one signed file."),
            "bench": ("sidecar.cli.policy.bench", "Measure decisions, of this policy and at other sizes."),
        },
    ),
    "decide": ("sidecar.cli.decide", "Ask a running sidecar whether a call is allowed."),
    "mcp": (
        "The MCP servers behind the sidecar: state, tools and pins.",
        {
            "list": ("sidecar.cli.mcp.switch", "List the MCP servers with their state."),
            "test": ("sidecar.cli.mcp.test", "Connect to a server and report on it; needs no running sidecar."),
            "tools": (
                "sidecar.cli.mcp.tools",
                "List the tools of a server, compare them with their pins, and pin them.",
            ),
            "disable": ("sidecar.cli.mcp.switch", "Switch off a server, or one of its tools, at every replica."),
            "enable": ("sidecar.cli.mcp.switch", "Switch a server or tool on again."),
        },
    ),
    "agent": (
        "CLI programs as agents: list, check, run, follow, answer and cancel.",
        {
            "list": ("sidecar.cli.agent.listing", "List the agents that are CLI programs."),
            "check": (
                "sidecar.cli.agent.check",
                "Check whether an agent can run, and run it once; needs no running sidecar.",
            ),
            "run": ("sidecar.cli.agent.run", "Run an agent and show its output."),
            "runs": ("sidecar.cli.agent.listing", "List runs, newest first."),
            "show": ("sidecar.cli.agent.listing", "Show one run: states, attempts, usage, and the end of its output."),
            "logs": ("sidecar.cli.agent.run", "Show the output of a run; with -f, follow it."),
            "answer": ("sidecar.cli.agent.run", "Answer a run that waits for input."),
            "cancel": ("sidecar.cli.agent.run", "Cancel a run."),
        },
    ),
    "schedule": ("sidecar.cli.schedule", "Run agents on a schedule: list, next, add, remove, run, pause, resume."),
    "wrap": ("sidecar.cli.wrap", "Point an MCP client's configuration at a sidecar."),
    "unwrap": ("sidecar.cli.wrap", "Undo wrap."),
    "client-config": ("sidecar.cli.wrap", "Print the configuration of an MCP client."),
    "connect": ("sidecar.cli.connect", "Connect an MCP client that only starts programs to a sidecar."),
    "approval": ("sidecar.cli.approval", "List and answer calls that wait for a person's approval."),
    "principal": ("sidecar.cli.principal", "The kill switch: disable an agent, a user or a server at every replica."),
    "limits": ("sidecar.cli.limits", "Show used and remaining limits, and reset them."),
    "audit": (
        "Verify and read the audit log.",
        {
            "verify": (
                "sidecar.cli.audit.verify",
                "Find records that were changed, removed, moved, inserted or truncated.",
            ),
            "show": ("sidecar.cli.audit.show", "Print and filter records, or follow the log."),
            "gather": ("sidecar.cli.audit.gather", "Write exported records to files that `audit verify` reads."),
            "prove": ("sidecar.cli.audit.prove", "Compare claimed arguments with the hash in a record."),
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

    Exit codes: 0 success, 1 negative result, 2 wrong usage, 3 invalid configuration or policy, 4 failed policy tests, 5
    the audit log does not verify, 6 differences found."""
