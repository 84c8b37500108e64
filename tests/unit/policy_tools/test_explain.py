"""Why was it allowed or denied? The whole text as it stands on the screen, and what programs read.

`UPDATE_GOLDEN=1 pytest tests/unit/policy_tools/test_explain.py` writes the texts anew; the diff is then to be read.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, strategies as st

from sidecar.cli import main
from sidecar.policy.roles import RoleLinks
from sidecar.policy_tools.nearest_rules import Sought, nearest
from sidecar.vocabulary import PermissionKind, RuleRef
from tests.tables import tables
from tests.unit.policy_tools.traffic import KEY, NOW_S, Sent, counted_calls, engine_of, record, write_policy

TABLES = tables("policy_tools/explain")

GOLDEN = Path(__file__).parents[2] / "golden" / "explain"
MODELS = Path(__file__).parents[3] / "models"
NOW = ("--now", "2027-01-15T08:00:00Z")
SEARCH = "tool:github/search_code"


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The golden folder holds a policy and a record of another one."""
    monkeypatch.chdir(GOLDEN)
    yield


def run(*arguments: Any, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(main, ["policy", "explain", *map(str, arguments)], input=stdin)


def asked(*arguments: Any) -> dict[str, Any]:
    result = run(*NOW, "--json", *arguments)
    assert result.exit_code in (0, 1), result.output
    return dict(orjson.loads(result.stdout))


TEXTS = TABLES["texts"]


@pytest.mark.parametrize(("name", "arguments", "code"), TEXTS, ids=[each[0] for each in TEXTS])
def test_people_read_what_was_agreed(name: str, arguments: tuple[str, ...], code: int) -> None:
    result = run(*NOW, *arguments)
    told = re.sub(r"revision [0-9a-f]{16}", "revision <revision>", result.output)
    expected = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        expected.write_text(told, encoding="utf-8")
    assert told == expected.read_text(encoding="utf-8")
    assert result.exit_code == code


def test_limits_are_told_with_whose_counter_it_is() -> None:
    told = asked("--as", "user:bob,nhi:researcher", "--calls", SEARCH, "--args", '{"repo": "acme/site"}')["limits"]
    assert [(each["name"], each["most"], each["counted_for"]) for each in told] == [
        ("rule:researcher-reads", 120, "nhi:researcher"),
        ("tools:tool:github/*:concurrency", 5, "all together"),
        ("principals:user:*:hour", 300, "user:bob"),
        ("principals:role:oncall:day", 50, "user:bob"),
        ("budgets:nhi:*:usd:month", 60, "nhi:researcher"),
    ]
    assert (told[-1]["unit"], told[-1]["takes"], told[0]["unit"], told[0]["takes"]) == ("usd", 0.5, None, 1)


def test_where_several_grants_match_it_is_told_that_each_limit_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "policies").mkdir()
    rows = (("narrow", "tool:g/read", "10"), ("wide", "tool:g/*", "100"), ("free", "tool:g/r*", "-"))
    text = "".join(f"#: id={name}\np, nhi:a, {obj}, use, -, {limit}, -, allow\n" for name, obj, limit in rows)
    (tmp_path / "policies" / "agent_to_tool.csv").write_text(text)
    monkeypatch.chdir(tmp_path)
    both, one = ("--as", "nhi:a", "--calls", "tool:g/read"), ("--as", "nhi:a", "--calls", "tool:g/write")
    told = run(*both).output
    assert "  note: the limits of narrow and wide all count this call; the first that is spent refuses it\n" in told
    assert "  note: free has no limit, and lifts none of these\n" in told
    assert "note:" not in run(*one).output
    assert [asked(*which)["counted_by_rules"] for which in (both, one)] == [["narrow", "wide"], ["wide"]]


def test_shadow_rules_are_told_and_change_nothing() -> None:
    told = asked("--as", "nhi:planned", "--calls", SEARCH)
    assert not told["allowed"] and [each["id"] for each in told["would_allow"]] == ["planned"]
    assert [misfit["part"] for misfit in told["links"][-1]["nearest"][0]["misfits"]] == ["shadow"]


