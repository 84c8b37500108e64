"""The tools that run, measure, replay and write policies, on kinds that Casbin models decide."""

from itertools import islice
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sidecar.cli import main
from sidecar.policy import Engine
from sidecar.policy_tools.bench import questions_about
from sidecar.policy_tools.casbin_calls import RowCalls
from sidecar.policy_tools.policy_location import in_folder
from sidecar.policy_tools.replay import Candidate, replay
from sidecar.vocabulary import PermissionKind, Principal
from tests.unit.policy.stock.setups import BY_ROLE, ROLES, SETUPS, Setup, conf
from tests.unit.policy.stock.working_folder import write_program
from tests.unit.policy_tools.traffic import Sent, engine_of, record

RBAC = Setup(
    conf(BY_ROLE, roles=ROLES),
    "p, alice, data1, read\np, admin, data2, read\np, admin, data2, write\ng, alice, admin\np, bob, data3, read\n",
)
TESTS = """\
suite: data
tests:
  - {name: alice reads, as: nhi:planner, calls: tool:data1/read, action: tools/call, expect: allow}
  - {name: nobody drops, as: nhi:planner, calls: tool:data1/drop, action: tools/call, expect: deny}
  - {name: what there is to see, as: nhi:planner, lists: data2, expect: [read, write]}
"""
OWNED = Setup(conf("r.obj == p.obj && r.sub == r.obj.Owner", columns="obj"), "p, data1\n")
READ_ALICE = Sent(("nhi:planner",), "tool:data1/read")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def made(setup: Setup, folder: Path, *more: object) -> Path:
    model, policy = write_program(setup, folder / "program")
    result = run("init", "--casbin", model, policy, folder / "made", *more)
    assert result.exit_code == 0, result.output
    return folder / "made"


def test_policy_tests_decide_and_cover_each_row_once(tmp_path: Path) -> None:
    folder = made(RBAC, tmp_path)
    (folder / "policies/tests").mkdir()
    (folder / "policies/tests/data.yaml").write_text(TESTS)
    result = run("policy", "test", "-c", folder / "sidecar.yaml", "--coverage")
    assert result.exit_code == 0, result.output
    assert "coverage: 3 of 4 rules, 75.0 %" in result.output


@pytest.mark.parametrize("name", [name for name, setup in SETUPS.items() if setup.policy and not setup.suffix])
def test_calls_about_rows_become_what_the_rows_say(name: str, tmp_path: Path) -> None:
    source = in_folder(made(SETUPS[name], tmp_path)).load()
    kind = PermissionKind.AGENT_TO_TOOL
    engine, calls = Engine(source), RowCalls(source.stock[kind], source.casbin.names)
    policy = engine.casbin(kind)
    assert policy is not None
    found = [(row, calls.of(at)) for at, row in enumerate(source.stock[kind].source.rows)]
    for row, call in found:
        if call is not None:
            texts = policy.reader.texts(engine.subject_of(Principal(call.subject)), call.object, call.action)
            if texts is not None:  # None for a user with the name of a role
                assert texts.obj in (*row, "x")
                assert texts.act in (*row, "x")
    assert [call for _, call in found if call] or name in ("relations",)


def test_half_of_the_measured_questions_match_a_row(tmp_path: Path) -> None:
    source = in_folder(made(RBAC, tmp_path)).load()
    engine, asked = Engine(source), list(islice(questions_about(source), 300))
    allowed = [engine.decide(one.chain, one.question, 0.0).allowed for one in asked]
    assert {one.kind for one in asked} == {"agent_to_tool"}
    assert 100 < sum(allowed) < 300


def test_bench_counts_the_rows_of_a_shared_table_once(tmp_path: Path) -> None:
    result = run("policy", "bench", "-c", made(RBAC, tmp_path) / "sidecar.yaml", "--rows", "10", "--questions", "100")
    assert result.output.splitlines()[1].split()[:2] == ["sidecar", "4"]


