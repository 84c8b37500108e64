"""Do the official SDKs' clients of one era work through us before servers of the other?

A client of the 2.x SDK in its stateless mode before a server that knows sessions only, and the same client as a
session's before a server that is stateless only. The client notices nothing: it hears, asks and is asked as ever.
"""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import mcp_types as types
import pytest
from mcp import MCPError

from tests.flow.world import until
from tests.peers.ears import Ears, check_content, check_questions, client, text_of
from tests.peers.stage import ALL, LITTLE, Stage, stage

# The client's mode, and the address of the server that does not know its era.
BRIDGES = {"stateless-before-sessions": ("auto", "/sessions"), "session-before-stateless": ("legacy", "/stateless")}
DOWN, UP = BRIDGES.values()
both_ways = pytest.mark.parametrize("bridge", BRIDGES.values(), ids=BRIDGES)


@contextlib.asynccontextmanager
async def bridged(
    folder: Path, everything: str, bridge: tuple[str, str], ears: Ears | None = None, rules: str = ALL, **more: Any
) -> AsyncIterator[tuple[Stage, Any]]:
    """A client of one era and a server of the other, with us in between."""
    mode, address = bridge
    async with stage(folder, everything, rules, path=address) as on, client(on.url, mode, ears, **more) as peer:
        yield on, peer


@both_ways
async def test_all_that_a_client_has_crosses_and_each_hop_agrees_on_its_own_revision(
    tmp_path: Path, everything: str, bridge: tuple[str, str]
) -> None:
    ears, tag = Ears(), f"bridge-{bridge[0]}"
    async with bridged(tmp_path, everything, bridge, ears) as (on, peer):
        assert peer.protocol_version == {DOWN: "2026-07-28", UP: "2025-11-25"}[bridge]
        assert peer.server_info.name == "everything" and peer.instructions == "Try anything."
        await check_questions(peer, ears)
        rounds = len(await on.messages("tools/call"))
        assert rounds == 3 * {DOWN: 1, UP: 2}[bridge], "one held call, or one in two rounds"
        ended = [record for record in on.world.ends() if record["action"] == "tools/call"]
        assert len(ended) == 3 * {DOWN: 2, UP: 1}[bridge], "each of the caller's own calls is on record"
        await check_content(peer)
        assert text_of(await peer.call_tool("near", {"region": "grün"})) == "near grün"
        *_, call = [entry for entry in await on.seen() if entry.get("message", {}).get("method") == "tools/call"]
        assert call["headers"].get("mcp-param-region") == {DOWN: None, UP: "=?base64?Z3LDvG4=?="}[bridge]
        assert call["headers"]["mcp-protocol-version"] == {DOWN: "2025-11-25", UP: "2026-07-28"}[bridge]
        assert ("mcp-session-id" in call["headers"]) is (bridge is DOWN)
        await on.check_progress(peer, ears, tag)
        await on.check_cancelling(peer, tag)
        assert len(await on.messages("notifications/cancelled")) == {DOWN: 1, UP: 0}[bridge]
        opened = {e["headers"]["mcp-session-id"] for e in await on.seen() if "mcp-session-id" in e.get("headers", {})}
    async with aiohttp.ClientSession() as http, http.get(f"{everything}/seen") as response:
        log = await response.json()
    assert opened <= {e["headers"]["mcp-session-id"] for e in log if e.get("verb") == "DELETE"}, "leaving ends them"


async def test_logs_come_to_a_stateless_caller_that_asked_and_to_no_other(tmp_path: Path, everything: str) -> None:
    for level, logs in (("warning", [("warning", "warning quiet")]), (None, [])):
        ears = Ears()
        async with bridged(tmp_path / f"{level}", everything, DOWN, ears, log_level=level) as (on, peer):
            await peer.call_tool("whisper", {"text": "quiet"})
            await until(lambda ears=ears, logs=logs: ears.logs == logs)  # type: ignore[misc]
            assert ({"event": "level", "tag": "warning"} in await on.seen()) is bool(level)
            assert bool(await on.messages("logging/setLevel")) is bool(level)


