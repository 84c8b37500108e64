"""Does plain pycasbin, with what we export, answer as the engine does?"""

import itertools
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from casbin.persist.adapter import _extract_tokens
from click.testing import CliRunner, Result

from sidecar.cli import main
from sidecar.errors import PolicyError
from sidecar.policy import Engine, PolicySource, load_policy
from sidecar.policy_tools.export import encoded, export
from sidecar.settings.shipped_files import shipped
from sidecar.vocabulary import Principal, Question
from tests.tables import tables
from tests.unit.policy.world import write
from tests.unit.policy_tools.test_casbin_export import enforce_of

TABLES = tables("policy_tools/export")

MODELS = shipped("models")
NOW = 1_800_000_000.0  # 2027-01-15T08:00:00Z

GOLDEN = Path(__file__).parents[2] / "golden" / "export"
POLICY = {path.name: path.read_text() for path in GOLDEN.glob("*.csv")}
QUESTIONS = yaml.safe_load((GOLDEN / "questions.yaml").read_text())
CHAINS, ASKED = ([tuple(words.split(" ")) for words in QUESTIONS[name]] for name in ("chains", "asked"))
ARGUMENTS: tuple[Mapping[str, Any], ...] = (*TABLES["arguments"], {"repo": "acme/\0x", "l": [1], "other": 2**70})
METAS: tuple[Mapping[str, Any], ...] = ({}, {"x": 1}, {}, {"x": 1}, {})
LINK = "  agent_to_tool: "
DENIED = (
    f"deny\n{LINK}nhi:a tools/call tool:s/t_delete: allow (any-t)\n"
    "  guardrail: nhi:a tools/call tool:s/t_delete: deny (nobody-deletes)\n"
)
# Reads the questions from standard input, as JSON, and answers them all: one process, the real one.
ASK_ALL = (
    "import json, sys; sys.path.insert(0, sys.argv[1]); import enforce\n"
    "json.dump([enforce.decide(**question) for question in json.load(sys.stdin)], sys.stdout)\n"
)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> PolicySource:
    return load_policy(MODELS, write(tmp_path_factory.mktemp("policy"), POLICY))


def written(source: PolicySource, folder: Path) -> Path:
    for name, raw in export(source, MODELS).files.items():
        (folder / name).write_bytes(raw)
    return folder


