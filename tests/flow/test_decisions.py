"""What enforcement points ask for is decided as a call is, and recorded once."""

import json
from pathlib import Path
from typing import Any

import pytest

from sidecar.admin.decisions import decisions_from
from sidecar.gateway.decisions.checked import Permit
from sidecar.gateway.decisions.point import AskedRequest, Asking
from tests.flow.enforcement import NAME, asked_world, decisions
from tests.flow.world import STATELESS, stateless


@pytest.mark.parametrize(("repo", "reason"), [("acme/site", None), ("evil/site", "condition-false")])
async def test_a_call_is_decided_without_reaching_its_server(tmp_path: Path, repo: str, reason: str | None) -> None:
    async with asked_world(tmp_path) as (running, keys):
        point = decisions_from(running.app.pipeline, running.app.settings, {}).point
        message = stateless("tools/call", {"name": "search_code", "arguments": {"repo": repo}})
        headers = {"Mcp-Method": "tools/call", "Mcp-Name": "search_code", "MCP-Protocol-Version": STATELESS}
        asked = request_of(message, **headers, **{"X-API-Key": keys["nhi:planner"]})
        context, response = await point.decide(asked, Asking("ext_authz", NAME, charge=True))
        assert (context.reason, isinstance(response, Permit)) == (reason, reason is None)
        assert running.upstream.calls() == []
        (record,) = decisions(running)
        found = [record[name] for name in ("event", "protocol", "enforcement_point", "peer", "reason", "object")]
        event = "decision" if reason is None else "refusal"
        assert found == [event, "ext_authz", NAME, "192.0.2.1", reason, "tool:github/search_code"]
        assert record["args_hash"] and record["http_status"] == (200 if reason is None else 403)


def request_of(message: dict[str, Any], **headers: str) -> AskedRequest:
    """A POST of a message to the server `github`, from another machine."""
    sent = {"content-type": "application/json", "accept": "application/json, text/event-stream", **headers}
    lines = [(name.encode(), value.encode()) for name, value in sent.items()]
    return AskedRequest("POST", "/mcp/github", lines, json.dumps(message).encode(), "192.0.2.1")


async def test_addresses_of_an_enforcement_point_have_names_of_their_own(tmp_path: Path) -> None:
    paths = "{/tools/github: /mcp/github, /tools: /mcp/other}"
    async with asked_world(tmp_path, f"{{paths: {paths}}}") as (running, _):
        target = decisions_from(running.app.pipeline, running.app.settings, {}).point.target
        assert target("/tools/github") == "/mcp/github" and target("/tools/github/?a=/b") == "/mcp/github/?a=/b"
        assert target("/tools/githubs") == "/mcp/other/githubs" and target("/mcp/github") == "/mcp/github"
