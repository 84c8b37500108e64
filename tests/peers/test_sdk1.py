"""Do the client and the server of the last 1.x SDK work through us, and fail cleanly when policy says no?

They cannot live in one environment with 2.x, so `sdk1_client.py` and `sdk1_server.py` run under an interpreter of their
own: `.venv-mcp1`, which `make` builds, or the one that SIDECAR_MCP1_PYTHON names.
"""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest

from tests.flow.forks import MCP1, python
from tests.flow.world import until, world
from tests.peers.ears import Ears, client, text_of
from tests.peers.stage import ALL, LITTLE, SETTINGS, running, stage
from tests.tables import tables

TABLES = tables("peers/sdk1")

CLIENT, SERVER = "tests.peers.sdk1_client", "tests.peers.sdk1_server"
pytestmark = pytest.mark.skipif(not MCP1.exists(), reason="make builds .venv-mcp1, or set SIDECAR_MCP1_PYTHON")

ALLOWED = TABLES["allowed"]
DENIED = TABLES["denied"]


@dataclass
class Played:
    """How a part went: what the client saw, what reached the server, and the audit."""

    seen: dict[str, Any]
    upstream: list[dict[str, Any]]
    records: list[dict[str, Any]]
    told: str  # by the client, of what broke it

    def arrived(self, method: str) -> list[dict[str, Any]]:
        return [entry["message"] for entry in self.upstream if entry.get("message", {}).get("method") == method]

    @property
    def trouble(self) -> str:
        failed = (record for record in self.records if (record["http_status"] or 0) >= 400)
        return str([(one["method"], one["http_status"], one["reason"], one["latency"]) for one in failed]) + self.told


async def _play(folder: Path, upstream: str, rules: str, part: str, path: str = "/mcp") -> Played:
    async with stage(folder, upstream, rules, path=path) as on:
        command = (python(MCP1), "-m", CLIENT, on.url, upstream, part)
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
        out, told = await asyncio.wait_for(process.communicate(), 120)
        if path == "/mcp":
            await on.until_verb("DELETE")
        return Played(json.loads(out), await on.seen(), on.world.records(), told.decode())


@pytest.fixture(scope="module")
def allowed(everything: str, tmp_path_factory: pytest.TempPathFactory) -> Played:
    """Everything is allowed."""
    return asyncio.run(_play(tmp_path_factory.mktemp("allowed"), everything, ALL, "open"))


@pytest.fixture(scope="module")
def denied(everything: str, tmp_path_factory: pytest.TempPathFactory) -> Played:
    """Most of it is denied."""
    return asyncio.run(_play(tmp_path_factory.mktemp("denied"), everything, LITTLE, "shut"))


@pytest.mark.parametrize("step", ALLOWED)
def test_what_is_allowed_works(allowed: Played, step: str) -> None:
    assert allowed.seen.get(step, allowed.seen.get("broken")) == ALLOWED[step], allowed.trouble


def test_one_session_carried_it_all_and_ended_upstream(allowed: Played) -> None:
    sessions = {
        entry["headers"]["mcp-session-id"]
        for entry in allowed.upstream
        if entry.get("headers", {}).get("mcp-session-id") and entry["message"].get("method") != "tools/list"
    }
    assert len(sessions) == len(allowed.arrived("initialize")) == 1
    ended = [entry["headers"]["mcp-session-id"] for entry in allowed.upstream if entry.get("verb") == "DELETE"]
    assert ended == [*sessions]


def test_the_call_whose_stream_was_closed_ran_once_and_was_resumed(allowed: Played) -> None:
    assert len([call for call in allowed.arrived("tools/call") if call["params"]["name"] == "away"]) == 1
    assert any("last-event-id" in entry.get("headers", {}) for entry in allowed.upstream)


@pytest.mark.parametrize("step", DENIED)
def test_what_is_denied_fails_cleanly_and_the_client_goes_on(denied: Played, step: str) -> None:
    assert denied.seen.get(step, denied.seen.get("broken")) == DENIED[step]


@pytest.mark.parametrize("method", [step for step in DENIED if "/" in step])
def test_nothing_denied_reached_the_server(denied: Played, method: str) -> None:
    arrived = [call["params"].get("name") for call in denied.arrived(method)]
    assert arrived == (["greet", "think", "places", "echo"] if method == "tools/call" else [])