@pytest.fixture(scope="module")
def folder(source: PolicySource, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(source, tmp_path_factory.mktemp("exported"))


def python(*arguments: object, told: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, input=told, capture_output=True, text=True, timeout=60, check=False)


def question(obj: str, action: str, arguments: Mapping[str, Any], meta: Mapping[str, Any]) -> Question:
    word, _, rest = obj.partition(":")
    server, _, name = ("", "", "") if word == "nhi" else rest.partition("/")
    return Question(obj, action, server, name, arguments, meta)


def test_every_answer_is_the_engines(source: PolicySource, folder: Path) -> None:
    engine = Engine(source)
    asked = [
        {"chain": chain, "obj": obj, "act": act, "args": arguments, "meta": meta, "now_s": NOW}
        for chain, (obj, act), (arguments, meta) in itertools.product(CHAINS, ASKED, zip(ARGUMENTS, METAS, strict=True))
    ]
    done = python("-W", "error", "-c", ASK_ALL, folder, told=json.dumps(asked))
    assert done.stderr == ""
    seen: set[tuple[str, bool]] = set()
    waiting = 0
    for one, links in zip(asked, json.loads(done.stdout), strict=True):
        chain = tuple(Principal(name) for name in one["chain"])
        decision = engine.decide(chain, question(one["obj"], one["act"], one["args"], one["meta"]), NOW)
        assert all(link[4] for link in links) is (decision.answer == "allow"), (one, links, decision)
        waiting += decision.answer == "approval"
        ours = {(link.kind.value, link.subject, link.object): link for link in decision.links}
        for kind, subject, obj, _, allowed, rules in links:
            link = ours.get((kind, subject, obj))
            if link is not None and not (link.kind == "guardrail" and allowed):
                waits = any(rule.approval for rule in link.rules)
                assert (link.allowed and not waits) is allowed, (one, link)
                # A condition that fails denies what waits for an approval.
                assert {*rules} - {"asks-sometimes"} <= {rule.id for rule in link.rules}, (one, link, rules)
                assert bool(rules) is bool(link.rules) or rules == ["asks-sometimes"]
            seen.add((kind, allowed))
    assert waiting
    kinds = ("agent_to_tool", "user_to_nhi", "nhi_to_nhi", "guardrail")
    assert seen == set(itertools.product(kinds, (True, False)))


def test_an_mcp_server_as_a_whole_is_asked_by_saying_so(source: PolicySource, folder: Path) -> None:
    asked = ["nhi:a", "nhi:s", "roots/list", "--now", "2027-01-15T08:00:00Z"]
    assert python(folder / "enforce.py", *asked).returncode == 1
    assert python(folder / "enforce.py", *asked, "--kind", "agent_to_tool").stdout.startswith("allow\n")
    assert Engine(source).decide((Principal("nhi:a"),), Question("nhi:s", "roots/list", "s"), NOW).allowed


@pytest.mark.parametrize(("asked", "code", "said"), TABLES["exported"])
def test_the_command_says_the_answer_and_its_rules(folder: Path, asked: list[str], code: int, said: str) -> None:
    done = python(folder / "enforce.py", *asked)
    assert done.returncode == code, done.stderr
    assert done.stdout.startswith(said)


def test_without_cel_a_condition_allows_nothing_and_denies_always(folder: Path) -> None:
    run = (
        "import runpy, sys; sys.modules['cel_expr_python'] = None; del sys.argv[0]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    script = folder / "enforce.py"
    allowed = python("-c", run, script, "nhi:b", "tool:s/x", "tools/call", '{"repo": "acme/x", "l": [1]}')
    denied = python("-c", run, script, "nhi:a", "tool:s/t9", "tools/call", '{"force": false}')
    free = python("-c", run, script, "nhi:a", "tool:s/t1", "tools/call")
    assert (allowed.returncode, "cel-expr-python is missing" in allowed.stderr) == (1, True)
    assert (denied.returncode, "denied-by-condition" in denied.stdout) == (1, True)
    assert (free.returncode, free.stderr) == (0, "")


@pytest.mark.parametrize("name", ["a,b", "a(b", "a)b", "[", "]", "%2C", "%", 'a"b', "plain/name*", "%25"])
def test_casbins_own_adapter_leaves_every_name_alone(name: str) -> None:
    line = f"p, {encoded(name)}, x"
    assert _extract_tokens(line) == ["p", encoded(name), "x"]


def test_two_names_never_become_one() -> None:
    names = ["a,b", "a%2Cb", "a%252Cb", "a(b", "a%28b"]
    assert len({encoded(name) for name in names}) == len(names)


def test_rules_with_an_approval_are_named_and_need_a_model_that_denies(source: PolicySource, tmp_path: Path) -> None:
    assert export(source, MODELS).denied == ("asks", "asks-sometimes")
    texts = {path.name: path.read_text() for path in MODELS.glob("*.conf")}
    deny = " && !some(where (p.eft == deny))"
    models = write(tmp_path / "models", {name: text.replace(deny, "") for name, text in texts.items()})
    rows = "#: id=asks approval=role:oncall\np, nhi:a, tool:s/t, use, -, -, -, allow\n"
    with pytest.raises(PolicyError) as refused:
        export(load_policy(models, write(tmp_path / "rows", {"agent_to_tool.csv": rows})), models)
    assert [(fault.code, fault.message) for fault in refused.value.faults] == [
        ("P208", "what waits for the approval of asks cannot be denied")
    ]


def test_shadow_rules_are_left_out_and_named(source: PolicySource) -> None:
    done = export(source, MODELS)
    assert done.shadows == ("in-the-shadow",)
    assert done.rules == len([*source.rules]) - 1
    assert b"nhi:c" not in done.files["agent_to_tool.csv"]


def test_a_kind_without_rows_denies(tmp_path: Path) -> None:
    policies = write(tmp_path / "policies", {"user_to_nhi.csv": "p, user:a, nhi:b, use, -, -, -, allow\n"})
    written(load_policy(MODELS, policies), tmp_path)
    assert python(tmp_path / "enforce.py", "nhi:a", "tool:s/t", "tools/call").returncode == 1


def exported(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["policy", "export", *map(str, arguments)])


def test_the_command_writes_the_folder_once(tmp_path: Path) -> None:
    write(tmp_path / "policies", POLICY)
    config, out = tmp_path / "sidecar.yaml", tmp_path / "out"
    done = exported("--casbin", out, "-c", config)
    assert done.exit_code == 0, done.output
    assert "21 rules" in done.stdout and "in-the-shadow" in done.stdout
    kinds = ("agent_to_tool", "user_to_nhi", "nhi_to_nhi", "guardrail")
    files = {f"{kind}.{end}" for kind in kinds for end in ("conf", "csv")}
    assert {path.name for path in out.iterdir()} == files | {"conditions.json", "rules.json", "enforce.py"}
    assert exported("--casbin", out, "-c", config).exit_code == 2
    again = exported("--casbin", out, "-c", config, "--force", "--json")
    assert json.loads(again.stdout)["rules"] == 21


def with_models(folder: Path, old: str, new: str) -> None:
    models = {path.name: path.read_text() for path in MODELS.iterdir()}
    assert all(old in text for text in models.values())
    write(folder / "models", {name: text.replace(old, new) for name, text in models.items()})


def test_what_could_not_say_the_same_is_not_exported(tmp_path: Path) -> None:
    write(tmp_path, {"policies/agent_to_tool.csv": "p, nhi:a, tool:s/t, use, -, -, -, allow\n"})
    with_models(tmp_path, "r = sub, obj, act, ctx", "r = sub, dom, obj, act, ctx")
    done = exported("--casbin", tmp_path / "out", "-c", tmp_path / "sidecar.yaml")
    assert done.exit_code == 3
    assert "agent_to_tool.conf: error[P208]: this model cannot be exported" in done.stderr
    assert not (tmp_path / "out").exists()


def test_under_priority_rows_keep_their_order(tmp_path: Path) -> None:
    rows = [
        "p, nhi:a, tool:s/t*, use, -, -, -, allow\n",
        "p, *, tool:s/t2, use, -, -, -, deny\n",
        "p, nhi:b, tool:s/*, use, 2026-01-01T00:00:00Z, -, -, deny\n",
        "p, nhi:b, tool:s/*, use, -, -, -, allow\n",
    ]
    with_models(tmp_path, "some(where (p.eft == allow)) && !some(where (p.eft == deny))", "priority(p.eft) || deny")
    asked: list[dict[str, Any]] = [
        {"chain": [name], "obj": f"tool:s/{tool}", "act": "tools/call", "now_s": NOW}
        for name, tool in itertools.product(("nhi:a", "nhi:b", "nhi:c"), ("t1", "t2", "x"))
    ]
    answers = set()
    for number, order in enumerate(itertools.permutations(rows)):
        write(tmp_path, {"policies/agent_to_tool.csv": "".join(order)})
        source, out = load_policy(tmp_path / "models", tmp_path / "policies"), tmp_path / str(number)
        out.mkdir()
        for name, raw in export(source, tmp_path / "models").files.items():
            (out / name).write_bytes(raw)
        engine, decide = Engine(source), enforce_of(out)
        ours = []
        for one in asked:
            decision = engine.decide((Principal(one["chain"][0]),), question(one["obj"], one["act"], {}, {}), NOW)
            assert decide(**one)[0][4] is decision.allowed, (order, one)
            ours.append(decision.allowed)
        answers.add(tuple(ours))
    assert len(answers) > 3


def test_a_model_in_another_order_is_asked_in_its_order(tmp_path: Path) -> None:
    columns = "sub, obj, act, expires_at, max_calls_per_hour, when"
    write(tmp_path, {"policies/agent_to_tool.csv": "p, allow, nhi:a, tool:s/t, use, -, -, -\n"})
    for path in MODELS.iterdir():
        text = path.read_text().replace("r = sub, obj, act, ctx", "r = ctx, act, obj, sub")
        write(tmp_path / "models", {path.name: text.replace(f"p = {columns}, eft", f"p = eft, {columns}")})
    done = exported("--casbin", tmp_path / "out", "-c", tmp_path / "sidecar.yaml")
    assert done.exit_code == 0, done.output
    for who, code in (("nhi:a", 0), ("nhi:b", 1)):
        assert python(tmp_path / "out" / "enforce.py", who, "tool:s/t", "tools/call").returncode == code


def test_a_policy_with_faults_is_not_exported(tmp_path: Path) -> None:
    write(tmp_path, {"policies/agent_to_tool.csv": "p, nhi:a, tool:s/t, used, -, -, -, allow\n"})
    done = exported("--casbin", tmp_path / "out", "-c", tmp_path / "sidecar.yaml")
    assert (done.exit_code, "P104" in done.stderr) == (3, True)
    assert not (tmp_path / "out").exists()