def test_a_link_without_a_rule_is_told_the_row_that_would_allow_it() -> None:
    row = "p, user:carol, nhi:researcher, push/set, -, -, -, allow"
    told = asked("--as", "user:carol", "--calls", "nhi:researcher", "--action", "push/set")["links"]
    assert told[0]["missing"] == {"file": "user_to_nhi.csv", "text": row}
    for why in (("nhi:temp", SEARCH), ("nhi:stranger", "nhi:github", "--action", "tools/list")):
        assert asked("--as", why[0], "--calls", *why[1:])["links"][-1]["missing"] is None


def test_in_a_large_policy_the_nearest_rules_have_the_subject_or_the_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.policy_tools.explain.MAX_COMPARED", 10)
    rows = [("nhi:planner", "tool:g/other"), ("nhi:plannr", "tool:g/read"), ("nhi:plannar", "tool:g/raed")]
    rows += [(f"nhi:filler{number}", "tool:h/x") for number in range(20)]
    text = "".join(f"p, {subject}, {obj}, use, -, -, -, allow\n" for subject, obj in rows)
    folder = write_policy(tmp_path, {"agent_to_tool": text})
    near = asked("--policy", folder, "--as", "nhi:planner", "--calls", "tool:g/read")["links"][0]["nearest"]
    assert [each["line"] for each in near] == [2, 1]


NO_TIMES = ("2027-01-15", "yesterday", "-", "2026-W01-1T00:00:00Z", "9999-12-31T23:59:59-14:00")
USAGE = [
    *TABLES["usage"],
    *((("--as", "nhi:a", "--calls", SEARCH, "--now", now), "a time with a zone") for now in NO_TIMES),
]


@pytest.mark.parametrize(("arguments", "said"), USAGE)
def test_wrong_usage_says_how_to_mend_it(arguments: tuple[str, ...], said: str) -> None:
    result = run(*arguments)
    assert (result.exit_code, said in result.output) == (2, True), result.output


def test_a_wrong_policy_exits_3(tmp_path: Path) -> None:
    folder = write_policy(tmp_path, {"agent_to_tool": "p, nhi:r, tool:g/x, tool/call, -, -, -, allow\n"})
    result = run("--as", "nhi:a", "--calls", SEARCH, "--policy", folder)
    assert result.exit_code == 3 and "P104" in result.output


# --- records ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as a sidecar leaves it, with an audit file and its key."""
    rows = (
        "#: id=reads\np, nhi:r, tool:g/search, tools/call, -, -, args.repo.startsWith('acme/'), allow\n"
        "#: id=gets\np, nhi:r, tool:g/get, tools/call, -, -, -, allow\n"
    )
    write_policy(tmp_path, {"agent_to_tool": rows})
    (tmp_path / "sidecar.yaml").write_text(f"version: 1\npolicy: {{models: {MODELS}}}\n")
    (tmp_path / "data" / "audit").mkdir(parents=True)
    (tmp_path / "data" / "keys").mkdir()
    key = tmp_path / "data" / "keys" / "audit.key"
    key.write_text(KEY.secret.hex())
    key.chmod(0o600)
    calls = [
        Sent(("nhi:r",), "tool:g/search", args={"repo": "acme/site"}),
        Sent(("nhi:r",), "tool:g/search", args={"repo": "evil"}),
        Sent(("nhi:r",), "tool:g/get"),
    ]
    record(tmp_path / "data" / "audit" / "audit.jsonl", engine_of(tmp_path), calls)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_limits_that_an_agents_own_definition_has_are_told_too(running: Path) -> None:
    write_policy(running, {"nhi_to_nhi": "p, nhi:r, nhi:sum, message/send, -, -, -, allow\n"})
    (running / "sidecar.yaml").write_text(
        "agents: {sum: {executable: cat, a2a: {rate_limiting: {requests_per_second: 5, daily_quota: 9}}}}\n"
        f"version: 1\npolicy: {{models: {MODELS}}}\n"
    )
    charged = asked("--as", "nhi:r", "--calls", "nhi:sum", "--action", "message/send")["limits"]
    assert [one["name"] for one in charged] == ["agents:nhi:sum:rate", "agents:nhi:sum:day"]


def records(folder: Path) -> list[bytes]:
    return (folder / "data" / "audit" / "audit.jsonl").read_bytes().splitlines()


