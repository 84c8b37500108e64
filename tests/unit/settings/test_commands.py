"""Do `config show`, `schema` and `init` say and write what holds?"""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
import yaml
from click.testing import CliRunner, Result

from sidecar.cli import COMMANDS, main
from sidecar.cli.config import config, schema, schema_of
from sidecar.cli.init import init
from sidecar.settings.load import load_settings
from sidecar.settings.shipped_files import shipped
from sidecar.settings.yaml_document import read_document
from tests.tables import tables

FILE = tables("settings/commands")["file"]


def show(folder: Path, *options: str, env: dict[str, str] | None = None) -> Result:
    path = folder / "sidecar.yaml"
    path.write_text(FILE)
    environ = {"HOST": "canary-host", **(env or {})}
    return CliRunner().invoke(config, ["show", "-c", str(path), *options], env=environ)


def test_show_prints_what_the_reader_reads_back(tmp_path: Path) -> None:
    result = show(tmp_path)
    assert result.exit_code == 0
    shown = read_document(tmp_path / "shown.yaml", text=result.stdout).data
    assert shown["server"]["listen"] == "127.0.0.1:8080"
    assert shown["upstreams"]["github"]["mcp"]["url"] == "http://${HOST}/mcp"
    (tmp_path / "again.yaml").write_text(result.stdout)
    again = load_settings(tmp_path / "again.yaml", {"HOST": "canary-host"}, check_files=False)
    before = load_settings(tmp_path / "sidecar.yaml", {"HOST": "canary-host"}, check_files=False)
    assert again.model_copy(update={"store": before.store}) == before  # all but the masked password


def test_no_form_of_show_prints_a_secret(tmp_path: Path) -> None:
    secret = tmp_path / "key"
    secret.write_text("canary-path")
    for options in ([], ["--origin"], ["--json"], ["--json", "--origin"]):
        result = show(tmp_path, *options, env={"SIDECAR_AUDIT__KEY_PATH_FILE": str(secret)})
        assert result.exit_code == 0
        assert "***" in result.stdout
        for canary in ("hunter2", "canary-host", "canary-path"):
            assert canary not in result.stdout


def test_each_value_has_its_origin(tmp_path: Path) -> None:
    result = show(tmp_path, "--origin", "--json", env={"SIDECAR_SERVER__LISTEN": "127.0.0.1:1"})
    told = {entry["setting"]: (entry["value"], entry["origin"]) for entry in json.loads(result.stdout)}
    assert told["server.listen"] == ("127.0.0.1:1", "env SIDECAR_SERVER__LISTEN")
    assert told["store.url"] == ("redis://me:***@redis:6379/0", f"{tmp_path}/sidecar.yaml:2")
    assert told["upstreams.github.mcp.url"] == ("http://${HOST}/mcp", f"{tmp_path}/sidecar.yaml:5")
    assert told["policy.mode"] == ("enforce", "default")
    assert told["identity.issuers.0.jwks_url"][1] == "preset"
    assert told["identity.issuers.0.typ"][1] == "default"


def test_an_invalid_file_ends_with_3_and_every_fault_on_stderr(tmp_path: Path) -> None:
    path = tmp_path / "sidecar.yaml"
    path.write_text("version: 2\nfoo: no\n")
    result = CliRunner().invoke(config, ["show", "-c", str(path)])
    assert (result.exit_code, result.stdout) == (3, "")
    assert "Y012" in result.stderr


# Schemas


def test_the_schema_is_one_and_accepts_what_we_accept(tmp_path: Path) -> None:
    result = CliRunner().invoke(schema, ["config"])
    document = json.loads(result.stdout)
    jsonschema.Draft202012Validator.check_schema(document)
    validator = jsonschema.Draft202012Validator(document)
    validator.validate(yaml.safe_load(FILE))
    shown = show(tmp_path)
    validator.validate(yaml.safe_load(shown.stdout))


@pytest.mark.parametrize("text", ["version: 2", "version: 1\nfoo: 1", "version: 1\nupstreams: {A_b: {}}", "{}"])
def test_the_schema_refuses_what_we_refuse(text: str) -> None:
    validator = jsonschema.Draft202012Validator(schema_of("config"))
    assert not validator.is_valid(yaml.safe_load(text))


def test_every_key_of_the_schema_is_described() -> None:
    document = schema_of("config")
    definitions: dict[str, Any] = document["$defs"]
    for name, node in {"sidecar.yaml": document, **definitions}.items():
        for key, value in node.get("properties", {}).items():
            target = definitions.get(value.get("$ref", "").rpartition("/")[2], value)
            assert value.get("description") or target.get("description"), f"{name}.{key}"


@pytest.mark.parametrize(
    ("kind", "keys"), [("policy", {"rules"}), ("test", {"tests"}), ("budgets", {"version", "tools", "principals"})]
)
def test_there_is_a_schema_of_what_platform_teams_write(kind: str, keys: set[str]) -> None:
    result = CliRunner().invoke(schema, [kind])
    assert result.exit_code == 0
    assert keys <= json.loads(result.stdout)["properties"].keys()


SAMPLES: Mapping[str, tuple[str, str]] = {
    "pins": (
        "version: 1\nservers: {github: {search: {digest: a, pinned_at: b, pinned_by: c, definition: '{}'}}}",
        "version: 1\nservers: {github: {search: yes}}",
    ),
    "disabled": ("version: 1\ndisabled: ['nhi:planner', {principal: 'user:bob', reason: gone}]", "disabled: []"),
    "attributes": ("version: 1\nattributes: {'nhi:*': {team: red}}", "version: 1\nattributes: {'nhi:*': red}"),
    "keys": ("version: 1\nkeys: []", "version: 1\nkeys: {}"),
    "budgets": ("version: 1\nprincipals: {'nhi:*': {per_hour: 3}}", "version: 1\nprincipals: {'nhi:*': {per_hour: x}}"),
}


