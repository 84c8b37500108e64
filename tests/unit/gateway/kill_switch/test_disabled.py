"""Who is disabled, by which file and which turn of the switch, and which of two turns is the newer?"""

import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, strategies as st

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
from sidecar.gateway.kill_switch.entries import is_pattern
from sidecar.gateway.kill_switch.switch_versions import (
    FORGOTTEN_AFTER_S,
    MAX_NUMBER,
    SwitchVersion,
    decode,
    encode,
    flip_from,
)
from sidecar.settings.field_types import is_caller
from sidecar.vocabulary import Call, Chain, Principal, Question
from tests.tables import tables

NOW_S = 1_800_000_000.0


def chain(*names: str) -> Chain:
    return tuple(Principal(name) for name in names)


def flip(principal: str, disabled: bool = True, number: int = 1, **more: Any) -> SwitchVersion:
    about = {"reason": "", "until": None, "by": "x", "at": NOW_S}
    return SwitchVersion(principal, disabled, number, **(about | more))


def call(*objects: str, upstream: str = "github") -> Call:
    return Call("mcp", "", upstream, "tools/call", tuple(Question(name, "tools/call", upstream) for name in objects))


# --- entries --------------------------------------------------------------------------------------------------------


TOUCHED = ("user:alice", "nhi:planner", "nhi:github", "nhi:writer", "nhi:*", "user:al*")
UNTOUCHED = ("user:bob", "user:a", "nhi:github/x", "user:*z", "nhi:search")


@pytest.mark.parametrize("name", [*TOUCHED, *UNTOUCHED])
def test_a_call_touches_its_chain_its_server_and_the_agents_it_is_for(name: str) -> None:
    disabled = Disabled((SwitchEntry(name, "switch"),))
    asked = chain("user:alice", "nhi:planner"), call("tool:github/search", "nhi:writer")
    assert (disabled.touched_by(*asked, NOW_S) is not None) == (name in TOUCHED)
    with pytest.raises(Refusal) if name in TOUCHED else nullcontext() as refused:
        disabled.refuse(*asked, NOW_S)
    if refused:
        assert refused.value.reason is Reason.PRINCIPAL_DISABLED and name not in str(refused.value)


def test_an_entry_that_is_over_hides_none_that_is_not() -> None:
    over, lasting = SwitchEntry("nhi:planner", "a", until=NOW_S), SwitchEntry("nhi:pl*", "b", until=NOW_S + 1)
    for entries in ((over, lasting), (lasting, over)):
        assert Disabled(entries).find("nhi:planner", NOW_S) == lasting
        assert Disabled(entries).find("nhi:planner", NOW_S + 1) is None
        assert Disabled(entries).in_force(NOW_S) == (lasting,)


NAMES, PATTERNS = ("nhi:planner", "user:corp/alice"), ("nhi:*", "user:corp/*")
NEITHER = ("*", "role:oncall", "anonymous", "nhi:", *(f"nhi:a{odd}b" for odd in " |,'"), "nhi:" + "x" * 257)


def test_a_name_is_one_principal_and_a_pattern_one_kind() -> None:
    for text in (*NAMES, *PATTERNS, *NEITHER):
        assert (is_caller(text), is_pattern(text)) == (text in NAMES, text not in NEITHER), text


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


FAULTS = tables("gateway/kill_switch/disabled")["faults"]


@pytest.mark.parametrize(("entry", "expected"), FAULTS.items(), ids=FAULTS)
def test_a_fault_in_the_file_has_its_place(entry: str, expected: tuple[str, str], tmp_path: Path) -> None:
    with pytest.raises(PolicyError) as raised:
        load_disabled(file(tmp_path, entry))
    where, what = expected
    assert where in str(raised.value) and what in str(raised.value)


def test_only_an_empty_list_is_no_fault_of_a_file_that_is_there(tmp_path: Path) -> None:
    """Nobody is enabled by silence."""
    path = tmp_path / "disabled.yaml"
    path.write_text("version: 1\ndisabled: []\n")
    assert load_disabled(path).entries == ()
    path.write_text("")
    with pytest.raises(PolicyError, match="empty"):
        load_disabled(path)
    path.unlink()
    path.symlink_to(tmp_path / "gone.yaml")
    with pytest.raises(PolicyError, match=r"disabled\.yaml: error\[Y001\]: cannot be read"):
        load_disabled(path)


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
def test_a_flip_is_read_as_it_was_written(one: SwitchVersion) -> None:
    assert decode(encode(one)) == one
    assert encode(one).startswith(one.rank) and len(one.rank) == 31 and one.rank.isdecimal()


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


LONG_S = FORGOTTEN_AFTER_S


@pytest.mark.parametrize(
    ("disabled", "until", "after_s", "forgotten"),
    [
        *((False, None, LONG_S + more_s, more_s > 0) for more_s in (1, -1)),
        (True, None, 1e9, False),
        *((True, NOW_S + 10, LONG_S + more_s, more_s > 10) for more_s in (11, 9)),
    ],
)
def test_what_changes_nothing_is_forgotten(
    disabled: bool, until: float | None, after_s: float, forgotten: bool
) -> None:
    ledger = SwitchLedger(Path("ledger"))
    ledger.take([flip("nhi:a", disabled, until=until)])
    ledger.forget(NOW_S + after_s)
    assert (not ledger.flips) == forgotten


def wrong(**change: Any) -> dict[str, Any]:
    return {**flip("nhi:a")._asdict(), **change}


