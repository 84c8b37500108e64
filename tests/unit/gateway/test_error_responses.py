"""What does a caller hear when the answer is no? Reason by reason, and era by era.

`UPDATE_GOLDEN=1 pytest tests/unit/gateway/test_error_responses.py` writes `tests/golden/answers.json` anew; read the
diff then.
"""

import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from sidecar.errors import ANSWERS, LimitState, Reason, Refusal
from sidecar.gateway.error_responses import AnswerShape, DenyManner, ErrorResponse, error_body, facts_of, tell

GOLDEN = Path(__file__).parents[2] / "golden" / "answers.json"
AUTOMATIC = DenyManner()
STATELESS, SESSION, PLAIN = AnswerShape.STATELESS, AnswerShape.SESSION, AnswerShape.PLAIN
LIMIT = LimitState("rule:r1", 120, 0, 3600.0, 1_795_000_000.0)
SPENT = LimitState("budgets:nhi:*:usd:day", 5, 0.000001, 86400.0, 1_795_824_000.0, "usd", 0)
METADATA = "https://gw.example/.well-known/oauth-protected-resource/mcp/github"
LIMITS = {Reason.RATE_LIMITED, Reason.QUOTA_SPENT, Reason.BUDGET_SPENT}
LIMITS |= {Reason.TOO_MANY_CONCURRENT, Reason.TOO_MANY_REFUSALS}
DISCLOSURES: Any = ("reason", "kind", "hide")


DENIALS = [reason for reason, answer in ANSWERS.items() if answer.status == "permission_denied"]


def refusal_for(reason: Reason) -> Refusal:
    """A refusal with everything that its kind may carry."""
    if reason is Reason.UPSTREAM_LIMITED:
        return Refusal(reason, "it answered HTTP 429", retry_after_s=17.2)
    if reason in LIMITS:
        return Refusal(reason, limit=SPENT if reason is Reason.BUDGET_SPENT else LIMIT, retry_after_s=17.2)
    if reason in (Reason.BAD_CREDENTIAL, Reason.INSUFFICIENT_SCOPE):
        return Refusal(reason, challenge=f'error="{reason.value}"')
    if reason is Reason.VERSION_UNSUPPORTED:
        return Refusal(reason, data={"supported": ["2026-07-28"], "requested": "2027-01-01"})
    if reason is Reason.VERB_NOT_ALLOWED:
        return Refusal(reason, allow=("POST", "GET", "DELETE"))
    return Refusal(reason, "params.name must be a string" if reason is Reason.MALFORMED_CALL else "")


def told(
    refusal: Refusal, shape: AnswerShape, manner: DenyManner = AUTOMATIC, method: str = "tools/call"
) -> ErrorResponse:
    return tell(
        refusal, shape, decision_id="d1", request_id=7, method=method, manner=manner, resource_metadata=METADATA
    )


def whole(answer: ErrorResponse) -> dict[str, Any]:
    body = json.loads(answer.body)
    return {"status": answer.status, "type": answer.content_type, "headers": dict(answer.headers), "body": body}


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_is_told_in_every_era_as_agreed(reason: Reason) -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8")) if GOLDEN.exists() else {}
    answers = {shape.value: whole(told(refusal_for(reason), shape)) for shape in AnswerShape}
    if os.environ.get("UPDATE_GOLDEN"):
        golden[reason.value] = answers
        GOLDEN.write_text(json.dumps(dict(sorted(golden.items())), indent=1) + "\n", encoding="utf-8")
    assert golden[reason.value] == answers


def test_the_golden_answers_are_those_of_the_reasons_that_exist() -> None:
    assert json.loads(GOLDEN.read_text(encoding="utf-8")).keys() == {reason.value for reason in Reason}


