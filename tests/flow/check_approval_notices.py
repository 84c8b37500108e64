"""A kill loses no news of approvals."""

from typing import Any

import aiohttp

from tests.flow.process import served
from tests.flow.test_approval_notices import TAKEN, told, told_at
from tests.flow.test_approvals import KEYS, PATH, ROLES, RULES, TOOL
from tests.flow.world import ACCEPT, PATIENCE_S, Upstream, listening, stateless, until
from tests.unit.http.client.hostile import Conversation, say, serving, silent
from tests.unit.tasks.webhooks.receiving import header


async def hangs_first(conversation: Conversation) -> None:
    if len(conversation.server.requests) == 0:
        await silent(conversation)
    else:
        await say(TAKEN)(conversation)


async def test_a_kill_loses_no_news() -> None:
    rules = RULES.replace("nhi:planner", "anonymous")
    more: dict[str, Any] = {"files": {"policies/roles.csv": ROLES, **KEYS}, "upstream_settings": "anonymous: true"}
    async with (
        listening(Upstream().handle) as base,
        serving(hangs_first) as receiver,
        served(f"{base}/mcp", rules=rules, settings=told_at(receiver), **more) as running,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE_S)) as http,
    ):
        message = stateless("tools/call", {"name": TOOL, "arguments": PATH})
        headers = {"Mcp-Method": "tools/call", "Mcp-Name": TOOL, "MCP-Protocol-Version": "2026-07-28", "Accept": ACCEPT}
        async with http.post(f"{running.url}/mcp/github", json=message, headers=headers) as answered:
            assert (await answered.json())["result"]["resultType"] == "input_required"
        await until(lambda: len(receiver.requests) == 1)
        await running.kill()
        await running.start()
        await until(lambda: len(receiver.requests) == 2)
        assert len({header(request, "webhook-id") for request in receiver.requests}) == 1
        assert told(receiver)[1]["data"]["state"] == "waiting"
