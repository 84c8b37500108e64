"""Do the clients of the official 2.x SDK work through us, in both eras, and fail cleanly when policy says no?"""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import httpx2
import mcp_types as types
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

from tests.flow.world import until
from tests.peers.ears import ASKING, Ears, check_content, check_questions, client, text_of
from tests.peers.stage import Stage, Wire, wire_to

SESSION, STATELESS = "legacy", "auto"
both_eras = pytest.mark.parametrize("mode", [SESSION, STATELESS])
BOTH, NO_VALUE = (SESSION, STATELESS), {"name": "name", "value": ""}


@both_eras
async def test_a_client_has_all_of_its_server(open_stage: Stage, mode: str) -> None:
    ears = Ears()
    async with client(open_stage.url, mode, ears) as peer:
        assert peer.protocol_version == {SESSION: "2025-11-25", STATELESS: "2026-07-28"}[mode]
        await open_stage.until_verb("GET", 1 if mode == SESSION else 0)
        await check_questions(peer, ears)
        rounds = len(await open_stage.messages("tools/call"))
        assert rounds == len(ASKING) * {SESSION: 1, STATELESS: 2}[mode]
        await check_content(peer)
        await open_stage.check_progress(peer, ears, f"gate-{mode}")
        await open_stage.check_cancelling(peer, mode)
    assert len(await open_stage.messages("notifications/cancelled")) == {SESSION: 1, STATELESS: 0}[mode]


@pytest.mark.parametrize("listed", [True, False])
async def test_an_argument_mirrored_in_a_header_arrives_in_both_places(open_stage: Stage, listed: bool) -> None:
    """A client that has not seen the tool's schema omits the header, is refused, looks, and tries again by itself."""
    async with client(open_stage.url, STATELESS) as peer:
        if listed:
            await peer.list_tools()
        assert text_of(await peer.call_tool("near", {"region": "grün"})) == "near grün"
    calls = [entry for entry in await open_stage.seen() if entry.get("message", {}).get("method") == "tools/call"]
    assert [call["headers"]["mcp-param-region"] for call in calls] == ["=?base64?Z3LDvG4=?="]


async def test_a_subscription_of_the_session_era_hears_of_updates(open_stage: Stage) -> None:
    ears = Ears()
    async with client(open_stage.url, SESSION, ears) as peer:
        await peer.subscribe_resource("note://welcome")
        await open_stage.until_verb("GET")
        await peer.call_tool("touch", {"uri": "note://welcome"})
        await until(lambda: ears.count(types.ResourceUpdatedNotification) > 0)
        assert ears.heard(types.ResourceUpdatedNotification)[0].params.uri == "note://welcome"
        await peer.unsubscribe_resource("note://welcome")
    assert len(await open_stage.messages("resources/unsubscribe")) == 1


async def test_a_subscription_of_the_stateless_era_hears_of_updates_and_lists(open_stage: Stage) -> None:
    async with (
        client(open_stage.url, STATELESS) as peer,
        peer.listen(tools_list_changed=True, resource_subscriptions=["note://welcome"]) as stream,
    ):
        assert stream.honored.tools_list_changed and stream.honored.resource_subscriptions == ["note://welcome"]
        await peer.call_tool("touch", {"uri": "note://welcome"})
        assert (await anext(stream)).uri == "note://welcome"
        await peer.call_tool("grow", {"name": "listened"})
        assert type(await anext(stream)).__name__ == "ToolsListChanged"


@both_eras
async def test_log_messages_arrive_once_a_level_is_set_or_asked_for(open_stage: Stage, mode: str) -> None:
    ears, warned = Ears(), ("warning", "warning quiet")
    async with client(open_stage.url, mode, ears, **({"log_level": "warning"} if mode == STATELESS else {})) as peer:
        if mode == SESSION:
            await peer.session.set_logging_level("warning")
        await peer.call_tool("whisper", {"text": "quiet"})
        await until(lambda: ears.logs == ([("debug", "debug quiet"), warned] if mode == SESSION else [warned]))
    assert mode == STATELESS or {"event": "level", "tag": "warning"} in await open_stage.seen()


async def test_pings_go_both_ways_and_leaving_ends_the_session_upstream_too(open_stage: Stage) -> None:
    async with client(open_stage.url, SESSION) as peer:
        await peer.session.send_ping()
        await open_stage.until_verb("GET")
        assert text_of(await peer.call_tool("ping_back", {})) == "alive"
    assert len(await open_stage.messages("ping")) == 1
    await open_stage.until_verb("DELETE")
    (opened,), (ended,) = await open_stage.verbs("GET"), await open_stage.verbs("DELETE")
    assert opened["mcp-session-id"] == ended["mcp-session-id"]
    assert len(open_stage.world.app.sessions) == 0


