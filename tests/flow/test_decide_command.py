"""`sidecar decide` asks a running sidecar, by its control socket or by an address and a key."""

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sidecar.cli import main
from tests.flow.enforcement import NAME, asked_world, decisions
from tests.flow.test_client import ALICE, PLANNER, READ, SEARCH
from tests.flow.world import World, world

GOOD, BAD = '{"repo": "acme/site"}', '{"repo": "evil/site"}'


async def decide(running: World, *words: str) -> Result:
    command = ["decide", *words, "-c", str(running.folder / "sidecar.yaml")]
    return await asyncio.to_thread(CliRunner().invoke, main, command)


async def test_it_answers_in_words_and_by_its_exit_code(tmp_path: Path) -> None:
    async with asked_world(tmp_path, files=ALICE) as (running, _):
        allowed = await decide(running, "--as", "user:alice", "--via", PLANNER, "--calls", SEARCH, "--args", GOOD)
        denied = await decide(running, "--as", PLANNER, "--calls", SEARCH, "--args", BAD)
        ids = [record["decision_id"] for record in decisions(running)]
        assert allowed.output == f"ALLOW\n  user:alice → {PLANNER} → {SEARCH}\n  decision {ids[0]}\n"
        assert denied.output == f"DENY  condition-false\n  {PLANNER} → {SEARCH}\n  decision {ids[1]}\n"
        assert (allowed.exit_code, denied.exit_code) == (0, 1)
        assert {record["enforcement_point"] for record in decisions(running)} == {"local"}


async def test_it_charges_where_it_is_told_to(tmp_path: Path) -> None:
    async with asked_world(tmp_path) as (running, _):
        asked = ("--as", PLANNER, "--calls", READ, "--args", '{"path": "a"}')
        told = [(await decide(running, *asked, *more)).output for more in ((), ("--charge",), ("--charge",))]
        assert "left" not in told[0]
        assert [line for text in told[1:] for line in text.splitlines() if "left" in line] == [
            "  max_calls_per_hour: 2 of 3 left",
            "  max_calls_per_hour: 1 of 3 left",
        ]


async def test_it_asks_another_sidecar_with_a_key_and_prints_json(tmp_path: Path) -> None:
    async with asked_world(tmp_path) as (running, _):
        there = ("--url", running.admin_url, "--key-path", str(tmp_path / "pdp.secret"), "--json")
        found = await decide(running, "--as", PLANNER, "--calls", SEARCH, "--args", BAD, *there)
        (record,) = decisions(running)
        assert record["enforcement_point"] == NAME and found.exit_code == 1
        told = json.loads(found.output)
        assert told == {
            "allowed": False, "reason": "condition-false", "decision_id": record["decision_id"], "limits": [],
            "retry_after_s": None,
        }  # fmt: skip
        keyless = await decide(running, "--as", PLANNER, "--calls", SEARCH, "--url", running.admin_url)
        assert keyless.exit_code == 1 and "HTTP 401" in keyless.output and "--key-path names" in keyless.output


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--as", "alice", "--calls", SEARCH), "'alice' is not a principal"),
        (("--as", "user:alice", "--via", "planner", "--calls", SEARCH), "'planner' is not a principal"),
        (("--as", "user:alice", "--calls", "github/search"), "'github/search' is not an object"),
        (("--as", "user:alice", "--calls", SEARCH, "--args", "[]"), "this is not a JSON object"),
    ],
)
def test_wrong_words_are_wrong_usage(words: tuple[str, ...], told: str) -> None:
    found = CliRunner().invoke(main, ["decide", *words])
    assert found.exit_code == 2 and told in found.output


async def test_without_a_decision_the_answer_is_no_and_says_why(tmp_path: Path) -> None:
    asked = ("--as", PLANNER, "--calls", SEARCH)
    async with world(tmp_path) as running:
        closed = await decide(running, *asked)
        assert closed.exit_code == 1 and "HTTP 404" in closed.output and "write pdp: {}" in closed.output
    gone = await decide(running, *asked)
    assert gone.exit_code == 1 and "is it running?" in gone.output
