"""Who is disabled, by which file and which turn of the switch, and which of two turns is the newer?"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.errors import PolicyError, Reason, Refusal, SettingsError
from sidecar.gateway.kill_switch import (
    LEDGER_FILE,
    Disabled,
    KillSwitch,
    SwitchEntry,
    SwitchError,
    SwitchLedger,
    ledger,
    load_disabled,
)
from sidecar.gateway.kill_switch.entries import is_name, is_pattern
from sidecar.gateway.kill_switch.switch_versions import (
    FORGOTTEN_AFTER_S,
    MAX_NUMBER,
    SwitchVersion,
    decode,
    encode,
    flip_from,
)
from sidecar.vocabulary import Call, Chain, Principal, Question

NOW_S = 1_800_000_000.0


def chain(*names: str) -> Chain:
    return tuple(Principal(name) for name in names)


def call(*objects: str, upstream: str = "github") -> Call:
    return Call("mcp", "", upstream, "tools/call", tuple(Question(name, "tools/call", upstream) for name in objects))


# --- entries --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "touched"),
    [
        ("user:alice", True),
        ("nhi:planner", True),
        ("nhi:github", True),
        ("nhi:writer", True),
        ("nhi:*", True),
        ("user:al*", True),
        ("user:bob", False),
        ("user:a", False),
        ("nhi:github/x", False),
        ("user:*z", False),
        ("nhi:search", False),
    ],
)
def test_a_call_touches_its_chain_its_server_and_the_agents_it_is_for(name: str, touched: bool) -> None:
    disabled = Disabled((SwitchEntry(name, "switch"),))
    asked = chain("user:alice", "nhi:planner"), call("tool:github/search", "nhi:writer")
    assert (disabled.touched_by(*asked, NOW_S) is not None) == touched
    if touched:
        with pytest.raises(Refusal) as refused:
            disabled.refuse(*asked, NOW_S)
        assert refused.value.reason is Reason.PRINCIPAL_DISABLED and name not in str(refused.value)
    else:
        disabled.refuse(*asked, NOW_S)


def test_an_entry_that_is_over_hides_none_that_is_not() -> None:
    over, lasting = SwitchEntry("nhi:planner", "a", until=NOW_S), SwitchEntry("nhi:pl*", "b", until=NOW_S + 1)
    for entries in ((over, lasting), (lasting, over)):
        assert Disabled(entries).find("nhi:planner", NOW_S) == lasting
        assert Disabled(entries).find("nhi:planner", NOW_S + 1) is None
        assert Disabled(entries).in_force(NOW_S) == (lasting,)


@pytest.mark.parametrize(
    ("text", "name", "pattern"),
    [
        ("nhi:planner", True, True),
        ("user:corp/alice", True, True),
        ("nhi:*", False, True),
        ("user:corp/*", False, True),
        ("*", False, False),
        ("role:oncall", False, False),
        ("anonymous", False, False),
        ("nhi:", False, False),
        ("nhi:a b", False, False),
        ("nhi:a|b", False, False),
        ("nhi:a,b", False, False),
        ("nhi:a'b", False, False),
        ("nhi:" + "x" * 257, False, False),
    ],
)
def test_a_name_is_one_principal_and_a_pattern_one_kind(text: str, name: bool, pattern: bool) -> None:
    assert (is_name(text), is_pattern(text)) == (name, pattern)


# --- the file -------------------------------------------------------------------------------------------------------


def file(folder: Path, *entries: str, head: str = "version: 1") -> Path:
    path = folder / "disabled.yaml"
    path.write_text(f"{head}\ndisabled:\n" + "".join(f"  - {entry}\n" for entry in entries))
    return path


def test_the_file_names_principals_and_where_it_does(tmp_path: Path) -> None:
    path = file(tmp_path, "nhi:planner", '{principal: "user:*", reason: Incident 12, until: 2027-01-15T08:00:00Z}')
    assert load_disabled(path).entries == (
        SwitchEntry("nhi:planner", f"{path}:3"),
        SwitchEntry("user:*", f"{path}:4", "Incident 12", 1_800_000_000.0),
    )
    assert load_disabled(tmp_path / "none.yaml").entries == ()


FAULTS = {
    "planner": ("disabled.yaml:3:5", "this names no principal"),
    "role:oncall": ("disabled.yaml:3:5", "roles cannot be disabled"),
    '"*"': ("disabled.yaml:3:5", "this names no principal"),
    "{principal: nhi:x, why: because}": ("disabled.yaml:3:24", 'unknown key "why"'),
    "{reason: because}": ("disabled.yaml:3", 'the key "principal" is missing'),
    "{principal: nhi:x, until: tomorrow}": ("disabled.yaml:3:31", "no RFC 3339 time"),
    "{principal: nhi:x, until: 2027-01-15T08:00:00}": ("disabled.yaml:3:31", "no RFC 3339 time"),
    "nhi:x\n  - nhi:x": ("disabled.yaml:4:5", "stands here twice"),
    "7": ("disabled.yaml:3:5", "expected a mapping"),
}


@pytest.mark.parametrize(("entry", "expected"), FAULTS.items(), ids=FAULTS)
def test_a_fault_in_the_file_has_its_place(entry: str, expected: tuple[str, str], tmp_path: Path) -> None:
    with pytest.raises(PolicyError) as raised:
        load_disabled(file(tmp_path, entry))
    where, what = expected
    assert where in str(raised.value) and what in str(raised.value)


def test_a_link_that_leads_nowhere_is_a_fault_and_disables_nobody_by_silence(tmp_path: Path) -> None:
    (tmp_path / "disabled.yaml").symlink_to(tmp_path / "gone.yaml")
    with pytest.raises(PolicyError, match=r"disabled\.yaml: error\[Y001\]: cannot be read"):
        load_disabled(tmp_path / "disabled.yaml")


def test_an_empty_file_is_a_fault_and_an_empty_list_is_not(tmp_path: Path) -> None:
    (tmp_path / "disabled.yaml").write_text("version: 1\ndisabled: []\n")
    assert load_disabled(tmp_path / "disabled.yaml").entries == ()
    (tmp_path / "disabled.yaml").write_text("")
    with pytest.raises(PolicyError, match="empty"):
        load_disabled(tmp_path / "disabled.yaml")


# --- flips ----------------------------------------------------------------------------------------------------------

flips = st.builds(
    SwitchVersion,
    principal=st.sampled_from(["nhi:a", "nhi:b", "user:corp/c"]),
    disabled=st.booleans(),
    number=st.integers(1, 4),
    reason=st.sampled_from(["", "Incident 12", '{"x":1}']),
    until=st.none() | st.sampled_from([NOW_S, NOW_S + 0.5, NOW_S + 100]),
    by=st.sampled_from(["admin:operator", "local"]),
    at=st.just(NOW_S),
)


@given(flips)
def test_a_flip_is_read_as_it_was_written(flip: SwitchVersion) -> None:
    assert decode(encode(flip)) == flip
    assert encode(flip).startswith(flip.rank) and len(flip.rank) == 31 and flip.rank.isdecimal()


@given(st.lists(flips, max_size=8), st.randoms())
def test_replicas_that_heard_the_same_agree_in_whatever_order(heard: list[SwitchVersion], random: Any) -> None:
    """Up to the words: of two flips of one rank, each says the same of who is disabled."""
    one, other = SwitchLedger(Path("one")), SwitchLedger(Path("other"))
    one.take(heard)
    shuffled = list(heard)
    random.shuffle(shuffled)
    for flip in shuffled:
        other.take([flip])
    assert {name: flip.rank for name, flip in one.flips.items()} == {n: f.rank for n, f in other.flips.items()}
    assert {e.principal for e in one.disabled.entries} == {e.principal for e in other.disabled.entries}


@given(st.lists(flips, min_size=1, max_size=8))
def test_of_two_with_one_number_the_safer_wins(heard: list[SwitchVersion]) -> None:
    ledger = SwitchLedger(Path("ledger"))
    ledger.take(heard)
    for name, flip in ledger.flips.items():
        newest = [each for each in heard if each.principal == name and each.number == flip.number]
        assert flip.number == max(each.number for each in heard if each.principal == name)
        assert flip.disabled == any(each.disabled for each in newest)
    assert ledger.next_number() > max(flip.number for flip in heard)


@pytest.mark.parametrize(
    ("disabled", "until", "after_s", "forgotten"),
    [
        (False, None, FORGOTTEN_AFTER_S + 1, True),
        (False, None, FORGOTTEN_AFTER_S - 1, False),
        (True, None, 1e9, False),
        (True, NOW_S + 10, FORGOTTEN_AFTER_S + 11, True),
        (True, NOW_S + 10, FORGOTTEN_AFTER_S + 9, False),
    ],
)
def test_only_what_changes_nothing_is_forgotten(
    disabled: bool, until: float | None, after_s: float, forgotten: bool
) -> None:
    ledger = SwitchLedger(Path("ledger"))
    ledger.take([SwitchVersion("nhi:a", disabled, 1, "", until, "x", NOW_S)])
    ledger.forget(NOW_S + after_s)
    assert (not ledger.flips) == forgotten


def wrong(**change: Any) -> dict[str, Any]:
    return {**SwitchVersion("nhi:a", True, 1, "", None, "x", NOW_S)._asdict(), **change}


@pytest.mark.parametrize(
    "plain",
    [
        None,
        [],
        {},
        wrong(principal="nhi:*"),
        wrong(principal=5),
        wrong(disabled="no"),
        wrong(disabled=1),
        wrong(number=0),
        wrong(number=MAX_NUMBER + 1),
        wrong(number=True),
        wrong(number=1.0),
        wrong(until="x"),
        wrong(until=-1),
        wrong(at=True),
        wrong(at=1e99),
        wrong(reason=None),
        wrong(reason="a\nb"),
        wrong(by="a\nb"),
        wrong(by=None),
        {name: value for name, value in wrong().items() if name != "by"},
    ],
)
def test_a_flip_that_is_not_ours_is_not_believed(plain: Any) -> None:
    with pytest.raises(ValueError):
        flip_from(plain)
    with pytest.raises(ValueError):
        decode("1" * 31 + orjson.dumps(plain).decode())


def test_what_a_newer_version_adds_is_passed_over() -> None:
    assert flip_from(wrong(ticket="INC-12")) == flip_from(wrong())


# --- the ledger -----------------------------------------------------------------------------------------------------


def test_a_ledger_is_read_as_it_was_saved(tmp_path: Path) -> None:
    ledger = SwitchLedger.open(tmp_path / "disabled.json")
    assert not ledger.flips and not ledger.disabled.entries
    ledger.take(
        [
            SwitchVersion("nhi:a", True, 1, "Incident 12", NOW_S, "x", NOW_S),
            SwitchVersion("nhi:b", False, 2, "", None, "x", 1),
        ]
    )
    ledger.save()
    again = SwitchLedger.open(tmp_path / "disabled.json")
    assert again.flips == ledger.flips and again.disabled == ledger.disabled
    assert [path.name for path in tmp_path.iterdir()] == ["disabled.json"]
    assert (tmp_path / "disabled.json").stat().st_mode & 0o777 == 0o600


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda raw: raw[: len(raw) // 2],
    "empty": lambda raw: b"",
    "not JSON": lambda raw: b"nobody",
    "another kind": lambda raw: b"[]",
    "another version": lambda raw: raw.replace(b'"version": 1', b'"version": 2'),
    "another field": lambda raw: raw.replace(b'"reason"', b'"reasons"'),
    "another type": lambda raw: raw.replace(b'"disabled": true', b'"disabled": "true"'),
    "too large": lambda raw: raw + b" " * (16 * 2**20),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_ledger_is_told_and_never_taken_for_an_empty_one(
    damage: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    path = tmp_path / "disabled.json"
    ledger = SwitchLedger(path)
    ledger.take([SwitchVersion("nhi:a", True, 1, "", None, "x", NOW_S)])
    ledger.save()
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(SettingsError, match=r"D101.*is damaged(.|\n)*hint: restore it"):
        SwitchLedger.open(path)


@pytest.mark.parametrize("told", [b"OK", 7, [], [7], [b"token", 1, 2], [b"token", [b"x"]], [b"token", b"odd"], {}])
async def test_an_answer_that_is_none_ends_no_hearing(told: Any, tmp_path: Path) -> None:
    async def liar(*_: object) -> Any:
        return told

    async def witness(*_: object, **__: object) -> None:
        """Nobody reads it."""

    known = SwitchLedger(tmp_path / LEDGER_FILE)
    switch = KillSwitch(known, share=liar, witness=witness, clock=lambda: 2.0)
    await switch.disable("nhi:a", reason="", until=None, by="operator")
    assert [*known.flips] == ["nhi:a"] and switch.disabled.find("nhi:a", 2.0)


async def test_no_number_that_a_store_brings_is_too_high_to_disable_after_or_to_start_with(tmp_path: Path) -> None:
    """Whoever may write to the store can enable; an operator's word outranks it, here and after a restart."""
    forged = SwitchVersion("nhi:a", False, MAX_NUMBER, "", None, "mallory", 1.0)
    known = SwitchLedger(tmp_path / LEDGER_FILE)
    known.take([forged])

    async def alone(*_: object) -> None:
        """There is no store."""

    async def witness(*_: object, **__: object) -> None:
        """Nobody reads it."""

    switch = KillSwitch(known, share=alone, witness=witness, clock=lambda: 2.0)
    await switch.disable("nhi:a", reason="", until=None, by="operator")
    again = SwitchLedger.open(tmp_path / LEDGER_FILE)
    assert again.disabled.find("nhi:a", 2.0) and decode(encode(again.flips["nhi:a"])) == again.flips["nhi:a"]
    with pytest.raises(SwitchError, match="a writer that is no sidecar"):
        await switch.enable("nhi:a", by="operator")
    await switch.disable("nhi:b", reason="", until=None, by="operator")
    assert SwitchLedger.open(tmp_path / LEDGER_FILE).disabled.find("nhi:b", 2.0)


def test_what_could_not_be_read_again_is_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "MAX_BYTES", 1000)
    known = SwitchLedger(tmp_path / LEDGER_FILE)
    known.take([SwitchVersion("nhi:a", True, 1, "", None, "x", NOW_S)])
    known.save()
    known.take([SwitchVersion("nhi:b", True, 2, "", None, "x" * 900, NOW_S)])
    with pytest.raises(OSError, match="too large"):
        known.save()
    assert SwitchLedger.open(tmp_path / LEDGER_FILE).disabled.find("nhi:a", NOW_S)


def test_a_save_that_fails_leaves_what_was_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = SwitchLedger(tmp_path / "disabled.json")
    ledger.take([SwitchVersion("nhi:a", True, 1, "", None, "x", NOW_S)])
    ledger.save()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    ledger.take([SwitchVersion("nhi:b", True, 2, "", None, "x", NOW_S)])
    with pytest.raises(OSError):
        ledger.save()
    assert list(SwitchLedger.open(tmp_path / "disabled.json").flips) == ["nhi:a"]
