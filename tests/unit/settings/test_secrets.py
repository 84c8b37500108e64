"""Does a secret that could be guessed stop the start?"""

import os
import secrets
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sidecar.errors import SettingsError
from sidecar.settings.secrets import keep_once, read_secret

STRONG = secrets.token_hex(32)

WEAK = [
    (b"", "S120"),
    (b"\n", "S120"),
    (b"short", "S121"),
    (b"a" * 64, "S121"),
    (b"1234" * 16, "S121"),
    (b"changeme-changeme-0123456789-abcdefg", "S121"),
    (b"ThisIsAVerySecretPasswordForTheAdmin1", "S121"),
    (b"0f1e2d3c4b5a69788796a5b4c3d2e1f0\nsecond line", "S120"),
    (b"0f1e2d3c4b5a69788796a5b4c3d2e1f0\0", "S120"),
    ("0f1e2d3c4b5a69788796a5b4c3d2e1f0é".encode(), "S120"),
    (b"x" * 70_000, "S120"),
]


@pytest.mark.parametrize(("content", "code"), WEAK)
def test_a_weak_secret_of_ours_is_refused_and_not_repeated(tmp_path: Path, content: bytes, code: str) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    with pytest.raises(SettingsError) as error:
        read_secret(path, "ours")
    (fault,) = error.value.faults
    assert (fault.file, fault.code) == (str(path), code)
    assert not content.strip() or content.decode("latin-1").strip() not in str(fault)


@pytest.mark.parametrize("ending", ["", "\n", "\r\n"])
def test_a_strong_secret_is_read_without_its_line_end(tmp_path: Path, ending: str) -> None:
    path = tmp_path / "key"
    path.write_bytes((STRONG + ending).encode())
    assert read_secret(path, "ours") == STRONG


def test_another_party_may_have_given_us_a_short_one(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("Basic dTpw\n")
    assert read_secret(path, "theirs") == "Basic dTpw"


def test_a_secret_that_is_not_there_names_its_file(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="none cannot be read: no such file"):
        read_secret(tmp_path / "none", "ours")


def test_what_is_made_once_is_whole_and_nobody_stands_in_its_way(tmp_path: Path) -> None:
    """In a container every start has the same process id: what a killed one left aside must not stop the next."""
    path = tmp_path / "keys" / "a.key"
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / f".a.key.{os.getpid()}").write_text("half")
    with ThreadPoolExecutor(8) as at_once:
        list(at_once.map(lambda number: keep_once(path, b"%d" % number * 1000), range(8)))
    content = path.read_bytes()
    assert len(content) == 1000 and len(set(content)) == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(found.name for found in (tmp_path / "keys").iterdir()) == [f".a.key.{os.getpid()}", "a.key"]