# (stateless MCP, session MCP, JSON-RPC code, word of the original data models, which reasons).
STATUSES: list[tuple[int, int, int, str, str]] = json.loads(GOLDEN.with_name("reasons.json").read_text())
ROWS = [(Reason(word), row) for row in STATUSES for word in row[4].split()]
# In a live session a 4xx that answers a message stops its client; these alone are told with one.
STAYS_HTTP = {
    *(Reason.UNAUTHENTICATED, Reason.BAD_CREDENTIAL, Reason.CREDENTIAL_CONFLICT, Reason.CLIENT_UNKNOWN),
    *(Reason.INSUFFICIENT_SCOPE, Reason.ORIGIN_REFUSED, Reason.SESSION_UNKNOWN),
    *(Reason.TOO_LARGE, Reason.UNSUPPORTED_MEDIA_TYPE),  # there is no message
    *(Reason.HEADER_MISMATCH, Reason.VERSION_UNSUPPORTED),  # as MCP says of its headers
    *(Reason.ROUTE_UNKNOWN, Reason.VERB_NOT_ALLOWED, Reason.NOT_CANCELABLE),  # at other addresses
}


def test_the_rows_of_the_contract_name_every_reason() -> None:
    assert {reason for reason, _ in ROWS} | {Reason.BAD_ARGUMENTS} == set(Reason)


@pytest.mark.parametrize(("reason", "row"), ROWS)
def test_status_and_code_are_those_of_the_contract(reason: Reason, row: tuple[int, int, int, str, str]) -> None:
    stateless, session, code, seed, _ = row
    for shape, status in ((STATELESS, stateless), (SESSION, session), (PLAIN, stateless)):
        answer = whole(told(refusal_for(reason), shape))
        assert answer["status"] == status
        assert answer["type"] == ("application/problem+json" if shape is PLAIN else "application/json")
        facts = answer["body"] if shape is PLAIN else answer["body"]["error"]["data"]
        assert (facts["reason"], facts["error_code"], facts["decision_id"]) == (reason.value, seed, "d1")
        if shape is not PLAIN:
            assert answer["body"]["error"]["code"] == code


@pytest.mark.parametrize("reason", Reason)
def test_a_live_session_goes_on(reason: Reason) -> None:
    answer = whole(told(refusal_for(reason), AnswerShape.LIVE))
    assert answer["status"] == (ANSWERS[reason].http if reason in STAYS_HTTP else 200)
    assert answer["body"]["id"] == 7


@pytest.mark.parametrize("shape", [STATELESS, SESSION])
@pytest.mark.parametrize("deny_style", ["auto", "http", "jsonrpc", "tool_result"])
def test_bad_arguments_are_the_tools_own_error_in_every_style(shape: AnswerShape, deny_style: Any) -> None:
    data = {"pointer": "/arguments/amount", "keyword": "maximum"}
    refusal = Refusal(Reason.BAD_ARGUMENTS, "/arguments/amount does not satisfy maximum", data=data)
    answer = whole(told(refusal, shape, DenyManner(deny_style)))
    result = answer["body"]["result"]
    assert (answer["status"], result["isError"], "error" in answer["body"]) == (200, True, False)
    assert "/arguments/amount" in result["content"][0]["text"]
    facts = result["_meta"]["sidecar/refusal"]
    assert (facts["reason"], facts["error_code"], facts["keyword"]) == ("bad-arguments", "InvalidParameters", "maximum")
    assert result.get("resultType") == ("complete" if shape is STATELESS else None)


def test_codes_of_our_own_lie_outside_of_every_reserved_range() -> None:
    """JSON-RPC reserves -32768 to -32000, of which MCP assigns some; those we use are theirs, with their meaning."""
    assigned = {-32600, -32602, -32020, -32022}
    assert all(answer.code in assigned or 400 <= answer.code < 600 for answer in ANSWERS.values())


# --- ids ------------------------------------------------------------------------------------------------------------


@given(
    st.none() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(st.characters(exclude_categories=["Cs"])),
    st.sampled_from([Reason.DENIED_BY_RULE, Reason.BAD_ARGUMENTS, Reason.RATE_LIMITED]),
    st.sampled_from([STATELESS, SESSION]),
)
def test_an_id_comes_back_as_it_was(request_id: str | int | None, reason: Reason, shape: AnswerShape) -> None:
    body = json.loads(tell(Refusal(reason), shape, decision_id="d", request_id=request_id).body)
    assert (body["id"], type(body["id"]), body["jsonrpc"]) == (request_id, type(request_id), "2.0")


