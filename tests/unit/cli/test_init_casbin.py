"""`sidecar init --casbin` writes a working folder whose policy is a Casbin program's, byte for byte."""

import os
import pty
import re
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings, strategies as st

from sidecar.cli import main
from sidecar.policy_tools.casbin_program import CasbinMap, check_program, propose, read_program
from sidecar.settings.load import load_settings
from tests.flow.forks import sidecar
from tests.unit.policy.stock.published import EXAMPLES
from tests.unit.policy.stock.setups import BY_ROLE, DENY_OVERRIDE, ROLES, SETUPS, Setup, conf
from tests.unit.policy.stock.working_folder import write_program
from tests.unit.policy_tools.traffic import counted_calls

RBAC = Setup(
    conf(BY_ROLE, roles=ROLES),
    "p, admin, data2, read\np, admin, data2, write\np, alice, data1, read\np, bob, data2, write\ng, alice, admin\n",
)
RULES_IN_ROWS = SETUPS["rules in rows"]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def made(setup: Setup, folder: Path, said: object = None) -> Result:
    model, policy = write_program(setup, folder / "program")
    more: list[object] = []
    if said is not None:
        (folder / "map.yaml").write_bytes(orjson.dumps(said))
        more = ["--map", folder / "map.yaml"]
    return run("init", "--casbin", model, policy, folder / "made", *more)


def explained(folder: Path, *arguments: str) -> bool:
    result = run("policy", "explain", "-c", folder / "made" / "sidecar.yaml", *arguments, "--json")
    return bool(orjson.loads(result.stdout)["allowed"])


@pytest.mark.parametrize("name", SETUPS)
def test_every_setup_becomes_a_folder_that_check_passes(name: str, tmp_path: Path) -> None:
    setup = SETUPS[name]
    result = made(setup, tmp_path, {"use": int(setup.suffix)} if setup.suffix else None)
    assert result.exit_code == 0, result.output
    checked = run("check", "-c", tmp_path / "made" / "sidecar.yaml")
    assert checked.exit_code == 0, checked.output
    assert set(re.findall(r"\[(P\d+)\]", checked.output)) <= {"P209"}  # which says that it allows by default
    assert (tmp_path / "made/models/model.conf").read_text() == setup.model
    assert (tmp_path / "made/policies/policy.csv").read_text() == setup.policy


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != "priority, neither allow nor deny"])
def test_every_published_example_loads_under_what_is_proposed(name: str, tmp_path: Path) -> None:
    example = EXAMPLES[name]
    model, policy = write_program(Setup(example.model, example.policy), tmp_path / "program")
    program = read_program(model, [policy], int(example.suffix or 1))
    assert program is not None
    check_program(model, [policy], propose(program, CasbinMap(use=int(example.suffix or 1))).settings)


ODD = st.text(st.sampled_from("ad1 /*:{}()[]|-_.éÉ\u200b\t\"'\\#%&"), max_size=9) | st.just("d" * 600)


@given(st.lists(st.tuples(st.sampled_from(["p", "p", "g", "x"]), ODD, ODD, ODD, ODD), max_size=4), st.booleans())
@settings(max_examples=40, deadline=None)
def test_rows_of_any_text_are_taken_or_refused_with_a_place(rows: list[tuple[str, ...]], by_domain: bool) -> None:
    setup = SETUPS["roles in domains"] if by_domain else RBAC
    with TemporaryDirectory() as name:
        model, policy = write_program(setup, Path(name, "program"))
        fields = {"p": 4 + by_domain, "g": 3 + by_domain}
        policy.write_text("".join(", ".join(row[: fields.get(row[0], 5)]) + "\n" for row in rows))
        result = run("init", "--casbin", model, policy, Path(name, "made"))
        assert result.exit_code in (0, 3), result.exception
        if result.exit_code == 0:
            assert run("check", "-c", Path(name, "made/sidecar.yaml")).exit_code == 0