async def test_a_level_that_a_session_sets_goes_with_each_of_its_calls(tmp_path: Path, everything: str) -> None:
    ears = Ears()
    async with bridged(tmp_path, everything, UP, ears) as (_, peer):
        await peer.session.set_logging_level("warning")
        await peer.call_tool("whisper", {"text": "quiet"})
        await until(lambda: ears.logs == [("warning", "warning quiet")])


async def test_a_stateless_subscription_hears_a_session_server(tmp_path: Path, everything: str) -> None:
    async with bridged(tmp_path, everything, DOWN) as (on, peer):
        async with peer.listen(tools_list_changed=True, resource_subscriptions=["note://welcome"]) as stream:
            assert not stream.honored.tools_list_changed, "which this server does not announce in a session"
            assert stream.honored.resource_subscriptions == ["note://welcome"]
            await peer.call_tool("touch", {"uri": "note://private"})
            await peer.call_tool("touch", {"uri": "note://welcome"})
            assert (await anext(stream)).uri == "note://welcome"
        await on.until(lambda seen: any(_is(entry, "resources/unsubscribe") for entry in seen))


async def test_a_session_hears_what_a_stateless_server_announces(tmp_path: Path, everything: str) -> None:
    ears = Ears()
    async with bridged(tmp_path, everything, UP, ears) as (on, peer):
        await on.until(lambda seen: any(_is(entry, "subscriptions/listen") for entry in seen))
        await peer.subscribe_resource("note://welcome")
        await peer.call_tool("touch", {"uri": "note://private"})
        await peer.call_tool("touch", {"uri": "note://welcome"})
        await until(lambda: ears.count(types.ResourceUpdatedNotification) > 0)
        assert [heard.params.uri for heard in ears.heard(types.ResourceUpdatedNotification)] == ["note://welcome"]
        await peer.unsubscribe_resource("note://welcome")
        await peer.call_tool("touch", {"uri": "note://welcome"})
        await peer.call_tool("grow", {"name": "bridged-up"})
        await until(lambda: ears.count(types.ToolListChangedNotification) > 0)
        assert ears.count(types.ResourceUpdatedNotification) == 1
        assert text_of(await peer.call_tool("bridged-up", {"text": "t"})) == "text t"
        await peer.session.send_ping()
        assert await on.messages("ping") == await on.messages("resources/subscribe") == []


async def test_a_call_whose_stream_the_server_closes_is_fetched_by_us(tmp_path: Path, everything: str) -> None:
    """A stateless caller has no word for resuming; the server's session has."""
    async with bridged(tmp_path, everything, DOWN) as (on, peer):
        assert text_of(await peer.call_tool("away", {"text": "back"})) == "back"
        assert any("last-event-id" in headers for headers in await on.verbs("GET"))
        assert len(await on.messages("tools/call")) == 1


@both_ways
async def test_what_the_server_may_not_ask_is_never_shown_to_the_client(
    tmp_path: Path, everything: str, bridge: tuple[str, str]
) -> None:
    ears = Ears()
    async with bridged(tmp_path, everything, bridge, ears, rules=LITTLE) as (on, peer):
        with pytest.raises(MCPError) as denied:
            await peer.call_tool("greet", {"text": "you"})
        assert denied.value.error.code == 403
        assert ears.asked == []
        assert text_of(await peer.call_tool("echo", {"text": "on we go"})) == "on we go"
        if bridge is DOWN:  # the call that nobody will come back to is not kept waiting
            await on.until(lambda seen: any(_is(entry, "notifications/cancelled") for entry in seen))
        (asked,) = [record for record in on.world.records() if record["action"] == "elicitation/create"]
        assert (asked["event"], asked["reason"]) == ("decision", "no-matching-rule")


def _is(entry: dict[str, Any], method: str) -> bool:
    return bool(entry.get("message", {}).get("method") == method)