@both_eras
async def test_a_changed_tool_is_announced_and_validated_as_it_now_is(open_stage: Stage, mode: str) -> None:
    ears, name = Ears(), f"grown-{mode}"
    async with client(open_stage.url, mode, ears) as peer, _listening(open_stage, peer, mode):
        await peer.call_tool("grow", {"name": name})
        await until(lambda: ears.count(types.ToolListChangedNotification) == 1)
        assert text_of(await peer.call_tool(name, {"text": "t"})) == "text t"
        await peer.call_tool("grow", {"name": name})
        await until(lambda: ears.count(types.ToolListChangedNotification) == 2)
        assert text_of(await peer.call_tool(name, {"number": 7})) == "number 7"
        refused = await peer.call_tool(name, {"text": "t"})
        assert refused.is_error and refused.meta["sidecar/refusal"]["reason"] == "bad-arguments"


async def test_a_call_whose_stream_the_server_closes_is_fetched_by_resuming(open_stage: Stage) -> None:
    async with client(open_stage.url, SESSION) as peer:
        assert text_of(await peer.call_tool("away", {"text": "back"})) == "back"
    resumed = [headers for headers in await open_stage.verbs("GET") if "last-event-id" in headers]
    assert [headers["last-event-id"][:6] for headers in resumed] == ["event/"]
    assert len(await open_stage.messages("tools/call")) == 1


async def test_a_call_survives_its_broken_connection(open_stage: Stage) -> None:
    """The wire is cut while the tool runs: the answer comes by GET with Last-Event-ID, and the tool ran once."""
    ears = Ears()
    async with (
        wire_to(_port(open_stage)) as wire,
        _through(wire, open_stage) as server,
        client(server, SESSION, ears) as peer,
    ):
        await open_stage.check_progress(peer, ears, "cut", wire.cut)
    assert any("last-event-id" in headers for headers in await open_stage.verbs("GET"))
    assert len(await open_stage.messages("tools/call")) == 1


async def test_a_broken_session_stream_brings_later_what_it_missed(open_stage: Stage) -> None:
    ears = Ears()
    async with (
        wire_to(_port(open_stage)) as wire,
        _through(wire, open_stage) as server,
        client(server, SESSION, ears) as peer,
    ):
        await open_stage.until_verb("GET")
        await peer.call_tool("shout", {"text": "one"})
        await until(lambda: ("error", "one") in ears.logs)
        wire.cut()
        await peer.call_tool("shout", {"text": "two"})  # nobody listens now
        await until(lambda: ("error", "two") in ears.logs)
        assert ears.logs == [("error", "one"), ("error", "two")]


@both_eras
async def test_leaving_a_stream_that_has_no_end_is_no_error(open_stage: Stage, mode: str) -> None:
    async with client(open_stage.url, mode) as peer, _listening(open_stage, peer, mode):
        if mode == SESSION:
            await peer.call_tool("away", {"text": "back"})  # a further stream, left once it has brought the answer
    method, count = {SESSION: ("session/stream", 2), STATELESS: ("subscriptions/listen", 1)}[mode]
    await until(lambda: len(_ended(open_stage, method)) == count)
    assert {(record["status"], record["http_status"]) for record in _ended(open_stage, method)} == {("success", 200)}


# --- and when policy says no ----------------------------------------------------------------------------------------

ACTIONS = {"greet": "elicitation/create", "think": "sampling/createMessage", "places": "roots/list"}
Attempt = Callable[[Client], Awaitable[Any]]
PROMPT = types.PromptReference(type="ref/prompt", name="secret")
TEMPLATE = types.ResourceTemplateReference(type="ref/resource", uri="note://by/{name}")
# What is tried, the method that must not arrive, the reason, and the eras that have it.
FORBIDDEN: list[tuple[Attempt, str, str, tuple[str, ...]]] = [
    (lambda peer: peer.call_tool("weather", {"city": "Oslo"}), "tools/call", "no-matching-rule", BOTH),
    (lambda peer: peer.get_prompt("secret"), "prompts/get", "no-matching-rule", BOTH),
    (lambda peer: peer.read_resource("note://private"), "resources/read", "no-matching-rule", BOTH),
    (lambda peer: peer.complete(PROMPT, NO_VALUE), "completion/complete", "no-matching-rule", BOTH),
    (lambda peer: peer.complete(TEMPLATE, NO_VALUE), "completion/complete", "no-matching-rule", BOTH),
    (lambda peer: peer.list_resource_templates(), "resources/templates/list", "denied-by-rule", BOTH),
    (lambda peer: peer.subscribe_resource("note://private"), "resources/subscribe", "no-matching-rule", (SESSION,)),
    (lambda peer: peer.session.set_logging_level("info"), "logging/setLevel", "denied-by-rule", (SESSION,)),
    (lambda peer: _listen(peer, "note://private"), "subscriptions/listen", "no-matching-rule", (STATELESS,)),
]
CASES = [
    pytest.param(mode, attempt, method, reason, id=f"{method}-{reason}-{mode}")
    for attempt, method, reason, eras in FORBIDDEN
    for mode in eras
]


