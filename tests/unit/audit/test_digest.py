"""Do the keyed digests prove arguments, and give nothing away?"""

import hashlib
import hmac
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
import rfc8785
from hypothesis import given, settings, strategies as st

from sidecar.audit.digest import AuditKey, Digests, load_key, load_or_make_key
from sidecar.errors import Reason, Refusal, SettingsError
from sidecar.protocols.canonical import canonical_json as canonical
from tests.drawn import containers
from tests.peers import recompute_audit as peer
from tests.unit.audit.scenes import KEY, OTHER_KEY, written_key

PROGRAM = Path(peer.__file__)

characters = st.characters(exclude_categories=["Cs"])
names = st.text(characters, max_size=6) | st.text(st.sampled_from("a\U00010000\uffff\ue000é"), max_size=3)
safe_integers = st.integers(-(2**53) + 1, 2**53 - 1)
all_integers = st.integers(-(2**63), 2**64 - 1)
floats = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([-0.0, 1e21, 1e-7, 5e-324, 1.7e308])


def json_of(integers: st.SearchStrategy[int]) -> st.SearchStrategy[Any]:
    scalars = st.none() | st.booleans() | integers | floats | st.text(characters, max_size=20)
    return st.recursive(scalars, containers(names, 4))


@given(json_of(safe_integers))
@settings(max_examples=60)
def test_the_canonical_form_is_that_of_rfc_8785(value: Any) -> None:
    assert canonical(value) == rfc8785.dumps(value)


@given(json_of(all_integers))
def test_a_second_program_writes_the_same_canonical_form(value: Any) -> None:
    assert canonical(value).decode() == peer.canonical(value)


def nested(depth: int, leaf: Any) -> Any:
    for _ in range(depth):
        leaf = [leaf]
    return leaf


@pytest.mark.parametrize(
    "value",
    [
        {"lone": "\ud800"},
        {"\udfff": 1},
        {"\udfff": 1.5},
        2**64,
        -(2**63) - 1,
        {"big": [2**64, 0.5]},
        float("nan"),
        {"inf": float("inf")},
        {1: 2},
        {1: 2.5},
        {"bytes": b"x"},
        {"set": {1.5}},
        nested(5000, 1),
        nested(5000, 1.5),
    ],
)
def test_what_json_cannot_hold_is_refused_as_malformed(value: Any) -> None:
    with pytest.raises(Refusal) as refused:
        Digests(KEY, "").args_hash("", "", value)
    assert refused.value.reason is Reason.MALFORMED_CALL


@given(st.binary(min_size=1, max_size=200), st.binary(max_size=200), st.binary(max_size=200))
def test_a_digest_in_steps_is_hmac_sha_256(secret: bytes, beginning: bytes, rest: bytes) -> None:
    mac = AuditKey.from_secret(secret).begin(beginning)
    expected = hmac.new(secret, beginning + rest, "sha256").hexdigest()
    assert mac(rest) == mac(rest) == expected


def test_parts_cannot_flow_into_one_another() -> None:
    domains = [("a", "bc", ""), ("ab", "c", ""), ("", "abc", ""), ("", "ab", "c"), ("", "a", "bc")]
    hashes = {Digests(KEY, namespace).args_hash(action, object_, {}) for namespace, action, object_ in domains}
    assert len(hashes) == len(domains)


def test_a_dictionary_attack_without_the_key_finds_nothing() -> None:
    guesses = [{"confirm": True}, {"confirm": False}, {}, *({"pin": n} for n in range(200))]
    target = Digests(KEY, "").args_hash("tools/call", "tool:bank/pay", {"confirm": True})
    framed = b"".join(
        len(part).to_bytes(4, "big") + part for part in (b"sidecar/args/1", b"", b"tools/call", b"tool:bank/pay")
    )
    tried = set()
    for guess in guesses:
        form = canonical(guess)
        tried |= {hashlib.sha256(form).hexdigest(), hashlib.sha256(framed + form).hexdigest()}
        tried |= {hmac.digest(public.encode(), form, "sha256").hex() for public in ("", KEY.id, "sidecar")}
        tried.add(Digests(OTHER_KEY, "").args_hash("tools/call", "tool:bank/pay", guess))
    assert target not in tried
    assert target == Digests(KEY, "").args_hash("tools/call", "tool:bank/pay", {"confirm": True})


