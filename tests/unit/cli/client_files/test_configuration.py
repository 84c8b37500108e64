"""Are the files of every client read, and what is not understood refused with its place?"""

import json
from pathlib import Path
from typing import Any

import pytest

from sidecar.cli.client_files.configuration import ClientFile, ClientServer, read_client_file, slugs
from sidecar.cli.client_files.jsonc import parse_jsonc
from sidecar.cli.client_files.references import ReferencePlaces, filled_in, translated
from sidecar.errors import SettingsError
from tests.tables import tables

TABLES = tables("cli/client_files/configuration")

SEED = TABLES["dialects"]


def read(value: Any, path: str = ".mcp.json") -> ClientFile:
    return read_client_file(parse_jsonc(json.dumps(value).encode(), Path(path)))


def codes(value: Any) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        read(value)
    return [fault.code for fault in caught.value.faults]


def only(value: Any) -> ClientServer:
    (server,) = read(value).servers
    return server


@pytest.mark.parametrize(
    "around", [lambda s: {"mcpServers": s}, lambda s: {"servers": s}, lambda s: {"mcp": {"servers": s}}]
)
@pytest.mark.parametrize(("entry", "url", "transport"), TABLES["names"])
def test_the_same_server_is_read_whoever_spelled_it(
    around: Any, entry: dict[str, Any], url: str | None, transport: str
) -> None:
    server = only(around({"a": entry}))
    assert (server.name, server.url, server.transport) == ("a", url, transport)


@pytest.mark.parametrize(("entry", "code"), TABLES["refused_entries"])
def test_what_is_no_server_is_refused(entry: Any, code: str) -> None:
    assert code in codes({"mcpServers": {"a": entry}})


@pytest.mark.parametrize("value", [{}, [], {"mcpServers": {}}, {"mcpServers": []}, 1, "x"])
def test_a_file_without_servers_is_refused(value: Any) -> None:
    assert codes(value)[0] in ("C101", "C103")


def test_the_seeds_configuration_is_read() -> None:
    server = only(SEED)
    assert (server.name, server.command, server.args) == ("github", "/usr/local/bin/mcp-github", ("--verbose",))
    assert (server.env, server.timeout) == ({"GITHUB_TOKEN": "${GITHUB_TOKEN}"}, "30s")
    assert server.capabilities == ("git.read", "git.commits.list", "git.pr.list")
    http = only({**SEED, "transport": "http", "baseURL": "https://mcp-server.example.com"})
    assert (http.command, http.url) == (None, "https://mcp-server.example.com")
    assert [server.name for server in read([SEED, {**SEED, "name": "jira"}]).servers] == ["github", "jira"]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        *TABLES["refused_manifests"],
        *(({key: None}, "C106") for key in ("name", "command", "transport", "capabilities", "schemaVersion")),
    ],
)
def test_the_seeds_rules_hold(change: dict[str, Any], code: str) -> None:
    changed = {key: value for key, value in {**SEED, **change}.items() if value is not None}
    assert code in codes([changed])


def test_no_name_of_the_seed_stands_twice() -> None:
    assert codes([SEED, SEED]) == ["C104"]


def test_names_become_ours_and_none_is_taken_twice() -> None:
    given = ("Git Hub", "git_hub", "git-hub-2", "日本", "A" * 99)
    file = read({"mcpServers": {name: {"command": "x"} for name in given}})
    names = list(slugs(file.servers).values())
    assert names == ["git-hub", "git-hub-2", "git-hub-2-2", "server", "a" * 64]
    assert next(iter(slugs(file.servers, frozenset({"git-hub"})).values())) == "git-hub-2"


PLACES = ReferencePlaces(Path("/work space"), Path("/home/me"), frozenset({"my-token"}))


@pytest.mark.parametrize(("text", "ours", "problems"), TABLES["variables"])
def test_references_are_told_in_our_words(text: str, ours: str, problems: int) -> None:
    found = translated(text, PLACES)
    assert (found.text, len(found.problems)) == (ours, problems)


def test_gemini_writes_a_variable_without_braces() -> None:
    for bare, told in ((True, "Bearer ${A_B}-${C}"), (False, "Bearer $A_B-${C}")):
        assert translated("Bearer $A_B-${C}", ReferencePlaces(Path("/w"), Path("/h"), bare=bare)).text == told


def test_what_is_unset_is_named() -> None:
    assert filled_in("${A}-${B:-b}-${C}", {"A": "1"}) == ("1-b-", ["C"])