def test_the_caller_of_the_local_listener_may_do_what_the_policy_says(tmp_path: Path) -> None:
    result = made(RBAC, tmp_path)
    assert "nhi:planner, the caller at the local listener, is alice" in result.output
    assert "tool:data2/read, called by nhi:planner, is asked as (alice, data2, read)" in result.output
    assert explained(tmp_path, "--as", "nhi:planner", "--calls", "tool:data2/read")
    assert not explained(tmp_path, "--as", "nhi:planner", "--calls", "tool:data1/write")
    assert explained(tmp_path, "--as", "user:bob", "--calls", "tool:data2/write")
    assert not explained(tmp_path, "--as", "user:admin", "--calls", "tool:data2/write")  # a role is nobody's name


def test_paths_and_verbs_stand_in_the_names_of_tools(tmp_path: Path) -> None:
    made(SETUPS["keyMatch2"], tmp_path)
    assert explained(tmp_path, "--as", "user:alice", "--calls", "tool:example/alice_data/1/2/GET")
    assert not explained(tmp_path, "--as", "user:alice", "--calls", "tool:example/alice_data/1/2/POST")


def test_a_namespace_is_a_domain(tmp_path: Path) -> None:
    result = made(SETUPS["roles in domains"], tmp_path)
    assert "callers without a namespace are in the domain d2" in result.output
    assert explained(tmp_path, "--as", "user:d1/alice", "--calls", "tool:data1/read")
    assert not explained(tmp_path, "--as", "user:d2/alice", "--calls", "tool:data1/read")
    assert explained(tmp_path, "--as", "user:alice", "--calls", "tool:data3/read")


def test_attributes_are_named_and_none_is_invented(tmp_path: Path) -> None:
    result = made(RULES_IN_ROWS, tmp_path, {"names": {"subjects": {"user:*": "*"}}})
    assert "reads principal.Age, principal.Role" in result.output
    question = ("--as", "user:alice", "--calls", "tool:data1/read")
    assert not explained(tmp_path, *question)
    attributes = tmp_path / "made/policies/attributes.yaml"
    attributes.write_text("version: 1\nattributes:\n  user:alice: {Age: 30}\n")
    assert explained(tmp_path, *question)


def test_rows_keep_every_byte(tmp_path: Path) -> None:
    model, policy = write_program(RBAC, tmp_path / "program")
    raw = b"# staff\r\np, alice, data1, read\r\n\r\np, admin,data2,read\r\ng, alice, admin"
    policy.write_bytes(raw)
    assert run("init", "--casbin", model, policy, tmp_path / "made").exit_code == 0
    assert (tmp_path / "made/policies/policy.csv").read_bytes() == raw


def test_the_rows_of_a_folder_stay_apart_and_in_order(tmp_path: Path) -> None:
    model, _ = write_program(SETUPS["priority by order"], tmp_path / "program")
    rows = tmp_path / "rows"
    rows.mkdir()
    (rows / "10-deny.csv").write_text("p, alice, data1, read, deny\n")
    (rows / "20-allow.csv").write_text("p, alice, data1, read, allow\np, alice, data2, read, allow\n")
    assert run("init", "--casbin", model, rows, tmp_path / "made").exit_code == 0
    written = sorted(path.name for path in (tmp_path / "made/policies").iterdir())
    assert written == ["policy.10-deny.csv", "policy.20-allow.csv"]
    assert not explained(tmp_path, "--as", "user:alice", "--calls", "tool:data1/read")
    assert explained(tmp_path, "--as", "user:alice", "--calls", "tool:data2/read")


def test_the_map_is_kept_and_names_its_upstreams(tmp_path: Path) -> None:
    said = {
        "names": {"objects": {"tool:crm/get": {"obj": "data1", "act": "read"}}, "subjects": {"nhi:planner": "bob"}},
        "upstreams": {"crm": "https://crm.example/mcp"},
        "casbin_max_rows": 10,
    }
    assert made(RBAC, tmp_path, said).exit_code == 0
    settings = load_settings(tmp_path / "made/sidecar.yaml", {}, check_files=False)
    assert settings.policy.names.subjects == {"nhi:planner": "bob"}
    assert settings.policy.casbin_max_rows == 10
    assert [*settings.upstreams] == ["crm"]


