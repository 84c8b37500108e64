"""Do headers and body say the same, and in which era? (BL-050) The official SDK is the judge."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from mcp.shared import inbound as sdk

from sidecar.errors import Reason, Refusal
from sidecar.protocols.jsonrpc import Request
from sidecar.protocols.mcp import eras
from sidecar.protocols.mcp.eras import META_VERSION, SESSION_VERSIONS, STATELESS_VERSIONS, VERSION_HEADER
from tests import wire
from tests.tables import tables
from tests.unit.protocols.asking import ENVELOPE_META, STATELESS

# --- eras -----------------------------------------------------------------------------------------------------------

SAID = (None, "", *SESSION_VERSIONS, *STATELESS_VERSIONS, "2024-10-07", "2027-01-01", "2026-07-28 ", "latest", "1")
ABSENT = type("Absent", (), {"__repr__": lambda self: "absent"})()


def expected_era(headers: tuple[str, ...], body: object) -> tuple[str, str]:
    """The rule, said anew: one header at most; a body that speaks must be echoed; what is left must be known."""
    if len(headers) > 1:
        return "refused", "-32020"
    header = headers[0] if headers else None
    if body is ABSENT:
        if header is None:
            return "session", ""
        if header in STATELESS_VERSIONS:
            return "refused", "-32602"
        return ("session", header) if header in SESSION_VERSIONS else ("refused", "-32022")
    if header is None or body != header:
        return "refused", "-32020"
    return ("stateless", header) if header in STATELESS_VERSIONS else ("refused", "-32022")


def era_of(headers: tuple[str, ...], params: dict[str, Any]) -> tuple[str, str]:
    try:
        era, version = eras.version_of({VERSION_HEADER: headers}, Request(1, "tools/list", params))
    except Refusal as refusal:
        return "refused", str(refusal.code)
    return era.value, version


@pytest.mark.parametrize("body", [ABSENT, *SAID, 0, True, [], ["2026-07-28"], {}], ids=repr)
def test_the_era_follows_from_header_and_body_together(body: object) -> None:
    params = {} if body is ABSENT else {"_meta": {META_VERSION: body}}
    headers = [(), *((said,) for said in SAID if said is not None)]
    headers += [(one, other) for (one,) in headers[1:] for (other,) in headers[1:]]
    for lines in headers:
        assert era_of(lines, params) == expected_era(lines, body)
        if body is ABSENT:
            assert era_of(lines, {"_meta": {}}) == era_of(lines, params)


def test_an_unsupported_version_is_told_with_those_that_are() -> None:
    every = ["2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"]
    for params, supported in (({}, every), ({"_meta": {META_VERSION: "2027-01-01"}}, ["2026-07-28"])):
        with pytest.raises(Refusal) as caught:
            eras.version_of({VERSION_HEADER: ("2027-01-01",)}, Request(1, "tools/list", params))
        assert caught.value.data == {"supported": supported, "requested": "2027-01-01"}


@pytest.mark.parametrize("header", ["2099-01-01", "2025-06-18", "2026-07-28", "nonsense", ""])
def test_initialize_negotiates_by_its_body_whatever_its_header_says(header: str) -> None:
    head, message = {VERSION_HEADER: (header,)}, Request(1, "initialize", {"protocolVersion": "2025-06-18"})
    assert eras.version_of(head, message) == ("session", header if header == "2025-06-18" else "")
    assert not eras.names_stateless(head, message)


@pytest.mark.parametrize("row", wire.table("routing"), ids=lambda row: row["case"])
def test_headers_and_body_meet_the_verdict_of_the_corpus(row: dict[str, Any]) -> None:
    """BL-050. Who speaks of the stateless era is answered in it, with headers that are made anew from the body."""
    assert verdict_on(row["headers"], row["method"], row["params"]) == row["verdict"]
    message = Request(1, row["method"], row["params"])
    if row["verdict"] in ("session", "stateless"):
        assert eras.names_stateless(lines_of(row["headers"]), message) == (row["verdict"] == "stateless")
    if row["verdict"] == "stateless":
        name = row["params"].get("name", row["params"].get("uri"))
        made = [("Mcp-Method", row["method"]), *([("Mcp-Name", name)] if name else [])]
        assert eras.routing_headers(message.method, eras.name_of(message)) == made


def lines_of(headers: list[list[str]]) -> dict[str, tuple[str, ...]]:
    lines: dict[str, tuple[str, ...]] = {}
    for name, value in headers:
        lines[name.lower()] = (*lines.get(name.lower(), ()), value)
    return lines


def verdict_on(headers: list[list[str]], method: str, params: dict[str, Any]) -> str:
    head, message = lines_of(headers), Request(1, method, params)
    try:
        era, _ = eras.version_of(head, message)
        if era is STATELESS:
            eras.check_routing(head, message)
    except Refusal as refusal:
        return str(refusal.code)
    return era.value


heads = st.sampled_from(
    ["read", "Read", "", "x", *(f"=?base64?{text}?=" for text in ("cmVhZA==", "cmVhZA=", "cmVhZB==", "")), "=?base64?="]
)


@settings(max_examples=60)
@given(
    version=st.none() | st.sampled_from(["2026-07-28", "2025-11-25"]),
    method=st.none() | st.sampled_from(["tools/call", "tools/list", "resources/read"]),
    name=st.none() | heads,
    body_method=st.sampled_from(["tools/call", "tools/list", "prompts/get", "resources/read"]),
    body_name=heads,
)
def test_we_agree_with_the_official_sdk_on_headers(
    version: str | None, method: str | None, name: str | None, body_method: str, body_name: str
) -> None:
    key = sdk.NAME_BEARING_METHODS.get(body_method, "name")
    body = {"jsonrpc": "2.0", "id": 1, "method": body_method, "params": {key: body_name, "_meta": ENVELOPE_META}}
    given_ = {"mcp-protocol-version": version, "mcp-method": method, "mcp-name": name}
    headers = {header: value for header, value in given_.items() if value is not None}
    theirs = sdk.classify_inbound_request(body, headers=headers)
    ours = verdict_on([[header, value] for header, value in headers.items()], body_method, body["params"])
    assert ours == (str(theirs.code) if isinstance(theirs, sdk.InboundLadderRejection) else "stateless")


# --- mirrored parameters --------------------------------------------------------------------------------------------

SCHEMA = tables("protocols/mcp_headers")["schema"]
DECLARED = {"Region": ("region",), "Size": ("size",), "Dry-Run": ("deep", "dry")}


def mirrored(headers: Mapping[str, tuple[str, ...]], arguments: Mapping[str, Any]) -> list[tuple[str, str]] | None:
    try:
        lines = {f"mcp-param-{name}": values for name, values in headers.items()}
        eras.check_parameter_headers(lines, DECLARED, arguments)
        return eras.parameter_headers(DECLARED, arguments)
    except Refusal as refusal:
        assert refusal.reason is Reason.HEADER_MISMATCH
        return None


def test_parameter_headers_are_compared_and_made_anew() -> None:
    arguments = {"region": "eu", "size": 42, "deep": {"dry": True}}
    made = [("Mcp-Param-Region", "eu"), ("Mcp-Param-Size", "42"), ("Mcp-Param-Dry-Run", "true")]
    assert mirrored({"region": ("eu",), "size": ("42",), "dry-run": ("true",)}, arguments) == made
    assert mirrored({"region": ("=?base64?ZXU=?=",), "size": ("42.0",), "dry-run": ("true",)}, arguments) == made
    assert mirrored({"region": ("eu",), "size": ("0042",), "dry-run": ("true",), "other": ("x",)}, arguments) == made
    assert mirrored({}, {}) == mirrored({}, {"region": None, "size": None, "deep": {"dry": None}}) == []
    assert mirrored({}, {"deep": None}) == mirrored({}, {"deep": {}}) == mirrored({}, {"deep": []}) == []


LONG = ([{"region": ["e" * 10_240]}, {"region": "e" * 10_240}], [{"size": ["9" * 4301]}, {"size": 1}])


@pytest.mark.parametrize(("headers", "arguments"), [*LONG, *wire.table("parameter_headers")["mismatches"]])
def test_a_parameter_header_that_says_something_else_is_a_mismatch(
    headers: dict[str, list[str]], arguments: dict[str, Any]
) -> None:
    assert mirrored({name: tuple(lines) for name, lines in headers.items()}, arguments) is None


integers = st.integers(-(2**63), 2**64 - 1) | st.integers(-3, 3)
mirrored_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    ["=?base64?YQ==?=", " a"]
)


@settings(max_examples=60)
@given(
    region=st.none() | mirrored_texts,
    size=st.none() | integers | st.sampled_from([42.0, -0.0]),
    dry=st.none() | st.booleans(),
    lies=st.dictionaries(
        st.sampled_from(["Region", "Size", "Dry-Run"]),
        st.sampled_from(["eu", "1", "1.0", "1.5", "-0", "0.00", "true", "True", "", "=?base64?YQ==?=", "42"]),
        max_size=1,
    ),
)
def test_we_agree_with_the_official_sdk_on_parameter_headers(
    region: str | None, size: float | None, dry: bool | None, lies: dict[str, str]
) -> None:
    arguments = {"region": region, "size": size, "deep": {"dry": dry}}
    sent = sdk.mcp_param_headers(sdk.x_mcp_header_map(SCHEMA), arguments)
    sent |= {f"Mcp-Param-{name}": value for name, value in lies.items()}
    lines = {name.lower().removeprefix("mcp-param-"): (value,) for name, value in sent.items()}
    made = mirrored(lines, arguments)
    assert (made is None) == (sdk.validate_mcp_param_headers(SCHEMA, arguments, sent) is not None)
    if made is not None:
        assert sdk.validate_mcp_param_headers(SCHEMA, arguments, dict(made)) is None


@given(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(["=?base64??=", "=?base64?=", ""])
)
def test_an_encoded_header_is_safe_and_means_the_value_to_the_sdk(value: str) -> None:
    encoded = eras.encoded_header(value)
    assert sdk.decode_header_value(encoded) == value
    assert encoded.isascii() and encoded.isprintable() and encoded == encoded.strip() != ""