def test_recorded_calls_are_replayed_through_other_rows(tmp_path: Path) -> None:
    old, new = made(RBAC, tmp_path / "old"), made(RBAC, tmp_path / "new")
    rows = new / "policies/policy.csv"
    rows.write_text(rows.read_text().replace("p, alice, data1, read", "p, alice, data1, drop"))
    calls = [READ_ALICE, Sent(("nhi:planner",), "tool:data1/drop"), Sent(("nhi:planner",), "tool:data2/read")]
    record(tmp_path / "audit.jsonl", engine_of(old), calls)
    report = replay(tmp_path / "audit.jsonl", Candidate(in_folder(new).load()))
    assert (report.narrower, report.wider, report.same) == (1, 1, 1)


def test_what_a_matcher_reads_of_arguments_is_undecidable(tmp_path: Path) -> None:
    (tmp_path / "map.yaml").write_text('request: {obj.Owner: args.owner}\nnames: {subjects: {"user:*": "*"}}\n')
    folder = made(OWNED, tmp_path, "--map", tmp_path / "map.yaml")
    calls = [Sent(("user:a",), "tool:data1/read", args={"owner": "a"}), Sent(("nhi:b",), "tool:data1/read")]
    decisions = record(tmp_path / "audit.jsonl", engine_of(folder), calls)
    assert [one.allowed for one in decisions] == [True, False]
    report = replay(tmp_path / "audit.jsonl", Candidate(in_folder(folder).load()))
    assert [*report.undecidable] == ["a Casbin model reads what the caller wrote, which no record holds"]
    assert report.same == 1  # nhi:b has no name in this policy


def test_nothing_is_suggested_where_casbin_decides(tmp_path: Path) -> None:
    folder = made(RBAC, tmp_path)
    record(tmp_path / "audit.jsonl", engine_of(folder), [READ_ALICE, READ_ALICE])
    result = run("policy", "suggest", tmp_path / "audit.jsonl", "-c", folder / "sidecar.yaml")
    assert result.exit_code == 1
    assert "nothing is suggested for 2 uses that " in result.output
    assert "model.conf decides (agent_to_tool): rules are written for the sidecar's own models only" in result.output


def test_rows_of_a_casbin_model_are_not_converted(tmp_path: Path) -> None:
    folder = made(RBAC, tmp_path)
    for source in (folder, folder / "policies/policy.csv"):
        result = run("policy", "convert", source, "--to", "yaml", "-o", tmp_path / "out")
        assert result.exit_code == 2
        assert "policies/policy.csv has rows of a Casbin model, which have no YAML form" in result.output
    assert not (tmp_path / "out").exists()


def explained(folder: Path, calls: list[Sent], log: Path) -> str:
    """How the last of recorded calls is explained from its record."""
    record(log, engine_of(folder), calls)
    lines = [line for line in log.read_text().splitlines() if '"event":"decision"' in line]
    single = log.with_suffix(".one")
    single.write_text(lines[-1])
    return run("policy", "explain", "-c", folder / "sidecar.yaml", "--record", single).output


def test_a_record_is_explained_by_the_rows_of_today(tmp_path: Path) -> None:
    told = explained(made(RBAC, tmp_path), [Sent(("nhi:planner",), "tool:data2/write")], tmp_path / "audit.jsonl")
    assert told.startswith("ALLOW\n")
    assert 'is asked: sub "alice", obj "data2", act "write"' in told
    assert "    role: alice → admin" in told


def test_a_record_without_what_the_matcher_read_is_undecidable(tmp_path: Path) -> None:
    (tmp_path / "map.yaml").write_text('request: {obj.Owner: args.owner}\nnames: {subjects: {"user:*": "*"}}\n')
    folder = made(OWNED, tmp_path, "--map", tmp_path / "map.yaml")
    told = explained(folder, [Sent(("user:a",), "tool:data1/read", args={"owner": "a"})], tmp_path / "audit.jsonl")
    assert told.startswith("UNDECIDABLE  a Casbin model reads what the caller wrote, which no record holds\n")
    assert "    obj.Owner" not in told