@pytest.mark.parametrize(
    ("model", "rows", "expected"),
    [
        (RBAC.model, "p, alice, data1\n", "rows.csv:1:1: error[P102]"),
        (RBAC.model, "g, alice\np, alice, data1, read\n", "rows.csv:1:1: error[P102]"),
        (RBAC.model.replace("p.act", "p.action"), RBAC.policy, "error[P204]"),
        (conf("live(p.act, r.ctx)", request="sub, obj, act, ctx"), RBAC.policy, "error[P202]"),
        ("[request_definition]\nr = sub\n", RBAC.policy, "error[P20"),
        (RBAC.model, "", "error[P004]"),
    ],
)
def test_a_program_with_faults_is_refused_at_its_place(model: str, rows: str, expected: str, tmp_path: Path) -> None:
    result = made(Setup(model, rows), tmp_path)
    assert result.exit_code == 3
    assert expected in result.output
    assert not (tmp_path / "made").exists()


def test_a_map_with_an_unknown_key_is_refused(tmp_path: Path) -> None:
    result = made(RBAC, tmp_path, {"name": {}})
    assert result.exit_code == 3
    assert 'map.yaml:1:2: error[Y101]: unknown key "name"' in result.output
    assert 'did you mean "names"?' in result.output


def test_casbin_and_from_exclude_each_other(tmp_path: Path) -> None:
    model, policy = write_program(RBAC, tmp_path / "program")
    both = run("init", "--casbin", model, policy, "--from", model, tmp_path / "made")
    alone = run("init", "--map", model, tmp_path / "made")
    assert (both.exit_code, alone.exit_code) == (2, 2)
    assert "exclude each other" in both.output
    assert "--map belongs to --casbin" in alone.output


def test_what_allows_by_default_is_said(tmp_path: Path) -> None:
    result = made(Setup(conf("r.sub == p.sub", columns="sub, eft", effect=DENY_OVERRIDE), "p, bob, deny\n"), tmp_path)
    assert "allows every request that no row denies (policy.default: allow)" in result.output
    assert "default: allow  # this model allows what no row denies" in (tmp_path / "made/sidecar.yaml").read_text()


def test_answers_decide_what_the_files_do_not_say(tmp_path: Path) -> None:
    files = write_program(SETUPS["all pattern"], tmp_path / "program")
    program = read_program(files[0], [files[1]], 1)
    assert program is not None
    asked: list[str] = []

    def answer(question: str, default: str, answers: object) -> str:
        asked.append(question)
        return {0: "/user/1", 1: "keyMatch2", 2: "none"}.get(len(asked) - 1, default)

    settings = propose(program, CasbinMap(), answer).settings
    assert settings.names.subjects["nhi:planner"] == "/user/1"
    assert settings.roles["g"].model_dump(exclude_none=True) == {"match": "keyMatch2"}
    assert "add_named_matching_func" in asked[1]
    assert "add_named_domain_matching_func" in asked[2]


def test_questions_are_asked_on_a_terminal_only(tmp_path: Path) -> None:
    model, policy = write_program(RBAC, tmp_path / "program")
    command = [sidecar(), "init", "--casbin", str(model), str(policy), str(tmp_path / "made")]
    ours, theirs = pty.openpty()
    os.write(ours, b"bob\nhttps://crm.example/mcp\n")
    result = subprocess.run(command, stdin=theirs, capture_output=True, timeout=60, check=True)
    os.close(ours)
    os.close(theirs)
    assert b"Who is that in the policy (alice, bob) [alice]" in result.stderr
    settings = load_settings(tmp_path / "made/sidecar.yaml", {}, check_files=False)
    assert settings.policy.names.subjects["nhi:planner"] == "bob"
    assert {str(one.mcp.url) for one in settings.upstreams.values() if one.mcp} == {"https://crm.example/mcp"}


def test_the_work_of_a_proposal_grows_with_the_rows(tmp_path: Path) -> None:
    def work(count: int) -> int:
        rows = "".join(f"p, role{at}, data{at}, read\ng, role{at}, top\n" for at in range(count))
        model, policy = write_program(Setup(RBAC.model, rows), tmp_path / str(count))
        program = read_program(model, [policy], 1)
        assert program is not None
        return counted_calls(lambda: propose(program, CasbinMap()))[1]

    assert work(2_000) < 12 * work(200)
