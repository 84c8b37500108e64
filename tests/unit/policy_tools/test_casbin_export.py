"""A Casbin program's folder, served and exported again, has the same files and decides the same in pycasbin.

python -m tests.unit.policy_tools.test_casbin_export --models 2000
"""

import argparse
import importlib.util
import itertools
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import orjson
import pytest
from click.testing import CliRunner, Result

from sidecar.cli import main as sidecar
from sidecar.policy import Engine
from sidecar.policy_tools.audit_records import question_of
from sidecar.policy_tools.policy_location import configured
from sidecar.vocabulary import Principal
from tests.unit.policy.stock.generated import ModelDrawer
from tests.unit.policy.stock.judge import Judge, rows_of
from tests.unit.policy.stock.setups import BY_ROLE, ROLES, SETUPS, Setup, conf
from tests.unit.policy.stock.working_folder import Refused, fields_of, served, values_of, write_program

Decide = Callable[..., list[tuple[Any, ...]]]
EXPIRING = conf("r.sub == p.sub", columns="sub, expires_at")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(sidecar, [str(argument) for argument in arguments])


def enforce_of(folder: Path) -> Decide:
    """The function of an exported enforce.py."""
    spec = importlib.util.spec_from_file_location("enforce", folder / "enforce.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.decide  # type: ignore[no-any-return]


def outcomes(setup: Setup, requests: int, drawn: Random, folder: Path) -> Counter[str]:
    """What became of each request: allowed, denied, or different from plain pycasbin over the program's own files."""
    ours = served(setup, folder / "program")
    exported = folder / "exported"
    assert run("policy", "export", "-c", ours.folder / "sidecar.yaml", "--casbin", exported).exit_code == 0
    assert (exported / "model.conf").read_bytes() == (folder / "program/program.conf").read_bytes()
    assert (exported / "policy.csv").read_bytes() == (folder / "program/rows.csv").read_bytes()
    judge, decide = Judge(setup.model, rows_of(setup.policy), setup.options, setup.suffix), enforce_of(exported)
    positions, found = values_of(setup), Counter[str]()
    for _ in range(requests):
        request = tuple(drawn.choice(known) for known in positions)
        expected = judge.allows([values[at] for values, at in zip(setup.values, request, strict=True)])
        subject, asked = ours.asked(request)
        theirs = all(link[4] for link in decide([subject.name], asked.object, asked.action))
        same = expected is theirs is ours.allows(request)
        found["different" if not same else "allowed" if expected else "denied"] += 1
    return found


@pytest.mark.parametrize("name", SETUPS)
def test_an_exported_setup_decides_as_it_came(name: str, tmp_path: Path) -> None:
    found = outcomes(SETUPS[name], 40, Random(name), tmp_path)
    assert found["different"] == 0
    assert found["denied"]


def drawn_setup(drawn: Random) -> Setup | None:
    """A drawn model with the values of some of its requests; None for one whose rows no file can hold."""
    model = ModelDrawer(drawn).model()
    requests = [model.request() for _ in range(6)]
    values = [_distinct(column) for column in zip(*requests, strict=True)]
    policy = "".join(f"{key}, {', '.join(row)}\n" for key, rows in model.rows.items() for row in rows)
    setup = Setup(model.conf, policy, values, model.options, model.suffix)
    written = {key: rows for key, rows in model.rows.items() if rows}
    return setup if rows_of(policy) == written and all(map(_nameable, fields_of(setup))) else None


def _distinct(values: Sequence[Any]) -> list[Any]:
    return list({repr((value, getattr(value, "attributes", None))): value for value in values}.values())


def _nameable(field: str) -> bool:
    return field in ("sub", "dom", "obj", "act")


def drawn_outcomes(models: int, drawn: Random, folder: Path) -> Counter[str]:
    found = Counter[str]()
    for at in range(models):
        setup = drawn_setup(drawn)
        if setup is None:
            found["not written"] += 1
            continue
        try:
            found += outcomes(setup, 12, drawn, folder / str(at))
        except Refused:
            found["refused"] += 1
    return found


def test_drawn_programs_come_out_as_they_went_in(tmp_path: Path) -> None:
    found = drawn_outcomes(30, Random("export"), tmp_path)
    assert found["different"] == 0
    assert found["allowed"] and found["denied"]


def test_names_and_attributes_are_asked_as_the_sidecar_asks_them(tmp_path: Path) -> None:
    matcher = "r.caller == p.sub && r.resource == p.obj && r.method == p.act && r.caller.Age > 17 && r.level == 2"
    model, rows = write_program(
        Setup(conf(matcher, request="caller, resource, method, level"), "p, a/b, data/1, read\n"), tmp_path / "program"
    )
    said = {
        "names": {"subjects": {"user:*": "*"}, "objects": {"tool:*/*/*": {"obj": "*/*2", "act": "*3"}}},
        "request": {"level": "object.level"},
    }
    (tmp_path / "map.yaml").write_bytes(orjson.dumps(said))
    made, exported = tmp_path / "made", tmp_path / "exported"
    assert run("init", "--casbin", model, rows, "--map", tmp_path / "map.yaml", made).exit_code == 0
    people = {"user:a/b": {"Age": 18}, "user:a/*": {}, "user:*": {"Age": 30}}
    attributes = {**people, "tool:data/*": {"level": 2}}
    (made / "policies/attributes.yaml").write_bytes(orjson.dumps({"version": 1, "attributes": attributes}))
    assert run("policy", "export", "-c", made / "sidecar.yaml", "--casbin", exported).exit_code == 0
    engine, decide = Engine(configured(made / "sidecar.yaml", {}).load()), enforce_of(exported)
    answers = {}
    for name, tool in itertools.product(("a/b", "a/c", "b"), ("data/1/read", "data/1/x/read", "data/2/read")):
        asked = question_of(f"tool:{tool}", "tools/call")
        decision = engine.decide((Principal(f"user:{name}"),), asked, 1.8e9)
        answers[name, tool] = decision.allowed
        assert decide([f"user:{name}"], asked.object, asked.action)[0][4] is decision.allowed, (name, tool)
    assert [key for key, allowed in answers.items() if allowed] == [("a/b", "data/1/read")]


def test_several_files_become_one_in_their_order(tmp_path: Path) -> None:
    model, _ = write_program(Setup(conf(BY_ROLE, roles=ROLES), ""), tmp_path / "program")
    rows = tmp_path / "rows"
    rows.mkdir()
    (rows / "1.csv").write_text("p, alice, data1, read")
    (rows / "2.csv").write_text("# two\np, bob, data1, read\n")
    assert run("init", "--casbin", model, rows, tmp_path / "made").exit_code == 0
    result = run("policy", "export", "-c", tmp_path / "made/sidecar.yaml", "--casbin", tmp_path / "exported")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "exported/policy.csv").read_text() == "p, alice, data1, read\n# two\np, bob, data1, read\n"


