"""Is every fact in its field, bounded, once, and nothing else?"""

import contextlib
import json
import os
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings, strategies as st

from sidecar.audit.chain import BEGINNING, MAX_LINE_BYTES, unseal
from sidecar.audit.clear import Clear
from sidecar.audit.digest import Digests
from sidecar.audit.record import FIELDS, GROUND, REMEMBERED, ROLE, SEED_FIELDS, Describer, as_seed, limits
from sidecar.audit.record_ids import ENTROPY_BYTES, time_ordered_ids
from sidecar.audit.recorder import Audit, Recording
from sidecar.errors import ANSWERS, LimitState, Reason, Refusal
from sidecar.protocols.mcp.messages import NAME
from sidecar.vocabulary import (
    Call,
    Caller,
    Credential,
    Decision,
    Fact,
    Link,
    PermissionKind,
    Principal,
    Question,
    RuleRef,
)
from tests.at_once import at_once
from tests.peers import recompute_audit as peer
from tests.unit.audit import plain_record
from tests.unit.audit.scenes import ARGUMENTS, KEY, FakeClock, forward, open_audit, records, refuse, seal, understood

GOLDEN = Path(__file__).parents[2] / "golden" / "audit"
SEEDS = (
    "id timestamp run_id thread_id agent_id agent_role tool_name method args_hash redaction_applied duration_ms status"
    " error_message"
)
OUR_FIELDS = (
    "v event instance seq prev_hash hash key_id decision_id request_id trace_id peer credential chain protocol server"
    " tool method protocol_version upstream object action links reason policy_revision enforcement facts limits"
    " http_status bytes_in bytes_out latency would_deny"
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


@pytest.fixture
def audit(path: Path) -> Any:
    audit = open_audit(path)
    yield audit
    at_once(audit.close())


SECRETS = [
    "Bearer " + "a1b2" * 8,
    "ghp_" + "a" * 36,
    "https://me:pass@db.example/x",
    "-----BEGIN PRIVATE KEY-----\nMIIEvQ",
]


@pytest.mark.parametrize(
    ("arguments", "entry"),
    [
        ({"a": {"b": "acme/site"}}, {"value": "acme/site"}),
        ({"a": {"b": None}}, {"value": None}),
        ({"a": {"b": -1.5}}, {"value": -1.5}),
        ({"a": {}}, {"absent": 2}),
        ({}, {"absent": 1}),
        ({"a": "text"}, {"left_out": "no-object"}),
        ({"a": {"b": ["x"]}}, {"left_out": "not-plain"}),
        ({"a": {"b": float("inf")}}, {"left_out": "not-plain"}),
        ({"a": {"b": "\ud800"}}, {"left_out": "not-plain"}),
        ({"a": {"b": 2**63}}, {"left_out": "too-large"}),
        ({"a": {"b": "x" * 257}}, {"left_out": "too-large"}),
        *(({"a": {"b": secret}}, {"left_out": "credential"}) for secret in SECRETS),
    ],
)
def test_only_chosen_plain_arguments_are_recorded_in_clear(arguments: dict[str, Any], entry: dict[str, Any]) -> None:
    clear = Clear({"tool:s/t": ["/a/b"]})
    question = Question("tool:s/t", "tools/call", "s", "t", arguments | {"other": "not chosen"})
    assert clear.of(question) == {"/a/b": entry}
    assert clear.of(question._replace(object="tool:s/u")) is None


def test_arguments_in_clear_stand_in_every_record_of_the_call_and_by_default_in_none(tmp_path: Path) -> None:
    for name, chosen in (("chosen", {"tool:github/search": ["/repo"]}), ("default", {})):
        audit = open_audit(tmp_path / name, clear_arguments=chosen)
        forward(audit)
        refuse(audit)
        at_once(audit.close())
        value = {"/repo": {"value": ARGUMENTS["repo"]}} if chosen else None
        assert [record["clear_arguments"] for record in records(tmp_path / name)] == [value, value, value]


def test_every_field_of_the_contract_is_in_every_event_in_one_order(audit: Audit, path: Path) -> None:
    at_once(audit.control("start", "sidecar", version="1"))
    forward(audit)
    refuse(audit)
    written = records(path)
    assert [record["event"] for record in written] == ["control", "decision", "outcome", "refusal"]
    assert {tuple(record) for record in written} == {FIELDS}
    assert {*OUR_FIELDS.split()} <= set(FIELDS) and {*SEED_FIELDS.values()} <= set(FIELDS)
    assert " ".join(SEED_FIELDS) == SEEDS and FIELDS[-1] == "hash"
    stamp = written[1]["timestamp"]
    assert stamp == "2026-11-18T11:06:40.250000Z"
    assert datetime.fromisoformat(stamp).timestamp() == FakeClock().now


def test_a_forwarded_call_says_who_what_why_and_how_it_ended(audit: Audit, path: Path) -> None:
    recording = understood(audit)
    at_once(recording.decided())
    assert isinstance(audit.clock, FakeClock)
    audit.clock.now += 0.25
    recording.marks["upstream"] = recording.now_s()
    at_once(recording.outcome(http_status=200, bytes_out=512))
    decision, outcome = records(path)
    digest = peer.args_hash(KEY.secret, "corp", "tools/call", "tool:github/search", ARGUMENTS)
    ours = {"decision_id": recording.decision_id, "args_hash": digest, "key_id": KEY.id, "prev_hash": decision["hash"]}
    expected = {**json.loads((GOLDEN / "outcome.json").read_text()), **ours}
    assert {name: outcome[name] for name in expected} == expected
    assert outcome["facts"][0]["condition"] == "c0ffee" * 5
    asked_of = (outcome["facts"][0]["subject"], outcome["facts"][0]["action"])
    assert asked_of == ("nhi:corp/researcher", "tools/call")
    assert re.fullmatch("[0-9a-f]{32}", outcome["facts"][0]["inputs"]["args.repo"])
    own = "event seq id timestamp status tool_error http_status bytes_out duration_ms latency prev_hash hash"
    same = set(FIELDS) - set(own.split())
    assert {name: decision[name] for name in same} == {name: outcome[name] for name in same}
    assert (decision["status"], decision["http_status"], decision["duration_ms"]) == (None, None, None)


def test_what_credentials_granted_is_on_record_whole_or_not_at_all(audit: Audit, path: Path) -> None:
    alice = Principal("user:alice", "idp", frozenset({"role:corp/eng"}), frozenset({"b", "a"}))
    many = Principal("user:mary", "idp", frozenset(), frozenset(f"scope-{number:04d}" for number in range(2000)))
    odd = Principal("user:odd", "idp", frozenset({"role:corp/\ud800"}))
    for chain in ((alice, Principal("nhi:planner")), (many,), (odd,), (Principal("user:bob"),)):
        recording = understood(audit)
        recording.caller = Caller(chain, ())
        at_once(recording.decided())
    granted = [record["granted"] for record in records(path)]
    assert granted == [
        [{"roles": ["role:corp/eng"], "scopes": ["a", "b"]}, {"roles": [], "scopes": []}],
        None,
        None,
        [],
    ]


@pytest.mark.parametrize("reason", list(Reason))
def test_each_reason_has_its_status_and_message_from_the_closed_table(audit: Audit, path: Path, reason: Reason) -> None:
    recording = understood(audit)
    at_once(recording.refused(Refusal(reason, "a detail that evidence does not repeat"), http_status=403))
    (record,) = records(path)
    answer = ANSWERS[reason]
    told = (record["event"], record["reason"], record["status"], record["error_message"], record["http_status"])
    assert told == ("refusal", reason.value, answer.status, answer.message, 403)
    assert record["args_hash"] and b"a detail" not in path.read_bytes()


def test_a_refusal_before_anything_is_known_is_on_record_too(audit: Audit, path: Path) -> None:
    recording = Recording(audit, protocol="mcp", peer="unix")
    recording.upstream = "github"
    at_once(recording.refused(Refusal(Reason.UNAUTHENTICATED), http_status=401))
    (record,) = records(path)
    unknown = ("agent_id", "args_hash", "object", "action", "policy_revision", "method", "request_id")
    assert [record[name] for name in unknown] == [None] * len(unknown)
    assert (record["upstream"], record["status"]) == ("github", "permission_denied")
    assert record["chain"] == record["links"] == []


def test_a_refusal_after_the_decision_is_the_calls_outcome_and_says_anew_what_was_charged(
    audit: Audit, path: Path
) -> None:
    recording = understood(audit)
    at_once(recording.decided())
    with pytest.raises(AssertionError):
        at_once(recording.decided())
    at_once(recording.judged(recording.call.question, recording.decision))
    recording.charged = 0
    at_once(recording.refused(Refusal(Reason.UPSTREAM_FAILED), http_status=502))
    *_, outcome = written = records(path)
    assert (outcome["event"], outcome["reason"], outcome["status"]) == ("outcome", "upstream-failed", "error")
    assert [record["limits"][0]["charged"] for record in written] == [1, 0, 0]


def test_the_limit_that_refused_is_named_and_nothing_was_charged(audit: Audit, path: Path) -> None:
    refusal = Refusal(Reason.RATE_LIMITED, limit=LimitState("tool:github/*", 10, 0, 1.0))
    at_once(understood(audit).refused(refusal, http_status=429))
    (record,) = records(path)
    told = [(limit["name"], limit["charged"], limit["remaining"]) for limit in record["limits"]]
    assert told == [("row:reads-github", 0, 119), ("tool:github/*", 0, 0)]


@pytest.mark.parametrize("first", ["outcome", "refused"])
@pytest.mark.parametrize("second", ["outcome", "refused", "decided"])
def test_nothing_can_be_written_after_the_terminal_record(audit: Audit, path: Path, first: str, second: str) -> None:
    recording = understood(audit)
    ends = {
        "outcome": lambda: recording.outcome(http_status=200, bytes_out=1),
        "refused": lambda: recording.refused(Refusal(Reason.INTERNAL), http_status=500),
        "decided": recording.decided,
    }
    at_once(ends[first]())
    assert recording.done
    with pytest.raises(AssertionError):
        at_once(ends[second]())
    assert len(records(path)) == 1


def test_arguments_that_cannot_be_hashed_do_not_pass_and_their_refusal_is_recorded(audit: Audit, path: Path) -> None:
    recording = understood(audit, arguments={"x": "\ud800"})
    with pytest.raises(Refusal) as refused:
        at_once(recording.decided())
    assert refused.value.reason is Reason.MALFORMED_CALL
    at_once(recording.refused(refused.value, http_status=400))
    (record,) = records(path)
    assert (record["event"], record["reason"], record["args_hash"]) == ("refusal", "malformed-call", None)


def test_a_decision_about_arguments_that_cannot_be_hashed_is_no_permit(audit: Audit, path: Path) -> None:
    recording = understood(audit, arguments={"x": "\ud800"})
    recording.enforcement_point = "edge"
    with pytest.raises(Refusal) as refused:
        at_once(recording.outcome(http_status=200, bytes_out=0, event="decision"))
    at_once(recording.refused(refused.value, http_status=400))
    (record,) = records(path)
    assert (record["event"], record["reason"], record["args_hash"]) == ("refusal", "malformed-call", None)


async def test_large_arguments_are_hashed_beside_the_loop_to_the_same(audit: Audit, path: Path) -> None:
    large: dict[str, Any] = {"values": [1.5e300, 0.1, "a", {"b": 1.0}] * 500}
    for bytes_in in (300, 2**20):
        recording = understood(audit, arguments=large)
        recording.bytes_in = bytes_in
        await recording.decided()
        await recording.outcome(http_status=200, bytes_out=1)
    hashes = {record["args_hash"] for record in records(path)}
    assert len(hashes) == 1 and None not in hashes


def test_a_uris_query_and_fragment_are_hashed_and_not_shown(audit: Audit, path: Path) -> None:
    uris = ["file:///a?token=hunter2", "file:///a?token=hunter3", "file:///a#hunter2"]
    for uri in uris:
        forward(audit, object=f"resource:files/{uri}", action="resources/read", server="files", name=uri, arguments={})
    written = records(path)[::2]
    assert {(record["object"], record["tool"]) for record in written} == {("resource:files/file:///a", "file:///a")}
    assert all(record["redaction_applied"] for record in written)
    assert len({record["args_hash"] for record in written}) == 3
    assert b"hunter" not in path.read_bytes()


def test_a_method_without_a_name_is_called_by_its_word_on_the_wire(audit: Audit, path: Path) -> None:
    forward(audit, object="nhi:github", action="tools/list", name="", arguments={})
    record = records(path)[0]
    assert (record["tool"], record["method"], record["redaction_applied"]) == (None, "tools/call", False)
    assert as_seed(record)["method"] == "tools/call"


def test_a_name_has_one_digest_in_a_tenant_and_none_that_a_name_could_be() -> None:
    one, other = Digests(KEY, ""), Digests(KEY, "corp")
    assert one.name_hash("a") == one.name_hash("a") != one.name_hash("b") and one.name_hash("a") != other.name_hash("a")
    assert re.fullmatch("~hmac:[0-9a-f]{32}", one.name_hash("ä")) and not NAME.fullmatch(one.name_hash("a"))


def test_the_seeds_names_are_there_for_records_of_every_version(audit: Audit, path: Path) -> None:
    """`tool_name` held the server and `method` the tool: now names say what is there; the original ones are aliases."""
    forward(audit)
    new = records(path)[-1]
    assert (new["v"], new["server"], new["tool"], new["method"]) == (2, "github", "search", "tools/call")
    old = {name: value for name, value in new.items() if name not in ("server", "tool", "tool_error")}
    old |= {"v": 1, "tool_name": "github", "method": "search"}
    assert as_seed(new) == as_seed(old) and " ".join(as_seed(new)) == SEEDS
    assert (as_seed(new)["tool_name"], as_seed(new)["method"]) == ("github", "search")


def test_raw_arguments_and_fact_inputs_are_nowhere(audit: Audit, path: Path) -> None:
    forward(audit, arguments={"canary-key": "canary-value", "n": 424242424242})
    text = path.read_bytes()
    assert b"canary" not in text and b"424242424242" not in text and b"acme/site" not in text


def test_a_control_event_says_what_who_and_with_what(audit: Audit, path: Path) -> None:
    what = {"old_revision": "a", "new_revision": "b", "rules": 3, "faults": ["x"], "ok": True, "more": None}
    at_once(audit.control("reload", "signal", **what))
    (record,) = records(path)
    assert record["control"] == {"what": "reload", "by": "signal", **what}
    assert (record["chain"], record["status"], record["latency"]) == ([], None, {})


HOSTILE = '\r\n\x1b[31m\x00\x7f\x85\u2028\u2029\u202e\u200b\ufeff"\\},{"event":"outcome"}\n\U0001f600\ud800'


def hostile_request(audit: Audit, text: str) -> None:
    recording = Recording(audit, text, text, text)
    recording.trace_id = recording.run_id = recording.thread_id = text
    recording.caller = Caller((Principal(f"user:{text}", text),) * 40, (Credential("jwt", text, text),) * 40)
    asked = Question(f"tool:{text}", text, text, text, {"a": 1}, {})
    recording.call = Call("mcp", text, text, text, (asked,))
    rule = RuleRef(text, PermissionKind.AGENT_TO_TOOL, text, text, (text,), "allow")
    link = Link(PermissionKind.AGENT_TO_TOOL, text, text, text, True, rules=(rule,) * 40)
    facts = (Fact(text, "error", link, {f"{number}{text}": object() for number in range(40)}),) * 1600
    recording.decision = Decision(True, text, (link,) * 40, roles=(text,) * 40, would_deny=(text,) * 40, facts=facts)
    recording.limits = (LimitState(text, 1, 1),) * 40
    at_once(recording.decided())
    at_once(recording.refused(Refusal(Reason.INTERNAL, text), http_status=500))
    at_once(audit.control(text, text, **{f"{number}{text}": [text] * 40 for number in range(40)}))
    at_once(audit.control(text, text, text=text, integer=10**400))


@pytest.mark.parametrize("text", [HOSTILE, HOSTILE * 300, "x" * 10_000, "\U0010ffff" * 3_000])
def test_hostile_text_in_every_field_stays_one_bounded_line(audit: Audit, path: Path, text: str) -> None:
    """BL-075."""
    hostile_request(audit, text)
    *lines, end = path.read_bytes().split(b"\n")
    assert len(lines) == 4 and end == b""
    for line in lines:
        assert re.fullmatch(rb"[\x20-\x7e]+", line) and len(line) < MAX_LINE_BYTES
        sealed = unseal(line)
        assert sealed.intact and tuple(sealed.fields) == FIELDS
    assert peer.check_chain(path)[0] == 4


def test_what_fits_and_can_be_encoded_is_parsed_back_as_it_was(audit: Audit, path: Path) -> None:
    """BL-075."""
    text = HOSTILE.rstrip("\ud800")
    recording = Recording(audit, "mcp", text)
    recording.run_id = text
    recording.caller = Caller((Principal(f"user:{text}"),), (Credential("jwt", text, text),))
    at_once(recording.refused(Refusal(Reason.INTERNAL), http_status=500))
    (record,) = records(path)
    assert (record["peer"], record["run_id"], record["chain"]) == (text, text, [f"user:{text}"])


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


@given(st.dictionaries(TEXTS.filter(lambda key: key not in ("seq", "prev_hash", "hash")), TEXTS, max_size=4))
@settings(max_examples=60)
def test_a_line_is_ascii_and_gives_its_record_back(texts: dict[str, str]) -> None:
    line, digest = seal({**texts, "seq": 1, "prev_hash": "0" * 64})
    sealed = unseal(line[:-1])
    assert re.fullmatch(rb"[\x20-\x7e]+\n", line)
    assert sealed.intact and sealed.hash == digest
    assert {key: sealed.fields[key] for key in texts} == texts


def test_each_caller_is_described_as_itself_whatever_came_before() -> None:
    """What was made of a caller is remembered by the object, and objects that are gone leave their place to others."""
    describer, seen = Describer(KEY), set()
    for number in range(3 * REMEMBERED):
        name = f"nhi:t{number % 7}/{number}"
        caller = Caller((Principal(name),), ())
        rule = RuleRef(name, PermissionKind.AGENT_TO_TOOL, name, "tool:*", ("use",), "allow")
        link = Link(PermissionKind.AGENT_TO_TOOL, name, "tool:x", "tools/call", True, rules=(rule,))
        for _ in range(2):
            decision = Decision(True, "r", (link,), roles=(name,))
            same = describer.call((("mcp", "", "", "tools/call", "tool:x"), "enforce", number), decision).record
            line = orjson.loads("{" + ",".join([describer.caller(caller).chain, same[ROLE], same[GROUND]]) + "}")
            assert (line["agent_id"], line["chain"], line["agent_role"]) == (name, [name], name)
            assert line["links"][0]["rules"] == [name]
            seen.add(describer.caller(caller).digests.args_hash("tools/call", "tool:x", {}))
    assert seen == {Digests(KEY, f"t{tenant}").args_hash("tools/call", "tool:x", {}) for tenant in range(7)}


def test_decision_ids_sort_by_time_and_cannot_be_guessed() -> None:
    clock, stocks = FakeClock(), []

    def entropy(count: int) -> bytes:
        stocks.append(os.urandom(count))
        return stocks[-1]

    new_id = time_ordered_ids(clock, entropy=entropy)
    earlier = [new_id() for _ in range(1000)]
    assert [len(stock) for stock in stocks] == [ENTROPY_BYTES] * 10, "it is taken in stock, and used once"
    clock.now += 0.002
    later = new_id()
    assert len({each[15:] for each in earlier}) == 1000
    uuid = "[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
    assert all(each < later and re.fullmatch(uuid, each) for each in earlier)


# --- the same as made plainly -----------------------------------------------------------------------------------------


class Known:
    """Knows one server and one method."""

    def has_upstream(self, name: str) -> bool:
        return name == "github"

    def has_method(self, name: str) -> bool:
        return name == "tools/call"

    def has(self, question: Question) -> bool | None:
        return {"search": True, "": None}.get(question.name, False)


@pytest.fixture(scope="module")
def plain_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plain")


WORDS = st.one_of(
    st.sampled_from(["", "a", "tools/call", "corp/x", '"%s"\\', "100%", "é", "\ud800"]),
    st.text(max_size=4),
    st.integers(0, 700).map("x".__mul__),
)
NUMBERS = st.one_of(st.integers(0, 2**40), st.floats(0, 2**40))
NAMED = st.lists(WORDS, max_size=3).map(tuple)
RULE_REFS = st.builds(
    lambda id_: RuleRef(id_, PermissionKind.AGENT_TO_TOOL, "nhi:*", "tool:*", ("use",), "allow"), WORDS
)
LINKS = st.builds(
    lambda kind, subject, action, allowed, rules: Link(kind, subject, "o", action, allowed, None, rules),
    st.sampled_from(PermissionKind), WORDS, WORDS, st.booleans(), st.lists(RULE_REFS, max_size=2).map(tuple),
)  # fmt: skip
INPUTS = st.dictionaries(WORDS, st.one_of(WORDS, NUMBERS, st.booleans(), st.none(), st.just(object())), max_size=3)
FACTS = st.builds(lambda *given: Fact(*given), WORDS, st.sampled_from(["true", "false", "error"]), LINKS, INPUTS)
DECISIONS = st.builds(
    lambda allowed, revision, links, roles, deny, allow, facts: Decision(
        allowed, revision, links, roles=roles, would_deny=deny, would_allow=allow, facts=facts
    ),
    st.booleans(), WORDS, st.lists(LINKS, min_size=1, max_size=3).map(tuple), NAMED, NAMED, NAMED,
    st.lists(FACTS, max_size=3).map(tuple),
)  # fmt: skip
PRINCIPALS = st.builds(
    lambda name, grants: Principal(f"user:{name}", "idp", frozenset(grants), frozenset(grants)), WORDS, NAMED
)
CALLERS = st.builds(
    lambda *given: Caller(*given),
    st.lists(PRINCIPALS, min_size=1, max_size=2).map(tuple),
    st.lists(st.builds(lambda *given: Credential(*given), st.just("jwt"), WORDS, WORDS), max_size=2).map(tuple),
)
QUESTIONS = st.builds(
    lambda *given: Question(*given),
    st.sampled_from(["tool:github/search", "resource:files/file:///a?token=x", "nhi:planner", "tool:x", "tool:é/%s"]),
    WORDS,
    st.sampled_from(["", "github", "files", "é"]),
    st.sampled_from(["", "search", "file:///a?token=x", "%d"]),
    st.sampled_from([{}, ARGUMENTS, {"x": "\ud800"}]),
)
CALLS = st.builds(
    lambda version, upstream, method, asked, id_: Call("mcp", version, upstream, method, (asked,), id_),
    WORDS, st.sampled_from(["", "github", "files"]), WORDS, QUESTIONS, st.one_of(st.none(), WORDS, st.integers()),
)  # fmt: skip
STATES = st.builds(
    lambda name, limit, remaining, unit, charged: LimitState(name, limit, remaining, unit=unit, charged=charged),
    WORDS, NUMBERS, NUMBERS, st.sampled_from(["", "USD"]), NUMBERS,
)  # fmt: skip
KNOWN_AT_FIRST = st.fixed_dictionaries(
    {},
    optional={
        "caller": CALLERS, "call": CALLS, "decision": DECISIONS, "limits": st.lists(STATES, max_size=2).map(tuple),
        "charged": st.integers(0, 1), "upstream": WORDS, "method": WORDS,
        "excused": st.sampled_from([(), ("row:a", "é%s")]),
        "enforcement": st.sampled_from(["enforce", "shadow", "degraded"]), "names": st.just(Known()),
        "bytes_in": st.integers(0, 2**16), "task_id": WORDS, "request_id": st.one_of(WORDS, st.integers()),
    },
)  # fmt: skip
KNOWN_LATER = st.fixed_dictionaries(
    {},
    optional={
        "charged": st.integers(0, 1), "tool_error": st.booleans(), "redactions": st.integers(0, 3), "task_id": WORDS,
        "federation": st.just({"asked": 2}),
    },
)  # fmt: skip


@given(
    st.fixed_dictionaries(dict.fromkeys(("protocol", "peer"), WORDS)),
    st.fixed_dictionaries({}, optional=dict.fromkeys(("trace_id", "run_id", "thread_id"), WORDS)),
    KNOWN_AT_FIRST,
    KNOWN_LATER,
    st.booleans(),
    st.one_of(st.none(), st.sampled_from(Reason)),
    st.integers(0, 2**40),
    st.floats(0, 1e6),
)
@settings(max_examples=100, deadline=None)
def test_a_record_of_kept_segments_is_the_record_made_plainly(
    plain_folder: Path,
    always: dict[str, str],
    sometimes: dict[str, str],
    first: dict[str, Any],
    later: dict[str, Any],
    decides: bool,
    reason: Reason | None,
    bytes_out: int,
    took_s: float,
) -> None:
    path = plain_folder / "audit.jsonl"
    for each in plain_folder.iterdir():
        each.unlink()
    audit = open_audit(path, clear_arguments={"tool:github/search": ["/repo"]} if took_s < 1 else {})
    recording, expected = Recording(audit, **always), []
    for name, value in (sometimes | first).items():
        setattr(recording, name, value)
    for _ in range(2):
        assert isinstance(audit.clock, FakeClock)
        audit.clock.now += took_s
        recording.marks["policy"] = recording.now_s()
    if decides:
        with contextlib.suppress(Refusal):
            at_once(recording.decided())
            expected.append(("decision", plain_record.decided(recording)))
    for name, value in later.items():
        setattr(recording, name, value)
    recording.marks["upstream"] = recording.now_s()
    before = expected[0][1] if expected else None
    event = "refusal" if before is None and reason is not None else "outcome"
    if reason is None:
        at_once(recording.outcome(http_status=200, bytes_out=bytes_out))
    else:
        at_once(recording.refused(Refusal(reason), http_status=200, bytes_out=bytes_out))
    expected.append((event, plain_record.ended(recording, before, event, reason, bytes_out)))
    at_once(audit.close())
    end = BEGINNING.hash
    for line, (event, fields) in zip(path.read_bytes().splitlines(keepends=True), expected, strict=True):
        own = {name: value for name, value in orjson.loads(line).items() if name in ("id", "timestamp", "instance")}
        plain, end = seal(
            {**fields, "event": event, "seq": expected.index((event, fields)) + 1, **own, "prev_hash": end}
        )
        assert line == plain


@given(st.lists(st.tuples(st.text(max_size=600), st.integers(0, 10**9), st.integers(1, 10**9)), max_size=40))
def test_limits_that_were_charged_are_written_as_their_states_are(found: list[tuple[str, int, int]]) -> None:
    class Charged:
        counted: tuple[object, tuple[int, ...]] | None = None

        def __iter__(self) -> Iterator[LimitState]:
            assert self.counted is not None
            pairs = zip(found, self.counted[1], strict=True)
            return iter([LimitState(name, most, left) for (name, _, most), left in pairs])

    describer, charged = Describer(KEY), Charged()
    for spent in (0, 1):
        charged.counted = found, tuple([max(0, remaining - spent) for _, remaining, _ in found])
        for amount in (1, 0):
            assert describer.limits(charged, amount) == limits(tuple(charged), amount)
