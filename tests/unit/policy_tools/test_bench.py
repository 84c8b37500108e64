"""Is the ladder a fair one?"""

import json
import time
from itertools import islice
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench import rivals
from sidecar.cli import main
from sidecar.policy import Engine, load_policy
from sidecar.policy_tools import bench as ladder
from sidecar.settings.shipped_files import shipped


@pytest.mark.parametrize("rows", [10, 2_000])
def test_a_drawn_policy_has_what_it_says_and_is_the_same_every_time(rows: int) -> None:
    policy = ladder.drawn(rows, wild=0.2)
    assert policy == ladder.drawn(rows, wild=0.2)
    assert len(set(policy.rows)) == rows
    if rows > 1_000:
        assert 0.15 < sum("*" in row.subject + row.object for row in policy.rows) / rows < 0.25
        assert 0.03 < sum(row.effect == "deny" for row in policy.rows) / rows < 0.08
        assert {row.kind for row in policy.rows} == {"agent_to_tool", "user_to_nhi", "nhi_to_nhi"}


def test_it_loads_and_half_of_what_is_asked_is_allowed(tmp_path: Path) -> None:
    policy = ladder.drawn(2_000)
    ladder.write(policy, tmp_path)
    source = load_policy(shipped("models"), tmp_path)
    assert len([*source.rules]) == 2_000
    engine = Engine(source)
    asked = list(islice(ladder.questions_about(source), 1_000))
    allowed = sum(engine.decide(one.chain, one.question, time.time()).allowed for one in asked)
    assert 400 < allowed < 950


@pytest.mark.parametrize("name", rivals.NAMES)
def test_a_rival_agrees_with_us_as_far_as_it_can(tmp_path: Path, name: str) -> None:
    if not rivals.is_installed(name):
        pytest.skip(f"{name} is for the bench, and not installed")
    policy = ladder.drawn(60, wild=0.2)
    ladder.write(policy, tmp_path)
    source = load_policy(shipped("models"), tmp_path)
    engine, asked = Engine(source), list(islice(ladder.questions_about(source), 60))
    allows = rivals.rival(name, policy, asked)
    same = sum(allows(one) is engine.decide(one.chain, one.question, time.time()).allowed for one in asked)
    assert same == len(asked) if name != "fast" else same > 20  # roles and wildcards are beyond FastEnforcer


def test_questions_about_a_policy_are_about_its_own_rows(tmp_path: Path) -> None:
    (tmp_path / "agent_to_tool.csv").write_text("p, role:x, set:m, use, -, -, -, allow\n")
    (tmp_path / "roles.csv").write_text("g, nhi:a, role:x\ng2, tool:s/t, set:m\n")
    only = ladder.DrawnQuestion("agent_to_tool", "nhi:a", "tool:s/t", "tools/call")
    assert set(islice(ladder.questions_about(load_policy(shipped("models"), tmp_path)), 9)) == {only}


def test_the_command_prints_the_ladder_as_a_list(tmp_path: Path) -> None:
    options = ["-c", str(tmp_path / "none.yaml"), "--rows", "50", "--questions", "100", "--json"]
    result = CliRunner().invoke(main, ["policy", "bench", *options])
    assert result.exit_code == 0
    (rung,) = json.loads(result.stdout)
    assert rung["rows"] == 50
    assert all(rung[name] > 0 for name in ("p50_us", "p99_us", "load_s", "rss_mb"))


def test_a_policy_that_was_named_must_be_there(tmp_path: Path) -> None:
    options = ["-c", str(tmp_path / "none.yaml"), "--rows", "10", "--questions", "100"]
    result = CliRunner().invoke(main, ["policy", "bench", *options])
    assert (result.exit_code, "none.yaml" in result.stderr) == (3, True)