def test_a_model_of_one_kind_stands_beside_our_own(tmp_path: Path) -> None:
    model, rows = write_program(Setup(conf("r.sub == p.sub", columns="sub"), "p, alice\n"), tmp_path / "program")
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies/user_to_nhi.csv").write_text("p, user:alice, nhi:a, message/send, -, -, -, allow\n")
    (tmp_path / "sidecar.yaml").write_text(
        f"version: 1\ndata: data\npolicy:\n  models: {{agent_to_tool: {{model: {model}, policy: [{rows}]}}}}\n"
        '  names: {subjects: {"user:*": "*"}}\nupstreams:\n  a: {a2a: {url: "http://127.0.0.1:1/"}}\n'
        '  t: {mcp: {url: "http://127.0.0.1:1/mcp"}}\n'
    )
    exported = tmp_path / "exported"
    result = run("policy", "export", "-c", tmp_path / "sidecar.yaml", "--casbin", exported)
    assert result.exit_code == 0, result.output
    decide = enforce_of(exported)
    assert decide(["user:alice"], "tool:t/x", "tools/call")[0][4]
    assert decide(["user:alice"], "nhi:a", "message/send")[0][4:] == (True, [_only_id(exported)])
    assert not decide(["user:bob"], "tool:t/x", "tools/call")[0][4]
    asked = [sys.executable, exported / "enforce.py", "user:alice", "tool:t/x", "tools/call"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.startswith("allow\n")) == (0, True)


def _only_id(exported: Path) -> str:
    rows: Mapping[str, Sequence[Mapping[str, Any]]] = orjson.loads((exported / "rules.json").read_text())
    return str(rows["user_to_nhi"][0]["id"])


def test_columns_that_pycasbin_does_not_obey_are_not_exported(tmp_path: Path) -> None:
    model, rows = write_program(Setup(EXPIRING, "p, alice, 2027-01-01T00:00:00Z\n"), tmp_path / "program")
    assert run("init", "--casbin", model, rows, tmp_path / "made").exit_code == 0
    result = run("policy", "export", "-c", tmp_path / "made/sidecar.yaml", "--casbin", tmp_path / "exported")
    assert result.exit_code == 3
    assert "error[P208]: plain pycasbin would not obey expires_at" in result.output
    assert not (tmp_path / "exported").exists()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", type=int, default=1_000)
    parser.add_argument("--seed", default="1")
    given = parser.parse_args()
    with TemporaryDirectory() as folder:
        print(dict(drawn_outcomes(given.models, Random(given.seed), Path(folder))))


if __name__ == "__main__":
    main()