def test_what_the_server_may_not_ask_is_on_record(denied: Played) -> None:
    actions = ("elicitation/create", "sampling/createMessage", "roots/list")
    asked = [(one["action"], one["event"], one["reason"]) for one in denied.records if one["action"] in actions]
    assert asked == [(action, "decision", "no-matching-rule") for action in actions]


async def test_a_tool_that_there_is_not_costs_no_session(tmp_path: Path, everything: str) -> None:
    """This SDK reads a 404 as the end of its session, and stops at any other 4xx."""
    played = await _play(tmp_path, everything, ALL, "made-up")
    assert played.seen["nope"]["code"] == -32602
    assert played.seen["echo"] == "on we go"


# Before a server that knows no sessions: only what was asked for is logged, and nobody can ping the client.
BRIDGED = {step: came for step, came in ALLOWED.items() if step != "ping-back"} | {
    "log": [["warning", "warning quiet"]]
}


@pytest.fixture(scope="module")
def bridged(everything: str, tmp_path_factory: pytest.TempPathFactory) -> Played:
    """Everything is allowed, at a server that knows no sessions."""
    return asyncio.run(_play(tmp_path_factory.mktemp("bridged"), everything, ALL, "open", "/stateless"))


@pytest.mark.parametrize("step", BRIDGED)
def test_a_session_works_before_a_server_that_knows_none(bridged: Played, step: str) -> None:
    assert bridged.seen.get(step, bridged.seen.get("broken")) == BRIDGED[step]


@pytest.fixture(scope="module")
def old_server() -> Iterator[str]:
    """The base URL of a server that knows sessions only."""
    with running(str(MCP1), "-m", SERVER) as url:
        yield url


@pytest.mark.parametrize(("mode", "version"), [("legacy", "2025-11-25"), ("auto", "2026-07-28")])
async def test_a_new_client_before_an_old_server_goes_on_in_its_own_era(
    tmp_path: Path, old_server: str, mode: str, version: str
) -> None:
    ears = Ears()
    async with (
        world(tmp_path, rules=ALL, settings=SETTINGS, upstream_url=f"{old_server}/mcp") as running_world,
        client(f"{running_world.url}/mcp/github", mode, ears, log_level="info" if mode == "auto" else None) as peer,
    ):
        assert peer.protocol_version == version
        result = await peer.call_tool("greet", {"text": "you"}, progress_callback=ears.on_progress)
        assert text_of(result) == "you please"
        await until(lambda: ears.logs == [("info", "about you")])
        assert (ears.asked, ears.progress) == (["a word for you"], [(1, None)])
        assert text_of(await peer.call_tool("think", {"text": "you"})) == "you please"
        assert text_of(await peer.call_tool("places", {})) == "file:///work"
        assert ears.asked == ["a word for you", "you", "roots"]
        assert (await peer.read_resource("note://welcome")).contents[0].text == "welcome"
        templates = (await peer.list_resource_templates()).resource_templates
        assert [template.uri_template for template in templates] == ["note://by/{name}"]
        got = await peer.get_prompt("review", {"code": "x = 1"})
        assert got.messages[0].content.text == "please review x = 1"
        reference = types.PromptReference(type="ref/prompt", name="review")
        assert (await peer.complete(reference, {"name": "code", "value": "py"})).completion.values == ["python"]
        call = asyncio.create_task(peer.call_tool("slow", {"tag": mode}))
        await asyncio.sleep(0.1)
        call.cancel()
        async with asyncio.timeout(15):
            while text_of(await peer.call_tool("stopped", {})) != mode:
                await asyncio.sleep(0.02)


async def test_a_stateless_subscription_hears_an_old_server(tmp_path: Path, old_server: str) -> None:
    async with (
        world(tmp_path, rules=ALL, settings=SETTINGS, upstream_url=f"{old_server}/mcp") as running_world,
        client(f"{running_world.url}/mcp/github", "auto") as peer,
        peer.listen(tools_list_changed=True, resource_subscriptions=["note://welcome"]) as stream,
    ):
        assert stream.honored.tools_list_changed and stream.honored.resource_subscriptions == ["note://welcome"]
        await peer.call_tool("touch", {"uri": "note://welcome"})
        heard = [await anext(stream), await anext(stream)]
        assert [type(one).__name__ for one in heard] == ["ResourceUpdated", "ToolsListChanged"]