def test_a_decision_is_explained_from_the_running_sidecars_audit(running: Path) -> None:
    kept = [orjson.loads(line) for line in records(running)]
    for event, code in (("decision", 0), ("refusal", 1)):
        found = next(each for each in kept if each["event"] == event and each["action"])
        result = run("--decision", found["decision_id"], "--json")
        told = orjson.loads(result.stdout)
        assert (result.exit_code, told["allowed"]) == (code, event == "decision")
        assert told["record"]["same_revision"] and told["record"]["seq"] == found["seq"]
        (ran,) = told["links"][0]["conditions"]
        assert (ran["outcome"], ran["source"]) == ("true" if event == "decision" else "false", "the record")


def test_a_record_from_elsewhere_may_be_written_anew_by_a_log_shipper(running: Path) -> None:
    line = orjson.dumps(orjson.loads(records(running)[1]), option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)
    result = run("--record", "-", stdin=line)
    assert result.exit_code == 0 and result.output.startswith("ALLOW\n  nhi:r → tool:g/search"), result.output


def test_another_revision_is_told_and_the_right_one_can_be_given(running: Path, tmp_path: Path) -> None:
    other = write_policy(tmp_path / "other", {"agent_to_tool": "p, nhi:r, tool:g/get, tools/call, -, -, -, allow\n"})
    line = records(running)[1]
    result = run("--record", "-", "--policy", other, stdin=line)
    assert result.exit_code == 1
    assert "note: explained by revision" in result.output and "on record as allowed" in result.output
    assert "note: explained" not in run("--record", "-", "--policy", running, stdin=line).output


def test_what_a_record_cannot_answer_is_undecidable(running: Path, tmp_path: Path) -> None:
    rows = "p, nhi:r, tool:g/search, tools/call, -, -, args.path == 'x', allow\n"
    other = write_policy(tmp_path / "other", {"agent_to_tool": rows})
    result = run("--record", "-", "--policy", other, stdin=records(running)[1])
    assert result.exit_code == 1
    assert result.output.startswith("UNDECIDABLE  a condition has no recorded fact, and what it reads was not recorded")
    told = orjson.loads(run("--record", "-", "--policy", other, "--json", stdin=records(running)[1]).stdout)
    assert (told["allowed"], told["links"][0]["conditions"][0]["outcome"]) == (None, "unknown")


def test_the_key_answers_a_changed_condition_on_hashed_arguments(running: Path, tmp_path: Path) -> None:
    rows = "p, nhi:r, tool:g/search, tools/call, -, -, args.repo == 'acme/site', allow\n"
    other = write_policy(tmp_path / "other", {"agent_to_tool": rows})
    line = records(running)[1]
    own = run("--decision", orjson.loads(line)["decision_id"], "--policy", other)
    assert own.exit_code == 0, "the configured key"
    for key, code in (((), 1), (("--key", "data/keys/audit.key"), 0)):
        assert run("--record", "-", "--policy", other, *key, stdin=line).exit_code == code


def test_a_refusal_before_policy_and_a_record_of_no_call_say_so(running: Path) -> None:
    result = run("--record", "-", stdin=records(running)[-1])
    said = "DENY  unauthenticated: A credential is needed\n  policy was not asked: the call ended before\n"
    assert (result.exit_code, result.output) == (1, said)
    result = run("--record", "-", stdin=records(running)[0])
    assert (result.exit_code, result.output) == (1, "this record is of no call\n")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"", "no audit record"),
        (b"hello", "no audit record"),
        (b"[1]", "no audit record"),
        (b'{"a": 1}', "no audit record: it has no event"),
        (b'{"event": "decision", "seq": 1, "links": [1]}', "record 1 is not as a sidecar writes it"),
        (b'{"event":"control"}\n{"event":"control"}', "say which with --decision"),
    ],
)
def test_what_is_no_record_exits_5(line: bytes, said: str) -> None:
    result = run("--record", "-", stdin=line)
    assert (result.exit_code, said in result.output) == (5, True), result.output