@pytest.mark.parametrize(("mode", "attempt", "method", "reason"), CASES)
async def test_what_policy_denies_is_an_error_and_never_reaches_the_server(
    shut_stage: Stage, mode: str, attempt: Attempt, method: str, reason: str
) -> None:
    async with client(shut_stage.url, mode) as peer:
        with pytest.raises(MCPError) as denied:
            await attempt(peer)
        assert (denied.value.error.code, denied.value.error.data["reason"]) == (403, reason)
        assert await shut_stage.messages(method) == []
        await _still_usable(shut_stage, peer, mode)
    ends = [record["reason"] for record in shut_stage.world.ends() if record["status"] == "permission_denied"]
    assert ends == [reason]


@both_eras
async def test_lists_and_updates_hold_what_the_caller_may_use_and_no_more(shut_stage: Stage, mode: str) -> None:
    ears = Ears()
    async with client(shut_stage.url, mode, ears) as peer:
        assert [tool.name for tool in (await peer.list_tools()).tools] == ["echo", "touch", "greet", "think", "places"]
        assert [str(resource.uri) for resource in (await peer.list_resources()).resources] == ["note://welcome"]
        assert (await peer.list_prompts()).prompts == []
        if mode == SESSION:
            await shut_stage.until_verb("GET")
            await peer.call_tool("touch", {"uri": "note://private"})
            await peer.call_tool("touch", {"uri": "note://welcome"})
            await until(lambda: ears.count(types.ResourceUpdatedNotification) > 0)
            assert [heard.params.uri for heard in ears.heard(types.ResourceUpdatedNotification)] == ["note://welcome"]


@both_eras
@pytest.mark.parametrize(("tool", "action"), ACTIONS.items())
async def test_what_the_server_may_not_ask_is_never_shown_to_the_client(
    shut_stage: Stage, mode: str, tool: str, action: str
) -> None:
    """In the session era the server is told no in the client's place and ends the call as it likes; in the stateless
    era the question was the answer, so the call is refused."""
    ears, arguments = Ears(), ASKING[tool][0]
    async with client(shut_stage.url, mode, ears) as peer:
        await shut_stage.until_verb("GET", 1 if mode == SESSION else 0)
        if mode == STATELESS:
            with pytest.raises(MCPError) as denied:
                await peer.call_tool(tool, arguments)
            assert (denied.value.error.code, denied.value.error.data["reason"]) == (403, "no-matching-rule")
        else:
            await _told_no(shut_stage, peer, tool, arguments)
        assert ears.asked == []
        await _still_usable(shut_stage, peer, mode)
    (asked,) = [record for record in shut_stage.world.records() if record["action"] == action]
    assert (asked["event"], asked["reason"], asked["object"]) == ("decision", "no-matching-rule", "nhi:github")


async def _told_no(stage: Stage, peer: Client, tool: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(MCPError) as failed:  # the SDK's server passes the error on as the call's
        await peer.call_tool(tool, arguments)
    assert failed.value.error.code == 403
    answers = [entry["message"] for entry in await stage.seen() if "error" in entry.get("message", {})]
    assert [answer["error"]["code"] for answer in answers] == [403]


async def _listen(peer: Client, uri: str) -> None:
    async with peer.listen(resource_subscriptions=[uri]):
        pass


async def _still_usable(stage: Stage, peer: Client, mode: str) -> None:
    """The client goes on in the session that it had."""
    assert text_of(await peer.call_tool("echo", {"text": "on we go"})) == "on we go"
    assert len(await stage.messages("initialize")) == (1 if mode == SESSION else 0)


@contextlib.asynccontextmanager
async def _listening(stage: Stage, peer: Any, mode: str) -> AsyncIterator[None]:
    """The client hears of changes: by the session's stream, or by a subscription of its own."""
    if mode == SESSION:
        await stage.until_verb("GET")
        yield
        return
    async with peer.listen(tools_list_changed=True):
        yield


def _ended(stage: Stage, method: str) -> list[dict[str, Any]]:
    return [record for record in stage.world.ends() if method in (record["tool"], record["method"])]


def _port(stage: Stage) -> int:
    return urlsplit(stage.world.url).port or 0


@contextlib.asynccontextmanager
async def _through(wire: Wire, stage: Stage) -> AsyncIterator[Any]:
    """A transport that reaches the sidecar over the wire, by the sidecar's own name."""
    host = urlsplit(stage.world.url).netloc
    async with httpx2.AsyncClient(headers={"Host": host}, timeout=30) as http:
        yield streamable_http_client(f"http://{wire.address}/mcp/github", http_client=http)
