"""Do the clients of the official SDK see many servers as one, in both eras?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import mcp_types as types
import pytest
import pytest_asyncio
from mcp import Client

from tests.flow.federated import RULES, settings_of
from tests.flow.world import until
from tests.peers.ears import Ears, client, text_of
from tests.peers.stage import Stage, stage

SESSION, STATELESS = "legacy", "auto"
NOTE = "sidecar://{}/note%3A%2F%2Fwelcome"
both_eras = pytest.mark.parametrize("mode", [SESSION, STATELESS])


@pytest_asyncio.fixture
async def twice(tmp_path: Path, everything: str) -> AsyncIterator[Stage]:
    """The SDK's server behind two names, and a third that is down."""
    others = settings_of({"wiki": f"{everything}/mcp", "dead": "http://127.0.0.1:9/mcp"}, {})
    async with stage(tmp_path, everything, RULES, upstream_settings=others) as on:
        yield on


def at(on: Stage) -> str:
    return f"{on.world.url}/mcp"


async def all_tools(peer: Client) -> list[str]:
    names, cursor = [], None
    while True:
        page = await peer.list_tools(cursor=cursor)
        names += [tool.name for tool in page.tools]
        cursor = page.next_cursor
        if cursor is None:
            return names


@both_eras
async def test_a_client_lists_and_calls_the_tools_of_every_server(twice: Stage, mode: str) -> None:
    async with client(at(twice), mode) as peer:
        names = await all_tools(peer)
        assert {name.partition("__")[0] for name in names} == {"github", "wiki"}
        for server in ("github", "wiki"):
            assert text_of(await peer.call_tool(f"{server}__echo", {"text": server})) == server
        weather = await peer.call_tool("wiki__weather", {"city": "Oslo"})
        assert weather.structured_content == {"city": "Oslo", "celsius": 21}


@both_eras
async def test_resources_prompts_and_completions_are_of_their_server(twice: Stage, mode: str) -> None:
    async with client(at(twice), mode) as peer:
        uris = [str(resource.uri) for resource in (await peer.list_resources()).resources]
        assert NOTE.format("github") in uris and NOTE.format("wiki") in uris
        read = (await peer.read_resource(NOTE.format("wiki"))).contents[0]
        assert (read.text, str(read.uri)) == ("welcome", NOTE.format("wiki"))
        template = (await peer.list_resource_templates()).resource_templates[0].uri_template
        assert template == "sidecar://github/note%3A%2F%2Fby%2F{name}"
        by = await peer.read_resource(template.replace("{name}", "anna"))
        assert by.contents[0].text == "by anna"
        assert "wiki__review" in [prompt.name for prompt in (await peer.list_prompts()).prompts]
        got = await peer.get_prompt("wiki__review", {"code": "x = 1"})
        assert got.messages[0].content.text == "please review x = 1"
        reference = types.ResourceTemplateReference(type="ref/resource", uri=template)
        completed = await peer.complete(reference, {"name": "name", "value": "an"})
        assert completed.completion.values == ["anna", "anton"]


@both_eras
async def test_what_servers_ask_reaches_the_client_and_its_answer_the_right_one(twice: Stage, mode: str) -> None:
    ears = Ears()
    async with client(at(twice), mode, ears) as peer:
        calls = [peer.call_tool(f"{server}__greet", {"text": server}) for server in ("github", "wiki")]
        assert [text_of(result) for result in await asyncio.gather(*calls)] == ["github please", "wiki please"]
        assert text_of(await peer.call_tool("wiki__think", {"text": "hm"})) == "hm please"
        assert text_of(await peer.call_tool("github__places", {})) == "file:///work"
        assert sorted(ears.asked) == ["a word for github", "a word for wiki", "hm", "roots"]


@both_eras
async def test_progress_and_logs_of_two_servers_arrive(twice: Stage, mode: str) -> None:
    ears = Ears()
    await twice.open("open")
    async with client(at(twice), mode, ears, **({} if mode == SESSION else {"log_level": "debug"})) as peer:
        for server in ("github", "wiki"):
            await peer.call_tool(f"{server}__steps", {"gate": "open"}, progress_callback=ears.on_progress)
            await peer.call_tool(f"{server}__whisper", {"text": server})
        await until(lambda: len(ears.progress) == 4 and len(ears.logs) == 4)
        assert [word for _, word in ears.logs] == ["debug github", "warning github", "debug wiki", "warning wiki"]


async def test_one_session_hears_what_its_servers_say_unasked(twice: Stage) -> None:
    ears = Ears()
    async with client(at(twice), SESSION, ears) as peer:
        await peer.subscribe_resource(NOTE.format("wiki"))
        await twice.until_verb("GET")
        await peer.call_tool("wiki__touch", {"uri": "note://welcome"})
        await until(lambda: ears.count(types.ResourceUpdatedNotification) > 0)
        assert str(ears.heard(types.ResourceUpdatedNotification)[0].params.uri) == NOTE.format("wiki")
        await peer.unsubscribe_resource(NOTE.format("wiki"))
    await twice.until_verb("DELETE", 1)


async def test_one_subscription_hears_of_every_server(twice: Stage) -> None:
    note = NOTE.format("wiki")
    async with (
        client(at(twice), STATELESS) as peer,
        peer.listen(tools_list_changed=True, resource_subscriptions=[note]) as stream,
    ):
        assert stream.honored.tools_list_changed and stream.honored.resource_subscriptions == [note]
        await peer.call_tool("wiki__touch", {"uri": "note://welcome"})
        assert str((await anext(stream)).uri) == note


async def test_a_cancelled_call_ends_at_its_server(twice: Stage) -> None:
    async with client(at(twice), SESSION) as peer:
        task = asyncio.create_task(peer.call_tool("wiki__slow", {"tag": "federated"}))
        await twice.until_event("slow-begun", "federated")
        task.cancel()
        await twice.until_event("slow-cancelled", "federated")
