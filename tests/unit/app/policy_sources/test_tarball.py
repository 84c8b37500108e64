"""Is anything but plain files under plain names ever unpacked?"""

import gzip
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from sidecar.app.policy_sources import tarball
from sidecar.app.policy_sources.tarball import BLOCK, BadArchive, archive_of, gunzipped, members, write_member
from tests.tables import tables

ROW = b"p, nhi:planner, tool:github/x, use, -, -, -, allow\n"


def unpacked(raw: bytes, root: Path | None = None) -> dict[str, bytes]:
    found = {}
    for member in members(io.BytesIO(raw)):
        if root is not None:
            write_member(root, member)
            found[member.name] = (root / member.name).read_bytes()
        else:
            found[member.name] = b"".join(member.content)
    return found


def made(*names: str, kind: bytes = tarfile.REGTYPE, fmt: int = tarfile.USTAR_FORMAT, target: str = "") -> bytes:
    """An archive as Python packs it."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=fmt) as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            info.size = len(ROW) if kind == tarfile.REGTYPE else 0
            archive.addfile(info, io.BytesIO(ROW))
    return out.getvalue()


def test_what_we_pack_everybody_unpacks_and_so_do_we(tmp_path: Path) -> None:
    long = "policies/" + "teams/" * 10 + "a" * 90 + ".csv"
    files = {"policies/roles.csv": ROW, long: b"", "models/x.conf": b"x" * 100_000}
    raw = gzip.decompress(archive_of(files))
    assert unpacked(raw, tmp_path) == files
    with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
        assert {one.name: archive.extractfile(one).read() for one in archive} == files  # type: ignore[union-attr]


def test_what_others_pack_is_unpacked(tmp_path: Path) -> None:
    assert unpacked(made("policies/a.csv", "policies/b/c.csv"), tmp_path) == {
        "policies/a.csv": ROW,
        "policies/b/c.csv": ROW,
    }


NOT_PLAIN = (
    *("/etc/passwd", "../up.csv", "policies/../../up.csv", "policies/./a.csv", "policies//a.csv", "policies/.hidden"),
    *("-rf", "policies/a\nb.csv", "policies/a\\b.csv", "policies/ä.csv", "policies/" + "d/" * 20 + "a.csv"),
    *("C:/a.csv", "policies/a.csv "),
)


@pytest.mark.parametrize("name", NOT_PLAIN)
def test_a_name_that_is_not_plain_refuses_the_archive(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadArchive):
        unpacked(made("policies/good.csv", name), tmp_path / "inside")
    assert [path.name for path in tmp_path.iterdir()] == ["inside"]


@pytest.mark.parametrize(("names", "why"), tables("app/policy_sources/tarball")["twice"])
def test_two_files_in_one_place_refuse_the_archive(names: tuple[str, ...], why: str) -> None:
    with pytest.raises(BadArchive, match=why):
        unpacked(made(*names))


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, b"S", b"L", b"x"]
)
def test_what_is_no_file_refuses_the_archive(kind: bytes) -> None:
    with pytest.raises(BadArchive, match="not a regular file"):
        unpacked(made("policies/link", kind=kind, target="/etc/passwd"))


def test_an_extended_header_that_renames_what_follows_is_not_obeyed() -> None:
    with pytest.raises(BadArchive):
        unpacked(made("policies/" + "é" * 120 + ".csv", fmt=tarfile.PAX_FORMAT))
    with pytest.raises(BadArchive):
        unpacked(made("a" * 200, fmt=tarfile.GNU_FORMAT))


def test_a_link_on_the_way_is_never_written_through(tmp_path: Path) -> None:
    """Nothing in an archive makes one; somebody else on the machine might."""
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir(), outside.mkdir()
    (inside / "policies").mkdir()
    (inside / "policies" / "a.csv").symlink_to(outside / "a.csv")
    with pytest.raises(BadArchive):
        unpacked(made("policies/a.csv"), inside)
    assert not list(outside.iterdir())


def test_a_bomb_is_inflated_no_further_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tarball, "MAX_BYTES", 1_000_000)
    bomb = archive_of({"policies/a.csv": b"\0" * 20_000_000})
    inflated = gunzipped(io.BytesIO(bomb))
    with pytest.raises(BadArchive, match="MiB"):
        list(members(inflated))
    assert inflated.tell() < 200_000


@pytest.mark.parametrize("kind", [tarfile.DIRTYPE, b"g"])
def test_a_bomb_of_headers_ends_too(kind: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 MiB of them unpack to millions, before anybody has vouched for one."""
    monkeypatch.setattr(tarball, "MAX_ENTRIES", 10)
    one = made("policies/a.csv", "policies/b/", kind=kind)[:BLOCK]
    assert not unpacked(one * 9 + bytes(2 * BLOCK))
    with pytest.raises(BadArchive, match="more than 10 entries"):
        unpacked(one * 10 + bytes(2 * BLOCK))


def test_more_files_than_a_policy_has_refuse_the_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tarball, "MAX_FILES", 10)
    with pytest.raises(BadArchive, match="more than 10"):
        unpacked(made(*(f"policies/a{number}.csv" for number in range(11))))


CUTS: list[Callable[[bytes], bytes]] = [
    lambda raw: raw[:700],
    lambda raw: raw[:300],
    lambda raw: raw[:100] + bytes([raw[100] ^ 1]) + raw[101:],
    lambda raw: raw[:124] + b"\x80" + b"\xff" * 11 + raw[136:],
    lambda raw: b"\x1f\x8b" + os.urandom(600),
]


@pytest.mark.parametrize("cut", CUTS)
def test_a_damaged_archive_is_refused(cut: Callable[[bytes], bytes]) -> None:
    with pytest.raises(BadArchive):
        unpacked(cut(made("policies/a.csv")))


@settings(max_examples=60)
@given(at=st.integers(0, 1023), byte=st.integers(0, 255))
def test_no_byte_changed_ends_in_anything_but_a_file_or_a_refusal(at: int, byte: int) -> None:
    raw = bytearray(made("policies/a.csv"))
    raw[at] = byte
    try:
        found = unpacked(bytes(raw))
    except BadArchive:
        return
    assert all(name == "policies/a.csv" for name in found)
