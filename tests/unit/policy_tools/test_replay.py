"""What would another policy have answered to what is on record, and does a replay ever guess?"""

import re
import tracemalloc
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings, strategies as st

from sidecar.cli import main
from sidecar.policy import Engine
from sidecar.policy_tools.audit_records import RecordedQuestion, asked_in, find_decision, question_of
from sidecar.policy_tools.policy_location import in_folder
from sidecar.policy_tools.replay import Candidate, replay
from sidecar.vocabulary import Answer
from tests.tables import tables
from tests.unit.policy_tools.traffic import KEY, OTHER_KEY, Sent, engine_of, record, write_policy

TABLES = tables("policy_tools/replay")

READER = ("nhi:r",)
ALICE = ("user:alice", "nhi:r")


def rows(*given: str) -> str:
    """Rows of agent_to_tool, with ids by their place."""
    return "".join(f"#: id=rule-{number}\np, {row}\n" for number, row in enumerate(given, start=1))


def row(when: str, *, subject: str = "nhi:r", obj: str = "tool:g/search", effect: str = "allow") -> str:
    written = when.replace('"', '""')
    return f'{subject}, {obj}, tools/call, -, -, "{written}", {effect}'


def run(*arguments: Any) -> Result:
    return CliRunner().invoke(main, ["policy", "replay", *map(str, arguments)])


def replayed(folder: Path, old: str, new: str, *calls: Sent, key: bool = False, **files: str) -> dict[str, Any]:
    """Calls under the old rows, replayed with the new ones."""
    before = write_policy(folder / "old", {"agent_to_tool": old, **files})
    after = write_policy(folder / "new", {"agent_to_tool": new, **files})
    record(folder / "audit.jsonl", engine_of(before), calls)
    report = replay(folder / "audit.jsonl", Candidate(in_folder(after).load(), KEY if key else None))
    assert report.replayed == len(calls)
    return counts(report.same, report.wider, report.narrower, tuple(report.undecidable))


def counts(same: int = 0, wider: int = 0, narrower: int = 0, undecidable: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"same": same, "wider": wider, "narrower": narrower, "undecidable": undecidable}


SEARCH, LIST = Sent(READER, "tool:g/search", args={"repo": "acme/site"}), Sent(READER, "nhi:g", "tools/list")
NO_KEY = "a condition reads hashed arguments: with --key, constants can be compared with them"
NO_FACT = "a condition has no recorded fact, and what it reads was not recorded"
MORE = "a condition asks more of a hashed argument than whether it equals a constant"
IS_ACME, STARTS = "args.repo == 'acme/site'", "args.repo.startsWith('acme/')"

ENDS = "nhi:r, tool:g/*, use, 2027-01-15T08:01:00Z, -, -, allow"

CHANGES = [
    ("the same row", row(STARTS), row(STARTS), SEARCH, False, counts(same=1)),
    ("a row that is gone", row("true"), row("true", obj="tool:g/get"), SEARCH, False, counts(narrower=1)),
    ("a row that is new", row("true", obj="tool:g/get"), row("true", obj="tool:g/*"), SEARCH, False, counts(wider=1)),
    ("another text, no key", row(STARTS), row(IS_ACME), SEARCH, False, counts(undecidable=(NO_KEY,))),
    ("another text, equality", row(STARTS), row(IS_ACME), SEARCH, True, counts(same=1)),
    ("an unequal constant", row(STARTS), row("args.repo == 'b'"), SEARCH, True, counts(narrower=1)),
    ("membership", row(STARTS), row("args.repo in ['b', 'acme/site']"), SEARCH, True, counts(same=1)),
    ("no membership", row(STARTS), row("args['repo'] in ['b', 2.5]"), SEARCH, True, counts(narrower=1)),
    ("a prefix", row("args.repo != 'b'"), row(STARTS), SEARCH, True, counts(undecidable=(MORE,))),
    ("a large number", row(STARTS), row("args.repo == 9007199254740993"), SEARCH, True, counts(undecidable=(MORE,))),
    ("a key with a dot", row("args['a.b'] == 'x'"), row("args.a.b == 'x'"),
     Sent(READER, "tool:g/search", args={"a.b": "x"}), True, counts(undecidable=(NO_FACT,))),
    ("what was not read", row(STARTS), row("args.path == 'a'"), SEARCH, True, counts(undecidable=(NO_FACT,))),
    ("a principal", row(STARTS), row("principal.id == 'q'"), SEARCH, False, counts(narrower=1)),
    ("the tool", row(STARTS), row("call.tool == 'search'"), SEARCH, False, counts(same=1)),
    ("the time", row(STARTS), row("now < timestamp('2027-01-15T07:00:00Z')"), SEARCH, False, counts(narrower=1)),
    ("no arguments", row("true"), row("!has(args.repo)"), Sent(READER, "tool:g/search"), False, counts(same=1)),
    ("a meta", row("true"), row("call.meta.x == 'a'"), SEARCH, True, counts(undecidable=(NO_FACT,))),
    ("its own time", row("true"), ENDS, SEARCH, False, counts(same=1)),
    ("a list", row("true"), "nhi:r, prompt:g/x, use, -, -, -, allow", LIST, False, counts(same=1)),
    ("no list", row("true"), "nhi:q, tool:g/x, use, -, -, -, allow", LIST, False, counts(narrower=1)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "call", "key", "expected"), [each[1:] for each in CHANGES], ids=[c[0] for c in CHANGES]
)
def test_each_change_is_counted_as_what_it_is(
    tmp_path: Path, old: str, new: str, call: Sent, key: bool, expected: dict[str, Any]
) -> None:
    assert replayed(tmp_path, rows(old), rows(new), call, key=key) == expected


