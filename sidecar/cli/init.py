"""How does somebody start?

Writes a working folder: one upstream, one NHI, one rule, one limit; each line is what a real one looks like.
Nothing in it allows everything, and it holds no secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click
import orjson

from sidecar.cli.config import schema_of
from sidecar.settings.shipped import shipped

NO = 1

_SETTINGS = """\
# yaml-language-server: $schema=./sidecar.schema.json
# What may stand here: `sidecar schema config`. What is in force: `sidecar config show --origin`.
version: 1
data: data                       # written by the sidecar: audit, keys made at first start

server:
  listen: 127.0.0.1:8080         # callers with a token or an API key; beyond loopback add public_url and tls

# Whoever reaches this address is nhi:planner. For one agent that runs as its own user, a Unix socket is stricter:
# listen: "unix:/run/sidecar/planner.sock"
local:
  - listen: 127.0.0.1:8070
    principal: nhi:planner

admin:
  listen: 127.0.0.1:9090         # /metrics /livez /readyz

policy:
  models: models                 # how a question is decided
  path: policies                 # what is allowed

upstreams:
  example:                       # callers use http://127.0.0.1:8070/mcp/example
    mcp:
      url: http://127.0.0.1:9100/mcp
"""

_RULES = """\
# Who may use which tool, prompt, resource or MCP server. No rule means no; one deny outweighs every allow.
# subject, object, action, expires_at, max_calls_per_hour, when, effect        (- means none)

#: id=planner-searches-example owner=you@example.com
p, nhi:planner, tool:example/search, tools/call, -, 600, -, allow

# The same for every tool whose name begins with `get_`, only for one project, until a date:
# p, nhi:planner, tool:example/get_*, tools/call, 2027-12-31T00:00:00Z, 120, args.project == 'acme', allow
"""

_BUDGETS = """\
# How often, beside the limits in the rules. Everything that matches applies.
version: 1
tools:
  "tool:example/*": {requests_per_second: 10, burst: 20, concurrency: 5, timeout: 30s}
principals:
  nhi:planner: {per_hour: 1000, concurrency: 4}
"""

_KEYS = """\
# Keys

Files with secrets that sidecar.yaml names by path: tokens for upstreams (`credential: {bearer_path: keys/...}`),
secrets of the admin listener (`secret_path`), key sets of issuers (`jwks_path`).

Mode 0600, never in version control (`.gitignore` sees to it). Make one with `openssl rand -hex 32`.
Keys that the sidecar makes for itself lie in `data/`.
"""

_IGNORED = """\
/data/
/keys/*
!/keys/README.md
"""


@click.command()
@click.argument("folder", metavar="[DIR]", type=click.Path(file_okay=False, path_type=Path), default=".")
@click.option("--from", "source", type=click.Path(path_type=Path), help="Take the servers of an .mcp.json.")
def init(folder: Path, source: Path | None) -> None:
    """Write a working folder: sidecar.yaml, models, policies. Overwrites nothing."""
    if source is not None:
        raise click.UsageError("--from is not supported by this version: run `sidecar init`, then add your upstreams")
    files = starting_files()
    if taken := [name for name in files if (folder / name).exists()]:
        click.echo(f"nothing was written: {folder} already has {', '.join(taken)}", err=True)
        raise SystemExit(NO)
    try:
        write_files(folder, files)
    except OSError as error:
        click.echo(f"cannot write to {folder}: {(error.strerror or str(error)).lower()}", err=True)
        raise SystemExit(NO) from None
    click.echo(f"wrote {len(files)} files to {folder}\nnext: sidecar check -c {folder / 'sidecar.yaml'}")


def starting_files() -> Mapping[str, str]:
    """Path inside the folder → content."""
    models = {f"models/{path.name}": path.read_text("utf-8") for path in sorted(shipped("models").glob("*.conf"))}
    return {
        "sidecar.yaml": _SETTINGS,
        "sidecar.schema.json": orjson.dumps(schema_of("config"), option=orjson.OPT_INDENT_2).decode() + "\n",
        **models,
        "policies/agent_to_tool.csv": _RULES,
        "policies/budgets.yaml": _BUDGETS,
        "keys/README.md": _KEYS,
        ".gitignore": _IGNORED,
    }


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write files that must not exist yet. Raises OSError, FileExistsError among them."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(content)