@pytest.mark.parametrize("kind", SAMPLES)
def test_every_file_has_a_schema(kind: str) -> None:
    document, (good, bad) = schema_of(kind), SAMPLES[kind]
    jsonschema.Draft202012Validator.check_schema(document)
    validator = jsonschema.Draft202012Validator(document)
    validator.validate(yaml.safe_load(good))
    assert not validator.is_valid(yaml.safe_load(bad))


# init


def test_every_yaml_file_that_init_writes_names_its_schema_and_fits_it(tmp_path: Path) -> None:
    model, rows = tmp_path / "model.conf", tmp_path / "policy.csv"
    model.write_text(
        "[request_definition]\nr = sub, obj, act\n[policy_definition]\np = sub_rule, obj, act\n"
        "[policy_effect]\ne = some(where (p.eft == allow))\n"
        "[matchers]\nm = eval(p.sub_rule) && r.obj == p.obj && r.act == p.act\n"
    )
    rows.write_text("p, r.sub.age > 18, data1, read\n")
    validators: dict[str, jsonschema.Draft202012Validator] = {}  # by their schema
    folders = {"plain": (), "casbin": ("--casbin", str(model), str(rows))}
    for name, options in folders.items():
        folder = tmp_path / name
        result = CliRunner().invoke(init, [str(folder), *options])
        assert result.exit_code == 0, result.output
        found = sorted(folder.rglob("*.yaml"))
        assert {path.name for path in found} >= {"sidecar.yaml"}
        for path in found:
            head, _, named = path.read_text().partition("\n")[0].partition("$schema=")
            assert head == "# yaml-language-server: " and named, path
            text = (path.parent / named).read_text()
            if text not in validators:
                jsonschema.Draft202012Validator.check_schema(json.loads(text))
                validators[text] = jsonschema.Draft202012Validator(json.loads(text))
            validators[text].validate(yaml.safe_load(path.read_text()))


def test_a_variable_names_the_configuration_of_every_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "gateway"
    CliRunner().invoke(init, [str(folder)])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SIDECAR_CONFIG", "gateway/sidecar.yaml")
    for command in (["check"], ["config", "show"], ["policy", "check"], ["policy", "explain", "--as", "nhi:planner"]):
        if command[-1] == "nhi:planner":
            command += ["--calls", "tool:example/search", "--action", "tools/call"]
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 0, (command, result.output)
    result = CliRunner().invoke(main, ["check", "-c", "elsewhere.yaml"])
    assert result.exit_code == 3 and "elsewhere.yaml" in result.output, "-c comes first"


def test_every_command_that_reads_a_configuration_takes_the_variable() -> None:
    """Those of `policy check`, `policy suggest` and `wrap` read it where there is no -c, or not at all."""
    own = {("policy", "check"), ("policy", "suggest"), ("wrap",)}
    found = {path: one for path, command in commands() for one in command.params if "--config" in one.opts}
    assert len(found) > 20
    assert {path for path, option in found.items() if option.envvar != "SIDECAR_CONFIG"} == own


def commands() -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, (_, inside) in COMMANDS.items():
        for inner in inside if isinstance(inside, Mapping) else ():
            yield (name, inner), _command(name, inner)
        if not isinstance(inside, Mapping):
            yield (name,), _command(name)


def _command(*names: str) -> click.Command:
    command: click.Command = main
    for name in names:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), name)
        assert found is not None
        command = found
    return command


def test_init_writes_a_folder_that_is_valid_and_allows_nothing_by_a_star_alone(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "gateway"
    result = CliRunner().invoke(init, [str(folder)])
    assert result.exit_code == 0, result.output
    settings = load_settings(folder / "sidecar.yaml", {})
    assert set(settings.upstreams) == {"example"}
    assert [local.principal for local in settings.local] == ["nhi:planner"]
    written = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert {"sidecar.yaml", "policies/agent_to_tool.csv", "policies/budgets.yaml", "keys/README.md"} <= written
    assert {f"models/{path.name}" for path in shipped("models").glob("*.conf")} <= written
    jsonschema.validate(yaml.safe_load((folder / "sidecar.yaml").read_text()), schema_of("config"))
    checked = CliRunner().invoke(main, ["check", "-c", str(folder / "sidecar.yaml")])
    assert checked.exit_code == 0, checked.output
    rows = [line for path in folder.rglob("*.csv") for line in path.read_text().splitlines() if line.startswith("p,")]
    assert rows and not [row for row in rows if "*" in "".join(field.strip() for field in row.split(",")[1:3])]


def test_init_overwrites_nothing(tmp_path: Path) -> None:
    mine = tmp_path / "policies" / "budgets.yaml"
    mine.parent.mkdir()
    mine.write_text("mine")
    result = CliRunner().invoke(init, [str(tmp_path)])
    assert result.exit_code == 1
    assert "policies/budgets.yaml" in result.stderr
    assert mine.read_text() == "mine"
    assert not (tmp_path / "sidecar.yaml").exists()


# The cost of asking


def test_settings_bring_no_heavy_package_along() -> None:
    code = (
        "import sys, sidecar.settings; print(*{'aiohttp', 'redis', 'casbin', 'jwt', 'cryptography'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.strip() == ""