def test_what_is_unknown_does_not_matter_where_the_answer_is_the_same_either_way(tmp_path: Path) -> None:
    new = rows(row("args.path == 'a'"), row("true"))
    assert replayed(tmp_path / "1", rows(row("true")), new, SEARCH) == counts(same=1)
    new = rows(row("args.path == 'a'"), row("true", effect="deny"))
    assert replayed(tmp_path / "2", rows(row("true")), new, SEARCH) == counts(narrower=1)


CLEAR = {"tool:g/search": ["/repo", "/size", "/page/limit"]}
CLEAR_ARGS: list[dict[str, Any]] = TABLES["clear"]


@pytest.mark.parametrize("when", TABLES["clear_conditions"])
def test_arguments_in_clear_answer_changed_conditions(tmp_path: Path, when: str) -> None:
    """Never otherwise than the arguments themselves would, and undecided only where more than they is read."""
    calls = [Sent(READER, "tool:g/search", args=args) for args in CLEAR_ARGS]
    before = write_policy(tmp_path / "old", {"agent_to_tool": rows(row("true"))})
    after = write_policy(tmp_path / "new", {"agent_to_tool": rows(row(when))})
    record(tmp_path / "audit.jsonl", engine_of(before), calls, clear=CLEAR)
    candidate, truth = Candidate(in_folder(after).load()), engine_of(after)
    for line, sent in zip(decisions(tmp_path / "audit.jsonl"), calls, strict=True):
        asked = asked_in(line)
        question = question_of(sent.object, sent.action, sent.args)
        answer = candidate.decide(asked).answer
        expected = None if "has(args.page)" in when else truth.decide(sent.principals(), question, asked.at_s).answer
        assert answer == expected or (expected is None and answer != "deny"), sent.args


def test_without_arguments_in_clear_a_changed_condition_is_undecided(tmp_path: Path) -> None:
    old, new = (write_policy(tmp_path / name, {"agent_to_tool": rows(row(when))}) for name, when in
                (("old", "true"), ("new", "args.size <= 50")))  # fmt: skip
    for chosen, code in ((None, 6), ({"tool:g/search": ["/repo"]}, 6), ({"tool:g/search": ["/size"]}, 0)):
        path = tmp_path / f"audit-{len(chosen or {})}-{code}.jsonl"
        record(path, engine_of(old), [Sent(READER, "tool:g/search", args={"size": 50})], clear=chosen)
        assert run(path, "--policy", new).exit_code == code


def decisions(path: Path) -> list[dict[str, Any]]:
    lines = map(orjson.loads, path.read_bytes().splitlines())
    return [line for line in lines if line["event"] == "decision"]


def test_one_condition_on_an_allow_and_a_deny_row_can_never_allow(tmp_path: Path) -> None:
    """Neither true nor false nor an error: a bound for each row alone would call it undecidable."""
    new = rows(row("args.path == 'a'"), row("args.path == 'a'", effect="deny"))
    assert replayed(tmp_path, rows(row("true")), new, SEARCH) == counts(narrower=1)