WRONG: list[dict[str, Any]] = [
    *({"principal": one} for one in ("nhi:*", 5)),
    *({"disabled": one} for one in ("no", 1)),
    *({"number": one} for one in (0, MAX_NUMBER + 1, True, 1.0)),
    *({"until": one} for one in ("x", -1)),
    *({"at": one} for one in (True, 1e99)),
    *({"reason": one} for one in (None, "a\nb")),
    *({"by": one} for one in (None, "a\nb")),
]
SHORT = {name: value for name, value in wrong().items() if name != "by"}


@pytest.mark.parametrize("plain", [None, [], {}, SHORT, *(wrong(**change) for change in WRONG)])
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
    ledger.take([flip("nhi:a", reason="Incident 12", until=NOW_S), flip("nhi:b", False, 2, at=1)])
    ledger.save()
    again = SwitchLedger.open(tmp_path / "disabled.json")
    assert again.flips == ledger.flips and again.disabled == ledger.disabled
    assert [path.name for path in tmp_path.iterdir()] == ["disabled.json"]
    assert (tmp_path / "disabled.json").stat().st_mode & 0o777 == 0o600


def test_what_one_process_knew_another_number_of_processes_knows(tmp_path: Path) -> None:
    own, former, other = parts = [tmp_path / name for name in ("own", "former", "other")]
    known = {own: [flip("nhi:a", False, 2)], former: [flip("nhi:a"), flip("nhi:b")], other: [flip("nhi:c")]}
    for part, flips in known.items():
        part.mkdir()
        ledger = SwitchLedger(part / LEDGER_FILE)
        ledger.take(flips)
        ledger.save()
    ledger = SwitchLedger.open_all(own, parts)
    assert {name for name, one in ledger.flips.items() if one.disabled} == {"nhi:b", "nhi:c"}
    assert set(SwitchLedger.open(own / LEDGER_FILE).flips) == {"nhi:a"}
    ledger.absorb([former])
    assert SwitchLedger.open(own / LEDGER_FILE).flips == ledger.flips
    assert not (former / LEDGER_FILE).exists() and (other / LEDGER_FILE).exists()
    (other / LEDGER_FILE).write_bytes(b"{")
    with pytest.raises(SettingsError, match="D101"):
        SwitchLedger.open_all(own, parts)


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
def test_a_damaged_ledger_is_none_that_is_empty(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = tmp_path / "disabled.json"
    ledger = SwitchLedger(path)
    ledger.take([flip("nhi:a")])
    ledger.save()
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(SettingsError, match=r"D101.*(is damaged|is larger)(.|\n)*hint: restore it"):
        SwitchLedger.open(path)


def alone(ledger: SwitchLedger, told: Any = None) -> KillSwitch:
    """A switch whose store says no more than that, and whose evidence nobody reads."""

    async def share(*_: object) -> Any:
        return told

    async def witness(*_: object, **__: object) -> None: ...

    return KillSwitch(ledger, share=share, witness=witness, clock=lambda: 2.0)


@pytest.mark.parametrize("told", [b"OK", 7, [], [7], [b"token", 1, 2], [b"token", [b"x"]], [b"token", b"odd"], {}])
async def test_an_answer_that_is_none_ends_no_hearing(told: Any, tmp_path: Path) -> None:
    known = SwitchLedger(tmp_path / LEDGER_FILE)
    switch = alone(known, told)
    await switch.disable("nhi:a", reason="", until=None, by="operator")
    assert [*known.flips] == ["nhi:a"] and switch.ledger.disabled.find("nhi:a", 2.0)


async def test_no_number_that_a_store_brings_is_too_high_to_disable_after_or_to_start_with(tmp_path: Path) -> None:
    """Whoever may write to the store can enable; an operator's word outranks it, here and after a restart."""
    known = SwitchLedger(tmp_path / LEDGER_FILE)
    known.take([flip("nhi:a", False, MAX_NUMBER, by="mallory", at=1.0)])
    switch = alone(known)
    await switch.disable("nhi:a", reason="", until=None, by="operator")
    again = SwitchLedger.open(tmp_path / LEDGER_FILE)
    assert again.disabled.find("nhi:a", 2.0) and decode(encode(again.flips["nhi:a"])) == again.flips["nhi:a"]
    with pytest.raises(SwitchError, match="a writer that is not a sidecar"):
        await switch.enable("nhi:a", by="operator")
    await switch.disable("nhi:b", reason="", until=None, by="operator")
    assert SwitchLedger.open(tmp_path / LEDGER_FILE).disabled.find("nhi:b", 2.0)


def test_what_could_not_be_read_again_is_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "MAX_BYTES", 1000)
    known = SwitchLedger(tmp_path / LEDGER_FILE)
    known.take([flip("nhi:a")])
    known.save()
    known.take([flip("nhi:b", by="x" * 900)])
    with pytest.raises(OSError, match="too large"):
        known.save()
    assert SwitchLedger.open(tmp_path / LEDGER_FILE).disabled.find("nhi:a", NOW_S)


def test_a_save_that_fails_leaves_what_was_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = SwitchLedger(tmp_path / "disabled.json")
    ledger.take([flip("nhi:a")])
    ledger.save()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    ledger.take([flip("nhi:b")])
    with pytest.raises(OSError):
        ledger.save()
    assert list(SwitchLedger.open(tmp_path / "disabled.json").flips) == ["nhi:a"]
