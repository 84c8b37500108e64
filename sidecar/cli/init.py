"""`sidecar init`: writes a working folder. Nothing in it allows everything, and only files in `keys/`, with mode 0600,
contain secrets."""

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import click
import orjson

from sidecar.cli.casbin_folder import MODEL_FILE, CasbinFolder, attributes_yaml, read_folder, upstreams_of
from sidecar.cli.client_files.configuration import open_client_file
from sidecar.cli.client_files.folder import VARIABLES_PATH, Import, imported, upstreams_yaml
from sidecar.cli.client_files.wrap import names_of
from sidecar.cli.command import EXISTING_FILE, FOLDER, CommandFailed, json_option, print_json
from sidecar.cli.config import schema_of
from sidecar.errors import visible
from sidecar.settings.shipped_files import shipped

_SETTINGS = """\
# yaml-language-server: $schema=./sidecar.schema.json
# All settings: `sidecar schema config`. The values in force: `sidecar config show --origin`.
version: 1
data: data                       # written by the sidecar: audit, keys made at first start

server:
  listen: 127.0.0.1:8080         # callers with a token or an API key; beyond loopback add public_url and tls

# Every caller at this address is nhi:planner. For one agent that runs as its own user, a Unix socket is stricter:
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

# With this line above a row, a person who has the role (in roles.csv: g, user:you, role:oncall) approves each call:
# #: approval=role:oncall
"""

_BUDGETS_OF_EXAMPLE = """\
  "tool:example/*": {requests_per_second: 10, burst: 20, concurrency: 5, timeout: 30s}
"""
_BUDGETS = f"""\
# yaml-language-server: $schema=../budgets.schema.json
# Limits in addition to those of the rules. All entries that match apply.
version: 1
tools:
{_BUDGETS_OF_EXAMPLE}principals:
  nhi:planner: {{per_hour: 1000, concurrency: 4}}
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
@click.argument("folder", metavar="[DIR]", type=FOLDER, default=".")
@click.option(
    "--from",
    "source",
    type=click.Path(path_type=Path),
    help="Import the servers from the configuration of an MCP client.",
)
@click.option(
    "--casbin",
    type=(EXISTING_FILE, click.Path(exists=True, path_type=Path)),
    metavar="MODEL POLICY",
    help="Import the policy of a Casbin program: its model, and its rows or a folder of them.",
)
@click.option("--map", "map_path", type=EXISTING_FILE, help="YAML file with names and settings for --casbin.")
@json_option
def init(
    folder: Path, source: Path | None, casbin: tuple[Path, Path] | None, map_path: Path | None, as_json: bool
) -> None:
    """Create a working folder with sidecar.yaml, models and policies. Existing files are not overwritten.

    --from reads .mcp.json, claude_desktop_config.json, .vscode/mcp.json, .cursor/mcp.json and similar files.

    --casbin copies the model and the rows unchanged. `policy.names` in sidecar.yaml maps callers, tools and actions to
    their subjects, objects and actions. --map supplies `names`, `roles`, `request` and `default` as in `policy`, `use`
    (2 for r2, p2 and m2) and `upstreams` (name: URL). On a terminal, the command asks for what is missing; otherwise it
    uses defaults and prints them."""
    if casbin is not None and source is not None:
        raise click.UsageError("--casbin and --from exclude each other")
    if map_path is not None and casbin is None:
        raise click.UsageError("--map belongs to --casbin")
    files: Mapping[str, str | bytes] = starting_files()
    secrets: Mapping[str, str] = {}
    notes: list[str] = []
    if casbin is not None:
        program = read_folder(*casbin, map_path)
        files, notes = _with_casbin(files, program), _notes_of(program)
    if source is not None:
        file, _ = open_client_file(source)
        found = imported(file, folder, os.environ, names_of(file, "http://127.0.0.1:8070"), home=Path.home())
        files, secrets, notes = _starting_with(found), found.secrets, [*found.notes, *_needs(found, folder)]
    if taken := [name for name in [*files, *secrets] if (folder / name).exists()]:
        raise CommandFailed(f"nothing was written: {folder} already has {', '.join(taken)}")
    write_files(folder, files)
    write_files(folder, secrets, secret=True)
    if as_json:
        print_json({"folder": str(folder), "files": [*files, *secrets], "notes": notes})
        return
    for note in notes:
        click.echo(visible(f"note: {note}"), err=True)
    click.echo(f"wrote {len(files) + len(secrets)} files to {folder}\nnext: sidecar check -c {folder / 'sidecar.yaml'}")


def _with_casbin(files: Mapping[str, str | bytes], taken: CasbinFolder) -> dict[str, str | bytes]:
    proposal = taken.proposal
    head, _, _ = _SETTINGS.partition("upstreams:\n")
    before, policy, _ = head.partition("policy:\n")
    path = "  path: policies                 # what is allowed\n"
    head = f"{before}{policy}{path}{taken.settings()}\n"
    found = {name: content for name, content in files.items() if not name.startswith(("models/", "policies/"))}
    found |= {"sidecar.yaml": f"{head}upstreams:\n{upstreams_of(proposal)}", MODEL_FILE: taken.model, **taken.rows}
    attributes = attributes_yaml(proposal)
    if not attributes:
        return found
    named = f"# yaml-language-server: $schema=../attributes.schema.json\n{attributes}"
    return found | {"policies/attributes.yaml": named, "attributes.schema.json": _schema("attributes")}


def _notes_of(taken: CasbinFolder) -> list[str]:
    example = taken.proposal.example
    return [*taken.proposal.notes, *([example] if example else [])]


def _starting_with(found: Import) -> dict[str, str]:
    files = dict(starting_files())
    head, _, _ = files["sidecar.yaml"].partition("upstreams:\n")
    comment = "# Callers use http://127.0.0.1:8070/mcp/<name>.\n"
    files["sidecar.yaml"] = f"{head}{comment}upstreams:\n{upstreams_yaml(found.upstreams)}"
    files["policies/budgets.yaml"] = _BUDGETS.replace(
        _BUDGETS_OF_EXAMPLE, "".join(_BUDGETS_OF_EXAMPLE.replace("example", name) for name in found.upstreams)
    )
    del files["policies/agent_to_tool.csv"]
    return files | found.rules


def _needs(found: Import, folder: Path) -> list[str]:
    notes = [
        f"{name} is not set; {server} needs it when the sidecar starts"
        for name, server in found.needed.items()
        if name not in os.environ and f"\n{name}=" not in "\n" + found.secrets.get(VARIABLES_PATH, "")
    ]
    if VARIABLES_PATH in found.secrets:
        notes.append(f"before sidecar starts: set -a; . {folder / VARIABLES_PATH}; set +a")
    return notes


@cache
def _schema(kind: str) -> str:
    return orjson.dumps(schema_of(kind), option=orjson.OPT_INDENT_2).decode() + "\n"


def starting_files() -> dict[str, str]:
    models = {f"models/{path.name}": path.read_text("utf-8") for path in sorted(shipped("models").glob("*.conf"))}
    return {
        "sidecar.yaml": _SETTINGS,
        "sidecar.schema.json": _schema("config"),
        "budgets.schema.json": _schema("budgets"),
        **models,
        "policies/agent_to_tool.csv": _RULES,
        "policies/budgets.yaml": _BUDGETS,
        "keys/README.md": _KEYS,
        ".gitignore": _IGNORED,
    }


def write_files(folder: Path, files: Mapping[str, str | bytes], *, secret: bool = False) -> None:
    """Writes files that must not exist yet; only their owner can read `secret` ones. Raises OSError."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o666)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