def test_conditions_are_those_of_their_own_link(tmp_path: Path) -> None:
    """`principal` is alice in the first link and r in the second; arguments exist in the second only."""
    lending = {"user_to_nhi": "#: id=lends\np, user:alice, nhi:r, delegate, -, -, principal.kind == 'user', allow\n"}
    call = Sent(ALICE, "tool:g/search", args={"repo": "acme/site"})
    new = rows(row("principal.kind == 'nhi'"))
    assert replayed(tmp_path, rows(row(STARTS)), new, call, **lending) == counts(same=1)


def test_token_roles_and_scopes_are_known_from_the_record(tmp_path: Path) -> None:
    old = rows(row("true", subject="role:corp/eng"))
    new = rows(row("'deploy' in principal.scopes", subject="role:corp/ops"))
    eng = Sent(("user:a",), "tool:g/search", roles=("role:corp/eng",), scopes=("deploy",))
    ops = Sent(("user:a",), "tool:g/search", roles=("role:corp/ops",), scopes=("deploy",))
    bare = Sent(("user:a",), "tool:g/search", roles=("role:corp/ops",))
    assert replayed(tmp_path, old, new, eng, ops, bare) == counts(same=1, wider=1, narrower=1)


def test_roles_in_a_condition_with_arguments_must_be_those_of_then(tmp_path: Path) -> None:
    when = "has_role(principal, 'role:x') && args.repo == 'acme/site'"
    old = {"agent_to_tool": rows(row(when)), "roles": "g, nhi:r, role:x\n"}
    new = {"agent_to_tool": rows(row(when)), "roles": "g, nhi:r, role:y\n"}
    record(tmp_path / "audit.jsonl", engine_of(write_policy(tmp_path / "old", old)), [SEARCH])
    source = in_folder(write_policy(tmp_path / "new", new)).load()
    for key in (None, KEY):
        assert sum(replay(tmp_path / "audit.jsonl", Candidate(source, key)).undecidable.values()) == 1
    same = in_folder(write_policy(tmp_path / "more", {**old, "user_to_nhi": "p, user:z, nhi:r, use, -, -, -, allow\n"}))
    report = replay(tmp_path / "audit.jsonl", Candidate(same.load(), KEY))
    assert (report.same, report.changed) == (1, 0)


def test_a_value_that_failed_then_is_not_taken_for_a_stranger(tmp_path: Path) -> None:
    """A text with a NUL reaches no condition, so that even `!=` fails: what its digest stands for must not be asked."""
    call = Sent(READER, "tool:g/search", args={"repo": "acme/\0x"})
    old, new = rows(row("args.repo == 'b'")), rows(row("args.repo != 'b'"))
    assert replayed(tmp_path, old, new, call, key=True) == counts(undecidable=(MORE,))


def test_a_query_that_is_not_on_record_is_never_guessed(tmp_path: Path) -> None:
    old = "nhi:r, resource:g/*, use, -, -, -, allow"
    plain = Sent(READER, "resource:g/db://x", "resources/read")
    queried = Sent(READER, "resource:g/db://x?all=1", "resources/read")
    new = "nhi:r, resource:g/db://x, use, -, -, -, allow"
    expected = counts(same=1, undecidable=("the URI had a query, which a record does not show",))
    assert replayed(tmp_path, rows(old), rows(new), plain, queried) == expected


# --- the judge: the real arguments ------------------------------------------------------------------------------------

