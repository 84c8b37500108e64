"""Does a client of the official SDK that only starts programs work through `sidecar connect`, in both eras?"""

from __future__ import annotations

import asyncio
import sys
import traceback
from typing import Any

import pytest
from mcp import MCPError, StdioServerParameters
from mcp.shared.exceptions import MCPDeprecationWarning

from tests.peers.ears import Ears, client, text_of
from tests.peers.stage import ROOT, Stage

SESSION, STATELESS = "legacy", "auto"
pytestmark = pytest.mark.filterwarnings(f"ignore::{MCPDeprecationWarning.__module__}.{MCPDeprecationWarning.__name__}")


def program(url: str, *options: str) -> StdioServerParameters:
    return StdioServerParameters(
        command=sys.executable, args=["-m", "sidecar", "connect", url, *options], cwd=ROOT, env={"LANG": "C.UTF-8"}
    )


@pytest.mark.parametrize("mode", [SESSION, STATELESS])
async def test_a_program_leads_the_official_client_to_the_sidecar(open_stage: Stage, mode: str) -> None:
    ears = Ears()

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        await ears.on_progress(progress, total, message)
        if progress == 1:  # the tool waits until this report has arrived
            await open_stage.open(f"connect-{mode}")

    async with client(program(open_stage.url), mode, ears) as peer:
        assert peer.protocol_version == {SESSION: "2025-11-25", STATELESS: "2026-07-28"}[mode]
        assert {"echo", "weather", "fail"} <= {tool.name for tool in (await peer.list_tools()).tools}
        assert text_of(await peer.call_tool("echo", {"text": "hällo\n"})) == "hällo\n"
        assert (await peer.read_resource("note://welcome")).contents[0].text == "welcome"
        result = await peer.call_tool("steps", {"gate": f"connect-{mode}"}, progress_callback=on_progress)
        assert text_of(result) == f"connect-{mode} done" and len(ears.progress) == 2
        await open_stage.until_verb("GET", 1 if mode == SESSION else 0)
        assert text_of(await peer.call_tool("greet", {"text": "you"})) == "you please"
        assert ears.asked == ["a word for you"]
        call: asyncio.Task[Any] = asyncio.create_task(peer.call_tool("slow", {"tag": f"connect-{mode}"}))
        await open_stage.until_event("slow-begun", f"connect-{mode}")
        call.cancel()
        await open_stage.until_event("slow-cancelled", f"connect-{mode}")
    assert {one["chain"][-1] for one in open_stage.world.records() if one["chain"]} == {"nhi:planner"}


@pytest.mark.parametrize("mode", [SESSION, STATELESS])
async def test_a_refusal_reaches_the_client_with_its_reason(shut_stage: Stage, mode: str) -> None:
    async with client(program(shut_stage.url), mode) as peer:
        with pytest.raises(MCPError, match="No rule allows this call"):
            await peer.call_tool("weather", {"city": "Oslo"})


async def test_a_sidecar_that_is_not_there_or_wants_a_credential_is_told(open_stage: Stage) -> None:
    for url, said in (("http://127.0.0.1:1/mcp/x", "cannot be reached"), (_data_listener(open_stage), "HTTP 401")):
        with pytest.raises(Exception) as caught:
            async with client(program(url), SESSION):
                pass
        assert said in "".join(traceback.format_exception(caught.value))


def _data_listener(stage: Stage) -> str:
    return f"http://127.0.0.1:{stage.world.app.listeners[0].port}/mcp/github"