def test_what_came_after_policy_is_told_too(running: Path) -> None:
    fields = orjson.loads(records(running)[1])
    limited = orjson.dumps({**fields, "event": "refusal", "reason": "rate-limited"})
    assert "allowed, and refused after that: rate-limited (" in run("--record", "-", stdin=limited).output
    denied = orjson.loads(records(running)[3])
    shadow = orjson.dumps({**denied, "enforcement": "shadow", "reason": None})
    result = run("--record", "-", stdin=shadow)
    assert result.exit_code == 1 and "denied, in shadow mode: nothing was refused (" in result.output


def test_nothing_of_a_record_is_obeyed_by_a_terminal(running: Path) -> None:
    line = records(running)[1].replace(b"tool:g/search", b"tool:g/\\u001b[31msearch\\u202e")
    shown = run("--record", "-", stdin=line).output
    assert "tool:g/\\x1b[31msearch\\u202e" in shown and shown.replace("\n", "").isprintable()


def test_a_record_of_no_time_is_no_evidence(running: Path) -> None:
    line = re.sub(rb'"timestamp":"[^"]*"', b'"timestamp":"0001-01-01T00:00:00+14:00"', records(running)[1])
    result = run("--record", "-", stdin=line)
    assert (result.exit_code, "is not as a sidecar writes it" in result.output) == (5, True)


def test_a_decision_or_an_audit_file_that_is_not_there_is_no_answer(running: Path, tmp_path: Path) -> None:
    result = run("--decision", "no-such-id")
    assert result.exit_code == 1 and "no record has the decision id no-such-id" in result.output
    (empty := tmp_path / "empty").mkdir()
    result = run("--decision", "x", "--record", str(empty))
    assert (result.exit_code, str(empty) in result.output) == (5, True), "a folder without a log"
    for file in (running / "data").rglob("audit.jsonl"):
        file.unlink()
    result = run("--decision", "x")
    assert (result.exit_code, "cannot be read" in result.output) == (5, True)


# --- the nearest ------------------------------------------------------------------------------------------------------

TOOL = PermissionKind.AGENT_TO_TOOL


def sought(subject: str = "nhi:r", obj: str = "tool:g/search") -> Sought:
    return Sought(TOOL, subject, frozenset(), obj, frozenset(), "tools/call", NOW_S)


NAMES = st.sampled_from(["nhi:r", "nhi:q", "nhi:*", "role:x"])
RULES = st.builds(
    lambda number, subject, obj, action, end: RuleRef(
        id=f"rule-{number}", kind=TOOL, subject=subject, object=obj, actions=(action,), effect="allow", expires_at=end
    ),
    st.integers(0, 40),
    NAMES,
    st.sampled_from(["tool:g/search", "tool:g/*", "tool:h/x", "set:s"]),
    st.sampled_from(["tools/call", "prompts/get"]),
    st.sampled_from([None, NOW_S - 1, NOW_S + 1]),
)


@given(st.lists(RULES, max_size=30), st.integers(1, 6))
def test_a_nearer_rule_never_stands_behind_a_farther_one(rules: list[RuleRef], most: int) -> None:
    (found,) = nearest([sought()], rules, RoleLinks(), most)
    wrong = [len(near.misfits) for near in found]
    main = [sum(misfit.part in ("subject", "object", "action") for misfit in near.misfits) for near in found]
    assert main == sorted(main) and len({near.rule.id for near in found}) == len(found) <= most
    assert all(0 <= each <= 6 for each in wrong)
    two_fit = {rule.id for rule in rules if sum(sought().fits(rule)[:3]) >= 2}
    assert len(found) >= min(most, len(two_fit))


def test_the_work_of_the_search_grows_with_the_number_of_rules_and_no_faster() -> None:
    wanted = sought("nhi:agent-17", "tool:server-17/tool-647x")
    spent = []
    for count in (1_000, 10_000):
        servers = [(n, f"nhi:agent-{n % 90}", f"tool:server-{n % 70}/tool-{n}") for n in range(count)]
        rules = [RuleRef(f"rule-{n}", TOOL, agent, obj, ("tools/call",), "allow") for n, agent, obj in servers]
        (found,), calls = counted_calls(lambda rules=rules: nearest([wanted], rules, RoleLinks()))
        spent.append(calls)
        assert found[0].rule.id == "rule-647"
        assert found[0].misfits[0].hint == 'did you mean "tool:server-17/tool-647"?'
    assert spent[1] < 20 * spent[0]  # the square would be 100 times as much