WHENS = TABLES["conditions"]
VALUES = st.sampled_from([*TABLES["values"], 2.0**53])
REPOS = st.sampled_from(["acme/site", "acme/x", "evil"])
ARGS = st.one_of(
    st.fixed_dictionaries({"repo": REPOS}, optional={"force": VALUES, "n": VALUES, "other": REPOS, "deep": VALUES}),
    st.dictionaries(st.sampled_from(["repo", "force", "n", "other", "deep"]), VALUES, max_size=4),
)
SENT = st.builds(
    Sent,
    st.sampled_from([READER, ALICE, ("user:alice",)]),
    st.just("tool:g/search"),
    args=ARGS,
    meta=st.dictionaries(st.just("team"), st.sampled_from(["blue", "red"])),
    roles=st.sets(st.sampled_from(["role:corp/eng", "role:oncall"])).map(lambda found: tuple(sorted(found))),
    scopes=st.sampled_from([(), ("x",)]),
)
ROW = st.builds(
    lambda when, subject, effect: row(when, subject=subject, effect=effect),
    st.sampled_from(WHENS),
    st.sampled_from(["*", "*", "*", "nhi:r", "role:oncall", "role:corp/eng", "user:alice"]),
    st.sampled_from(["allow", "allow", "allow", "allow", "deny"]),
)
POLICY = st.fixed_dictionaries(
    {
        "agent_to_tool": st.lists(ROW, min_size=1, max_size=4, unique=True).map(lambda found: rows(*found)),
        "user_to_nhi": st.sampled_from(["true"] * 90 + WHENS).map(
            lambda when: f"#: id=lends\np, *, nhi:r, delegate, -, -, {when_field(when)}, allow\n"
        ),
        "guardrails": st.sampled_from(["false"] * 90 + WHENS).map(
            lambda when: f"#: id=guard\np, *, tool:g/*, use, -, -, {when_field(when)}, deny\n"
        ),
        "roles": st.sampled_from(["g, role:corp/eng, role:oncall\n", "g, user:alice, role:oncall\n"]),
    }
)


WITH_APPROVALS = POLICY.map(
    lambda files: {**files, "agent_to_tool": re.sub(r"id=(rule-[13]\n.* allow)", asking, files["agent_to_tool"])}
)


def asking(found: re.Match[str]) -> str:
    return "approval=role:lead id=" + found[1]


def when_field(when: str) -> str:
    return '"' + when.replace('"', '""') + '"'


def truth(engine: Engine, sent: Sent, asked: RecordedQuestion) -> Answer:
    question = question_of(sent.object, sent.action, sent.args, sent.meta)
    return engine.decide(sent.principals(), question, asked.at_s).answer


@settings(max_examples=30)
@given(old=POLICY, new=POLICY | WITH_APPROVALS, calls=st.lists(SENT, min_size=1, max_size=6))
def test_whatever_a_replay_decides_is_what_the_real_arguments_give(
    tmp_path_factory: pytest.TempPathFactory, old: dict[str, str], new: dict[str, str], calls: list[Sent]
) -> None:
    folder = tmp_path_factory.mktemp("replay")
    path = folder / "audit.jsonl"
    record(path, engine_of(write_policy(folder / "old", old)), calls)
    source = in_folder(write_policy(folder / "new", new)).load()
    engine = Engine(source)
    kept = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    answered = [fields for fields in kept if fields["event"] in ("decision", "refusal") and fields["links"]]
    candidates = [Candidate(source, key) for key in (None, KEY, OTHER_KEY)]
    for fields, sent in zip(answered, calls, strict=True):
        asked, bare = asked_in(fields), asked_in({**fields, "granted": None})
        for candidate in candidates:
            assert candidate.decide(asked).answer in (None, truth(engine, sent, asked))
            assert candidate.decide(bare).answer is None


@settings(max_examples=20)
@given(old=POLICY | WITH_APPROVALS, calls=st.lists(SENT, min_size=1, max_size=6))
def test_the_policy_that_decided_decides_the_same_again(
    tmp_path_factory: pytest.TempPathFactory, old: dict[str, str], calls: list[Sent]
) -> None:
    folder = write_policy(tmp_path_factory.mktemp("replay"), old)
    record(folder / "audit.jsonl", engine_of(folder), calls)
    report = replay(folder / "audit.jsonl", Candidate(in_folder(folder).load()))
    assert (report.same, report.changed, report.undecidable) == (len(calls), 0, {})


# --- files and commands -----------------------------------------------------------------------------------------------


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """old/, new/, wide/ and audit.jsonl of one allowed and one denied call."""
    for name, obj in (("old", "tool:g/search"), ("new", "tool:g/get"), ("wide", "tool:*")):
        write_policy(tmp_path / name, {"agent_to_tool": rows(row("true", obj=obj))})
    record(tmp_path / "audit.jsonl", engine_of(tmp_path / "old"), [SEARCH, Sent(READER, "tool:g/put")])
    return tmp_path


EARLY, LATE = "2020-01-01T00:00:00Z", "2999-01-01T00:00:00Z"


