"""Does the environment set what it names, and nothing else?"""

from collections.abc import Mapping
from pathlib import Path

import pytest

from sidecar.errors import SettingsError
from sidecar.settings.load import load_settings
from sidecar.settings.sidecar_file import Settings
from tests.tables import tables

TABLES = tables("settings/environment")

FILE = TABLES["file"]


def load(folder: Path, environ: Mapping[str, str], text: str = FILE) -> Settings:
    path = folder / "sidecar.yaml"
    path.write_text(text)
    return load_settings(path, environ, check_files=False)


def faults(folder: Path, environ: Mapping[str, str], text: str = FILE) -> list[tuple[str, str]]:
    with pytest.raises(SettingsError) as error:
        load(folder, environ, text)
    return [(fault.file, fault.code) for fault in error.value.faults]


def test_a_variable_with_two_underscores_is_a_setting(tmp_path: Path) -> None:
    environ = TABLES["variables"]
    settings = load(tmp_path, environ)
    server, (issuer,) = settings.server, settings.identity.issuers
    assert (settings.store.url, settings.policy.path) == ("redis://second:6379/0", tmp_path / "rules")
    assert (server.max_body_bytes, server.shutdown_grace_s) == (2048, 5.0)
    assert server.allowed_hosts == ("gw.acme.example", "localhost")
    assert settings.metrics is not None
    assert settings.upstreams["my-server"].mcp.timeout_s == 7.5
    assert (issuer.issuer, issuer.kinds) == ("b", ("nhi",))
    assert load(tmp_path, {"SIDECAR_STORE__URL": "redis://x"}, "version: 1\nstore:\n").store.url == "redis://x"


def test_variables_of_the_platform_are_not_settings(tmp_path: Path) -> None:
    load(tmp_path, {"SIDECAR_PORT_8080_TCP_ADDR": "10.0.0.1", "SIDECAR_CONFIG": "x", "OTHER__X": "1", "__": "x"})


WRONG = TABLES["WRONG"]


@pytest.mark.parametrize(("environ", "code"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_a_wrong_variable_is_named(tmp_path: Path, environ: dict[str, str], code: str) -> None:
    (name,) = environ
    assert faults(tmp_path, environ) == [(f"env {name}", code)]


def test_a_secret_comes_from_a_file_as_it_stands(tmp_path: Path) -> None:
    secret = tmp_path / "url"
    secret.write_text("redis://:1:30,no@host\n")
    assert load(tmp_path, {"SIDECAR_STORE__URL_FILE": str(secret)}).store.url == "redis://:1:30,no@host"


def test_a_secret_that_is_wrong_is_not_repeated(tmp_path: Path) -> None:
    secret = tmp_path / "url"
    secret.write_text("hunter2\n")
    with pytest.raises(SettingsError) as error:
        load(tmp_path, {"SIDECAR_STORE__URL_FILE": str(secret), "SIDECAR_STORE__ON_FAILURE_FILE": str(secret)})
    assert len(error.value.faults) == 2
    assert "hunter2" not in str(error.value)


def test_a_setting_and_its_file_together_are_an_error(tmp_path: Path) -> None:
    secret = tmp_path / "url"
    secret.write_text("redis://x")
    environ = {"SIDECAR_STORE__URL": "redis://y", "SIDECAR_STORE__URL_FILE": str(secret)}
    assert faults(tmp_path, environ) == [("env SIDECAR_STORE__URL_FILE", "S202")]


FILLED = TABLES["FILLED"]


@pytest.mark.parametrize(("url", "environ", "expected"), FILLED)
def test_variables_are_filled_into_upstreams_once(
    tmp_path: Path, url: str, environ: dict[str, str], expected: str
) -> None:
    settings = load(tmp_path, environ, f"version: 1\nupstreams:\n  a:\n    mcp: {{url: '{url}'}}\n")
    assert settings.upstreams["a"].mcp.url == expected


@pytest.mark.parametrize("url", ["http://h:${PORT}/", "http://h:${PORT:?no}/", "http://h:${}/", "http://h:${PORT/"])
def test_a_variable_that_cannot_be_filled_names_its_place(tmp_path: Path, url: str) -> None:
    with pytest.raises(SettingsError) as error:
        load(tmp_path, {}, f"version: 1\nupstreams:\n  a:\n    mcp:\n      url: '{url}'\n")
    (fault,) = error.value.faults
    assert (fault.line, fault.column, fault.code) == (5, 12, "S204")


def test_agents_and_schedules_are_named_and_filled_as_upstreams_are(tmp_path: Path) -> None:
    text = """\
version: 1
agents: {my-agent: {executable: cat, envs: {HOME: "${PLACE}"}}}
schedules: {each-night: {agent: my-agent, cron: "0 2 * * *", input_parameters: {prompt: "${PLACE}"}}}
"""
    environ = {"SIDECAR_AGENTS__MY_AGENT__TIMEOUT": "7s", "SIDECAR_SCHEDULES__EACH_NIGHT__ENABLED": "false"}
    settings = load(tmp_path, {"PLACE": "/x", **environ}, text)
    agent, schedule = settings.agents["my-agent"], settings.schedules["each-night"]
    assert (agent.envs, agent.timeout, schedule.enabled) == ({"HOME": "/x"}, 7.0, False)
    assert schedule.input_parameters == {"prompt": "${PLACE}"}  # what is said to an agent is data
    with pytest.raises(SettingsError) as refused:
        load(tmp_path, {}, text)
    assert [(fault.line, fault.code) for fault in refused.value.faults] == [(2, "S204")]


def test_outside_of_upstreams_a_dollar_is_a_dollar(tmp_path: Path) -> None:
    assert load(tmp_path, {"X": "y"}, "version: 1\ndata: ${X}\n").data == tmp_path / "${X}"


def test_faults_of_variables_and_of_the_file_come_together(tmp_path: Path) -> None:
    text = "version: 1\nfoo: 1\nupstreams:\n  a:\n    mcp: {url: 'http://${X}/'}\n"
    found = faults(tmp_path, {"SIDECAR_STORE__URL": "ftp://x"}, text)
    path = f"{tmp_path}/sidecar.yaml"
    assert found == [(path, "Y101"), (path, "S204"), ("env SIDECAR_STORE__URL", "Y104")]