def test_a_parse_error_keeps_the_code_of_its_own() -> None:
    assert whole(told(Refusal(Reason.MALFORMED_CALL, code=-32700), STATELESS))["body"]["error"]["code"] == -32700


# --- headers --------------------------------------------------------------------------------------------------------


def test_a_challenge_names_the_metadata_and_what_was_wrong_where_reasons_are_told() -> None:
    refusal = Refusal(Reason.INSUFFICIENT_SCOPE, challenge='error="insufficient_scope", scope="a b"')
    expected = f'Bearer resource_metadata="{METADATA}", error="insufficient_scope", scope="a b"'
    assert told(refusal, STATELESS).headers["WWW-Authenticate"] == expected
    for bare, challenge in ((Refusal(Reason.UNAUTHENTICATED), ""), (refusal, f" {refusal.challenge}")):
        assert tell(bare, PLAIN, decision_id="d").headers["WWW-Authenticate"] == f"Bearer{challenge}"
    challenge = 'error="invalid_token", error_description="its time is over", scope="a"'
    for disclosure in DISCLOSURES:
        answer = told(Refusal(Reason.BAD_CREDENTIAL, challenge=challenge), PLAIN, DenyManner(disclosure=disclosure))
        header = answer.headers["WWW-Authenticate"]
        assert ("its time is over" in header) == (disclosure == "reason")
        assert 'error="invalid_token"' in header and 'scope="a"' in header


@pytest.mark.parametrize(
    ("retry_after_s", "header", "fact"),
    [(None, "1", None), (0.0, "1", 0), (0.2, "1", 1), (1.0, "1", 1), (59.01, "60", 60)],
)
def test_seconds_are_whole_and_never_too_few(retry_after_s: float | None, header: str, fact: int | None) -> None:
    answer = told(Refusal(Reason.RATE_LIMITED, retry_after_s=retry_after_s), STATELESS)
    assert answer.headers["Retry-After"] == header
    assert json.loads(answer.body)["error"]["data"].get("retry_after_s") == fact


def test_a_limit_is_named_where_the_operator_lets_it_be() -> None:
    limit = LimitState("principals:role:interns:hour", 500, 0)
    for shape, disclosure in itertools.product(AnswerShape, DISCLOSURES):
        answer = told(Refusal(Reason.RATE_LIMITED, limit=limit), shape, DenyManner(disclosure=disclosure))
        facts, named = facts_in(json.loads(answer.body)), disclosure == "reason"
        assert facts.get("limit") == ("principals:role:interns:hour" if named else None)
        assert (facts["most"], b"interns" in answer.body, "reset_at" in facts) == (500, named, False)
        assert answer.headers["RateLimit-Policy"] == '"limit";q=500', "without a window or an end"
        assert answer.headers["RateLimit"] == '"limit";r=0;t=0'


# --- the operator's manner ------------------------------------------------------------------------------------------

CARRIED = [reason for reason, answer in ANSWERS.items() if answer.http != answer.session_http]
NOT_CARRIED = [reason for reason in Reason if reason not in CARRIED and reason is not Reason.BAD_ARGUMENTS]


@pytest.mark.parametrize("reason", CARRIED)
@pytest.mark.parametrize("shape", [STATELESS, SESSION])
def test_deny_style_decides_how_what_the_protocol_can_carry_is_told(reason: Reason, shape: AnswerShape) -> None:
    http = ANSWERS[reason].http
    automatic = http if shape is STATELESS else 200
    if (shape, http) == (SESSION, 404):  # which in a session means that the session is over
        http = 200
    expected: dict[Any, tuple[int, str]] = {
        "auto": (automatic, "error"),
        "http": (http, "error"),
        "jsonrpc": (200, "error"),
        "tool_result": (200, "result"),
    }
    for style, (status, member) in expected.items():
        answer = whole(told(refusal_for(reason), shape, DenyManner(style)))
        assert (answer["status"], member in answer["body"]) == (status, True)