def test_the_exit_code_says_whether_answers_differ(kept: Path) -> None:
    for code, commands in {
        0: ("old", "new --fail-on wider", "wide --fail-on narrower", f"new --since {LATE}", f"new --until {EARLY}"),
        6: ("new", "wide", "new --fail-on narrower", "wide --fail-on wider"),
        2: ("new --since someday",),
    }.items():
        for folder, *options in (words.split(" ") for words in commands):
            result = run(kept / "audit.jsonl", "--policy", kept / folder, *options)
            assert result.exit_code == code, (folder, options, result.output)


def test_what_cannot_be_decided_is_no_good_answer(tmp_path: Path) -> None:
    """Exit 0 means that nothing changes, and must not be given where that is not known."""
    old, new = (write_policy(tmp_path / name, {"agent_to_tool": rows(row(when))}) for name, when in
                (("old", STARTS), ("new", "args.path == 'a'")))  # fmt: skip
    record(tmp_path / "audit.jsonl", engine_of(old), [SEARCH])
    for more, code in ((), 6), (("--fail-on", "wider"), 6), (("--allow-undecided",), 0):
        result = run(tmp_path / "audit.jsonl", "--policy", new, *more)
        assert (result.exit_code, "  undecidable  1\n" in result.output) == (code, True)


def test_people_and_programs_read_counts_and_an_example_of_each_kind(kept: Path) -> None:
    told = run(kept / "audit.jsonl", "--policy", kept / "new").output
    for said in (
        "2 of 5 records were decided again",
        "  narrower     1\n",
        "  1 x  nhi:r → tool:g/search  tools/call\n       then allow by rule-1; now no-matching-rule\n",
        "first: record 2, decision id-000002",
    ):
        assert said in told
    data = orjson.loads(run(kept / "audit.jsonl", "--policy", kept / "wide", "--json").output)
    assert (data["same"], data["wider"], data["narrower"], data["undecidable"]) == (1, 1, 0, 0)
    example = data["examples"][0]
    told = (example["change"], example["object"], example["was"], example["now"], example["new_rules"])
    assert told == ("wider", "tool:g/put", "no-matching-rule", "allow", ["rule-1"])


def test_what_is_no_evidence_exits_5_and_a_torn_last_line_is_told(kept: Path) -> None:
    path = kept / "audit.jsonl"
    whole = path.read_bytes()
    for raw, code, said in (
        (b"", 5, "holds no record"),
        (b"hello\n" + whole, 5, "audit.jsonl:1: this is not an audit record"),
        (whole.replace(b"tool:g/search", b"tool:g/saerch", 1), 5, "does not fit its bytes"),
        (whole + b"x" * (3 * 1024 * 1024), 5, "without a newline"),
        (whole + b'{"v":1,"event":"dec', 0, "note: 19 bytes of an unfinished last line were not read"),
    ):
        path.write_bytes(raw)
        result = run(path, "--policy", kept / "old")
        assert (result.exit_code, said in result.output) == (code, True), result.output


def test_a_candidate_that_is_wrong_exits_3(kept: Path) -> None:
    write_policy(kept / "new", {"agent_to_tool": "p, nhi:r, tool:g/x, tool/call, -, -, -, allow\n"})
    result = run(kept / "audit.jsonl", "--policy", kept / "new")
    assert result.exit_code == 3 and "P104" in result.output


def test_a_long_file_streams_in_constant_memory(kept: Path) -> None:
    path, candidate = kept / "long.jsonl", Candidate(in_folder(kept / "new").load())
    block = (kept / "audit.jsonl").read_bytes()  # each line has its own seal; the chain is `verify`'s
    peaks = []
    for times in (100, 700):
        path.write_bytes(block * times)
        tracemalloc.start()
        report = replay(path, candidate)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert (report.replayed, report.narrower) == (2 * times, times)
    assert peaks[1] < peaks[0] + 200_000


def test_a_decision_is_found_from_the_end_of_a_long_file(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = kept / "audit.jsonl"
    for chunk in (7, 64, 5000, 1 << 20):
        monkeypatch.setattr("sidecar.policy_tools.audit_records.CHUNK_BYTES", chunk)
        found = find_decision([path], "id-000002")
        assert found is not None and (found["event"], found["object"]) == ("decision", "tool:g/search")
        assert find_decision([path], "id-999999") is None
