"""Does a client of the official SDK that only starts programs work through `sidecar connect`, in both eras?"""

import traceback

import pytest
from mcp import MCPError, StdioServerParameters

from tests.flow.forks import sidecar
from tests.peers.ears import Ears, check_content, check_questions, client
from tests.peers.stage import ROOT, Stage

SESSION, STATELESS = "legacy", "auto"


def program(url: str, *options: str) -> StdioServerParameters:
    return StdioServerParameters(command=sidecar(), args=["connect", url, *options], cwd=ROOT, env={"LANG": "C.UTF-8"})


@pytest.mark.parametrize("mode", [SESSION, STATELESS])
async def test_a_program_leads_the_official_client_to_the_sidecar(open_stage: Stage, mode: str) -> None:
    ears = Ears()
    async with client(program(open_stage.url), mode, ears) as peer:
        assert peer.protocol_version == {SESSION: "2025-11-25", STATELESS: "2026-07-28"}[mode]
        await check_content(peer)
        await open_stage.check_progress(peer, ears, f"connect-{mode}")
        await open_stage.until_verb("GET", 1 if mode == SESSION else 0)
        await check_questions(peer, ears)
        await open_stage.check_cancelling(peer, f"connect-{mode}")
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