@pytest.mark.parametrize("shape", [STATELESS, SESSION])
def test_only_a_tool_call_has_a_tool_result(shape: AnswerShape) -> None:
    for method in ("prompts/get", "tools/list", "initialize", ""):
        answer = whole(told(Refusal(Reason.EXPIRED), shape, DenyManner("tool_result"), method))
        assert (answer["status"], answer["body"]["error"]["code"]) == (200, 403)


@pytest.mark.parametrize("reason", NOT_CARRIED)
@pytest.mark.parametrize("deny_style", ["http", "jsonrpc", "tool_result"])
def test_deny_style_changes_nothing_where_the_status_is_the_answer(reason: Reason, deny_style: Any) -> None:
    for shape in AnswerShape:
        assert told(refusal_for(reason), shape, DenyManner(deny_style)) == told(refusal_for(reason), shape)


@pytest.mark.parametrize("reason", DENIALS)
def test_what_the_operator_keeps_back_stands_nowhere_in_the_answer(reason: Reason) -> None:
    refusal = Refusal(reason, "a detail that tells", data={"telling": "data"})
    telling = (f'"{reason.value}"', f":{reason.value}", ANSWERS[reason].message, "a detail that tells", "telling")
    styles: Any = ("auto", "tool_result")
    for shape, style in itertools.product(AnswerShape, styles):
        in_full, kind, hide = (
            told(refusal, shape, DenyManner(style, disclosure)).body.decode() for disclosure in DISCLOSURES
        )
        assert reason.value in in_full
        assert not any(word in kind + hide for word in telling)
        assert '"reason":"denied"' in kind and not any(word in hide for word in ("reason", "error_code"))
        assert all('"decision_id":"d1"' in body for body in (kind, hide))


def test_denials_cannot_be_told_apart_where_reasons_are_kept_back() -> None:
    # A method that is not there is MCP's to tell, and says nothing of policy.
    carried = [reason for reason in DENIALS if reason in CARRIED and reason is not Reason.METHOD_UNKNOWN]
    for shape, disclosure in itertools.product(AnswerShape, ("kind", "hide")):
        manner: Any = DenyManner(disclosure=disclosure)
        answers = [told(Refusal(reason), shape, manner) for reason in carried]
        assert all(answer == answers[0] for answer in answers)


@pytest.mark.parametrize("reason", [reason for reason in Reason if reason not in DENIALS])
def test_what_is_no_denial_is_told_whatever_is_kept_back(reason: Reason) -> None:
    """All but the name of a limit."""
    for shape, disclosure in itertools.product(AnswerShape, ("kind", "hide")):
        manner: Any = DenyManner(disclosure=disclosure)
        kept_back, in_full = whole(told(refusal_for(reason), shape, manner)), whole(told(refusal_for(reason), shape))
        assert (facts_in(in_full["body"]).pop("limit", None) is not None) == (reason in LIMITS)
        assert kept_back == in_full


def facts_in(body: dict[str, Any]) -> Any:
    """What a refusal carries: in plain HTTP, in an error or in a tool's result."""
    if "error" in body:
        return body["error"]["data"]
    return body["result"]["_meta"]["sidecar/refusal"] if "result" in body else body


@pytest.mark.parametrize("disclosure", DISCLOSURES)
def test_inside_of_a_stream_the_same_error_is_told(disclosure: Any) -> None:
    for reason in {*Reason} - {Reason.BAD_ARGUMENTS}:
        refusal, manner = refusal_for(reason), DenyManner(disclosure=disclosure)
        assert error_body(refusal, 7, facts_of(refusal, "d1", manner)) == told(refusal, SESSION, manner).body


@pytest.mark.parametrize("reason", Reason)
def test_a_rule_is_never_told(reason: Reason) -> None:
    refusal = Refusal(reason, limit=LimitState("rule:researcher-reads-github", 1, 0, 60.0), retry_after_s=1.0)
    for shape in AnswerShape:
        answer = told(refusal, shape)
        assert "researcher" not in answer.body.decode() + str(answer.headers)
