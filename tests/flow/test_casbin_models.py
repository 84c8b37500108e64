"""A Casbin model and its rows, unmodified, before a real server: calls, lists, sessions, records and reloads."""

from pathlib import Path

import pytest

from sidecar.errors import Reason
from tests.flow.talk import ERAS, Era, Talk, reason_of
from tests.flow.test_hot_reload import taken
from tests.flow.world import until, world
from tests.unit.policy.stock.setups import BY_ROLE, ROLES, conf

ROWS = "p, readers, github, search_code\np, alice, github, get_file\ng, alice, readers\n"
NAMES = 'policy: {names: {subjects: {"nhi:planner": alice}, objects: {"tool:*/*": {obj: "*", act: "*2"}}}}\n'


def files(model: str = conf(BY_ROLE, roles=ROLES), rows: str = ROWS, attributes: str = "") -> dict[str, str]:
    found = {"models/agent_to_tool.conf": model, "policies/agent_to_tool.csv": rows}
    return {**found, "policies/attributes.yaml": attributes} if attributes else found


@pytest.mark.parametrize("era", ERAS)
async def test_calls_and_lists_are_decided_by_the_rows(tmp_path: Path, era: Era) -> None:
    async with world(tmp_path, files=files(), settings=NAMES) as running:
        talk = Talk(running, era)
        assert reason_of(await talk.call("search_code", {"repo": "a"})) == ""
        assert reason_of(await talk.call("delete_repo")) == Reason.NO_MATCHING_RULE
        _, body, _ = await talk.ask("tools/list")
        assert [tool["name"] for tool in body["result"]["tools"]] == ["search_code", "get_file"]
        ended = [end for end in running.ends() if end["action"] == "tools/call"]
        assert [end["reason"] for end in ended] == [None, "no-matching-rule"]
        assert ended[0]["agent_role"] == "readers" and len(ended[0]["chain"]) == 1


async def test_a_caller_without_a_row_opens_no_session(tmp_path: Path) -> None:
    async with world(tmp_path, files=files(rows="p, bob, github, get_file\n"), settings=NAMES) as running:
        assert reason_of(await Talk(running, "session").open()) == Reason.NO_MATCHING_RULE


async def test_a_changed_row_is_in_force_and_a_wrong_one_is_not(tmp_path: Path) -> None:
    async with world(tmp_path, files=files(), settings=NAMES) as running:
        talk, rows = Talk(running, "stateless"), tmp_path / "policies" / "agent_to_tool.csv"
        rows.write_text(ROWS.replace("search_code", "delete_repo"))
        await taken(running)
        assert reason_of(await talk.call("search_code", {"repo": "a"})) == Reason.NO_MATCHING_RULE
        assert reason_of(await talk.call("delete_repo")) == ""
        rows.write_text(ROWS.replace("alice, github", "alice"))
        await until(lambda: bool(running.app.reloader.trouble))
        assert reason_of(await talk.call("delete_repo")) == ""
        assert reason_of(await talk.call("search_code", {"repo": "a"})) == Reason.NO_MATCHING_RULE
        assert reason_of(await talk.call("delete_repo")) == ""


ABAC = conf("r.sub.Level >= 3 && r.obj.Owner == r.sub.name && r.act == p.act", columns="act")


async def test_attributes_and_arguments_decide_each_call(tmp_path: Path) -> None:
    attributes = "version: 1\nattributes: {nhi:planner: {Level: 4}}\n"
    settings = NAMES.replace("policy: {", 'policy: {request: {"obj.Owner": args.repo}, ')
    async with world(tmp_path, files=files(ABAC, "p, search_code\n", attributes), settings=settings) as running:
        talk = Talk(running, "stateless")
        assert reason_of(await talk.call("search_code", {"repo": "nhi:planner"})) == ""
        assert reason_of(await talk.call("search_code", {"repo": "other"})) == Reason.NO_MATCHING_RULE
        assert reason_of(await talk.call("search_code", {"repo": ["nhi:planner"]})) == Reason.NO_MATCHING_RULE
        _, body, _ = await talk.ask("tools/list")
        assert [tool["name"] for tool in body["result"]["tools"]] == ["search_code"]
        (allowed, *_) = running.ends()
        assert "nhi:planner" not in str(allowed.get("conditions", ""))  # arguments are on record as digests
