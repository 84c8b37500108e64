"""Do the clients of the official SDK see many servers as one, in both eras?"""

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
async def test_a_client_has_of_each_server_what_is_its_own(twice: Stage, mode: str) -> None:
    ears = Ears()
    await twice.open("open")
    async with client(at(twice), mode, ears, **({} if mode == SESSION else {"log_level": "debug"})) as peer:
        names = await all_tools(peer)
        assert {name.partition("__")[0] for name in names} == {"github", "wiki"}
        for server in ("github", "wiki"):
            assert text_of(await peer.call_tool(f"{server}__echo", {"text": server})) == server
            await peer.call_tool(f"{server}__steps", {"gate": "open"}, progress_callback=ears.on_progress)
            await peer.call_tool(f"{server}__whisper", {"text": server})
        await until(lambda: len(ears.progress) == 4 and len(ears.logs) == 4)
        assert [word for _, word in ears.logs] == ["debug github", "warning github", "debug wiki", "warning wiki"]
        weather = await peer.call_tool("wiki__weather", {"city": "Oslo"})
        assert weather.structured_content == {"city": "Oslo", "celsius": 21}
        uris = [str(resource.uri) for resource in (await peer.list_resources()).resources]
        assert NOTE.format("github") in uris and NOTE.format("wiki") in uris
        read = (await peer.read_resource(NOTE.format("wiki"))).contents[0]
        assert (read.text, str(read.uri)) == ("welcome", NOTE.format("wiki"))
        template = (await peer.list_resource_templates()).resource_templates[0].uri_template
        assert template == "sidecar://github/note%3A%2F%2Fby%2F{name}"
        assert (await peer.read_resource(template.replace("{name}", "anna"))).contents[0].text == "by anna"
        assert "wiki__review" in [prompt.name for prompt in (await peer.list_prompts()).prompts]
        got = await peer.get_prompt("wiki__review", {"code": "x = 1"})
        assert got.messages[0].content.text == "please review x = 1"
        reference = types.ResourceTemplateReference(type="ref/resource", uri=template)
        completed = await peer.complete(reference, {"name": "name", "value": "an"})
        assert completed.completion.values == ["anna", "anton"]
        calls = [peer.call_tool(f"{server}__greet", {"text": server}) for server in ("github", "wiki")]
        assert [text_of(result) for result in await asyncio.gather(*calls)] == ["github please", "wiki please"]
        assert text_of(await peer.call_tool("wiki__think", {"text": "hm"})) == "hm please"
        assert text_of(await peer.call_tool("github__places", {})) == "file:///work"
        assert sorted(ears.asked) == ["a word for github", "a word for wiki", "hm", "roots"]
