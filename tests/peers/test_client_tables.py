"""Do the tables of docs/reference/client-compatibility.md show the clients that are tried, in the locked versions?

The clients themselves are tried by `make clients`, which takes minutes. That the page shows what results.json holds is
tests/unit/test_docs.py's.
"""

import json
from typing import Any

import pytest

from tests.peers.clients.roster import CLIENTS, HERE, STYLES, Entry
from tests.peers.clients.table import goes_on, outcome, recommended, results

SHORT = {"list", "allowed", "denied", "after-denied", "first", "limited", "after-limited"}
WHOLE = SHORT | {"progress", "cancel", "server-cancelled", "after-cancel", "restarted", "restarted-2"}
ENTRIES = [pytest.param(entry, id=entry.key) for entry in CLIENTS]


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    clients: dict[str, Any] = results()["clients"]
    return clients


def test_what_was_tried_is_what_is_to_be_tried(found: dict[str, Any]) -> None:
    assert list(found) == [entry.key for entry in CLIENTS]
    assert sum("styles" in one for one in found.values()) >= 12


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_client_was_tried_in_the_locked_version(entry: Entry, found: dict[str, Any]) -> None:
    assert found[entry.key]["version"] == entry.version, "run: make clients"


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_client_played_its_whole_part(entry: Entry, found: dict[str, Any]) -> None:
    styles = found[entry.key]["styles"]
    assert set(styles) == {*STYLES, "valkey"}
    assert set(styles["auto"]) == WHOLE
    assert set(styles["valkey"]) == {"list", "allowed", "restarted", "restarted-2"}
    assert all(set(styles[style]) >= SHORT for style in STYLES)


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("style", ["recommended", "tool_result"])
def test_a_client_says_why_and_goes_on(entry: Entry, style: str, found: dict[str, Any]) -> None:
    styles = found[entry.key]["styles"]
    chosen = recommended(entry, styles) if style == "recommended" else style
    assert goes_on(styles[chosen])
    assert outcome(entry, styles[chosen]).endswith("with the reason")


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_client_goes_on_after_a_restart_with_sessions_in_the_store(entry: Entry, found: dict[str, Any]) -> None:
    assert found[entry.key]["styles"]["valkey"]["restarted"]["how"] == "answer"


def told(how: str, text: str, after: str = "still here") -> dict[str, Any]:
    steps = {name: {"how": how, "text": text} for name in ("denied", "limited")}
    return steps | {name: {"how": "answer", "text": after} for name in ("after-denied", "after-limited")}


def test_how_an_outcome_is_read() -> None:
    entry = CLIENTS[0]
    reasons = "The permission's condition is not met. A rate limit is reached"
    assert outcome(entry, told("marked", reasons)) == "result with the reason"
    assert outcome(entry, told("raised", reasons)) == "error with the reason"
    assert outcome(entry, told("raised", f'{{"jsonrpc": {reasons}}}')) == "error with the raw answer"
    assert outcome(entry, told("answer", "An error occurred")) == "result without the reason"
    assert outcome(entry, told("hung", "")) == "waits forever"
    assert outcome(entry, told("raised", reasons, after="")) == "loses its connection"


def test_no_lock_names_a_registry() -> None:
    packages = json.loads((HERE / "package-lock.json").read_text("utf-8"))["packages"]
    assert not [name for name, package in packages.items() if "resolved" in package]
    assert all("integrity" in package for name, package in packages.items() if name)
