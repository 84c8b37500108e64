"""Does a script get from the official SDK's server what an MCP client gets, whichever eras that server knows?"""

from pathlib import Path
from typing import Any

import pytest

from tests.flow.described import CALL, LIST, check_described
from tests.flow.talk import Answer, Talk
from tests.peers.ears import client, text_of
from tests.peers.stage import ALL, Stage, stage


async def call(on: Stage, tool: str, **arguments: Any) -> Answer:
    answer = await Talk(on.world, "plain").call(tool, arguments)
    check_described(CALL, answer)
    return answer


@pytest.mark.parametrize("path", ["/mcp", "/sessions", "/stateless"])
async def test_a_script_hears_what_a_client_hears(path: str, tmp_path: Path, everything: str) -> None:
    async with stage(tmp_path, everything, ALL, path=path) as on:
        listed = await Talk(on.world, "plain").ask("tools/list")
        check_described(LIST, listed)
        status, echoed, _ = await call(on, "echo", text="hällo")
        _, weather, _ = await call(on, "weather", city="Oslo")
        async with client(on.url, "auto") as peer:
            tools = (await peer.list_tools()).tools
            assert [(tool["name"], tool["input_schema"]) for tool in listed[1]["tools"]] == [
                (tool.name, tool.input_schema) for tool in tools
            ]
            assert text_of(await peer.call_tool("echo", {"text": "hällo"})) == "hällo"
            structured = (await peer.call_tool("weather", {"city": "Oslo"})).structured_content
        assert (status, echoed["result"]["content"][0]["text"]) == (200, "hällo")
        assert weather["result"]["structuredContent"] == structured

        before = len(await on.messages("tools/call"))
        failed = await call(on, "fail", text="ouch")
        assert (failed[0], failed[1]["type"]) == (502, "urn:sidecar:tool-error")
        assert "ouch" in failed[1]["details"]["content"][0]["text"]
        long = await call(on, "weather", city="x" * 41)
        assert (long[0], long[1]["details"]) == (400, {"pointer": "/arguments/city", "keyword": "maxLength"})
        assert (await call(on, "near", region="eu"))[0] == 200  # its header was made for us
        talked = await call(on, "shout", text="hear me")  # what it says on the way is for streams
        assert talked[0] == 200 and set(talked[1]) == {"call_id", "result", "latency_ms"}
        calls = await on.messages("tools/call")
        assert [one["params"]["name"] for one in calls][before:] == ["fail", "near", "shout"]

        asked = await call(on, "greet", text="who?")
        assert asked[0] == 502 and asked[1]["error_code"] == "ExecutionFailed", asked[1]