def test_facts_compare_within_a_namespace_and_not_across() -> None:
    corp, corp_again, rival = (Digests(KEY, namespace) for namespace in ("corp", "corp", "rival"))
    assert corp.fact_hash("acme/site") == corp_again.fact_hash("acme/site")
    assert corp.fact_hash("acme/site") != rival.fact_hash("acme/site")
    assert len(corp.fact_hash(1)) == 32


def test_a_second_program_computes_the_same_args_hash(tmp_path: Path) -> None:
    key, chance = load_or_make_key(tmp_path / "audit.key"), random.Random(7)
    values = [None, True, -0.0, 1e21, 1.5, 2**63, 2**53 + 1, "é\u2028\x00", "\U0001f600", [], {}, [{"x": [1e-9]}]]
    asked = {"action": "tools/call", "object": "tool:github/é"}
    cases = []
    for _ in range(200):
        names = chance.sample(["a", "é", "\U00010000", "\uffff", ""], 3)
        arguments = {name: chance.choice(values) for name in names}
        cases.append({"namespace": chance.choice(["", "corp"]), **asked, "arguments": arguments})
    command = [sys.executable, "-I", PROGRAM, "args", tmp_path / "audit.key"]
    told = subprocess.run(command, input=b"\n".join(map(orjson.dumps, cases)), capture_output=True, check=True)
    assert told.stdout.decode().split() == [
        Digests(key, case["namespace"]).args_hash(case["action"], case["object"], case["arguments"]) for case in cases
    ]


def test_a_key_is_made_once_and_only_the_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "data" / "audit.key"
    made = load_or_make_key(path)
    assert load_or_make_key(path) == made
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["audit.key"]
    assert made.secret.hex() not in repr(made)


def test_two_starts_at_once_end_with_one_key(tmp_path: Path) -> None:
    path = tmp_path / "audit.key"
    theirs, ours = (hashlib.sha256(who).digest() for who in (b"theirs", b"ours"))

    def entropy(count: int) -> bytes:
        if not path.exists():
            load_or_make_key(path, entropy=lambda n: theirs[:n])  # the other one is faster
        return ours[:count]

    assert load_or_make_key(path, entropy=entropy).secret == theirs


@pytest.mark.parametrize("content", ["00" * 32, "0123456789abcdef" * 4, bytes(range(32)).hex()])
def test_a_sample_is_no_key_to_write_with_and_still_checks_what_was_written(tmp_path: Path, content: str) -> None:
    path = written_key(tmp_path / "audit.key", content)
    with pytest.raises(SettingsError, match="could be guessed"):
        load_or_make_key(path)
    assert load_key(path).secret.hex() == content


def test_the_group_of_a_key_may_read_it_as_secrets_are_mounted(tmp_path: Path) -> None:
    path = tmp_path / "audit.key"
    key = load_or_make_key(path)
    path.chmod(0o440)
    assert load_or_make_key(path).id == key.id


@pytest.mark.parametrize("mode", [0o604, 0o660, 0o644, 0o610])
def test_a_key_that_others_can_touch_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "audit.key"
    load_or_make_key(path)
    path.chmod(mode)
    with pytest.raises(SettingsError, match="open to others"):
        load_or_make_key(path)


@pytest.mark.parametrize("content", [b"", b"00ff", b"not hex at all" * 9, b"\xff" * 64, b"zz" * 32])
def test_what_is_no_key_is_refused_and_never_shown(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "audit.key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(SettingsError) as refused:
        load_key(path)
    assert refused.value.faults[0].code == "A101"
    assert not content or content.decode("latin-1") not in str(refused.value)


def test_a_folder_in_place_of_a_key_is_the_operators_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="is not a regular file"):
        load_or_make_key(tmp_path)


def test_the_key_id_tells_nothing_but_names_the_secret() -> None:
    secret = os.urandom(32)
    assert AuditKey.from_secret(secret) == AuditKey.from_secret(secret)
    assert AuditKey.from_secret(secret).id != AuditKey.from_secret(secret[::-1]).id
    assert len(KEY.id) == 16 and KEY.id == peer.key_id_of(KEY.secret)
