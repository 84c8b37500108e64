"""Does a secret that could be guessed stop the start?"""

import os
import secrets
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sidecar.errors import SettingsError
from sidecar.settings.secrets import Whose, check_private, keep_once, read_hex_key, read_secret, weakness_of
from tests.tables import tables

STRONG = secrets.token_hex(32)

WEAK = [
    *[(raw.encode("latin-1"), *rest) for raw, *rest in tables("settings/secrets")["weak"]],
    (b"a" * 64, "S121"),
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


def test_a_random_secret_is_no_sample() -> None:
    for size in (16, 24, 32, 48):
        for _ in range(500):
            assert weakness_of(secrets.token_hex(size)) == weakness_of(secrets.token_urlsafe(max(size, 24))) == ""


@pytest.mark.parametrize("whose", ["ours", "theirs"])
@pytest.mark.parametrize(
    ("mode", "good"), [(0o600, True), (0o440, True), (0o644, False), (0o604, False), (0o660, False)]
)
def test_a_secret_that_others_may_read_is_refused(tmp_path: Path, whose: Whose, mode: int, good: bool) -> None:
    """The group may read, as that is how secrets are mounted."""
    path = tmp_path / "key"
    path.write_text(STRONG)
    path.chmod(mode)
    if good:
        assert read_secret(path, whose) == STRONG
        check_private(path)
        return
    for read in (lambda: read_secret(path, whose), lambda: check_private(path)):
        with pytest.raises(SettingsError, match=f"is open to others .mode {mode:04o}") as error:
            read()
        assert error.value.faults[0].hint == f"chmod 600 {path}"


def test_a_secret_is_read_without_its_line_end_and_that_of_another_party_may_be_short(tmp_path: Path) -> None:
    path = tmp_path / "key"
    for ending in ("", "\n", "\r\n"):
        for secret, whose in ((STRONG, "ours"), ("Basic dTpw", "theirs")):
            path.write_bytes((secret + ending).encode())
            assert read_secret(path, whose) == secret
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


def test_a_file_that_cannot_be_written_whole_is_not_made(tmp_path: Path) -> None:
    program = (
        "import resource; from pathlib import Path; from sidecar.settings.secrets import keep_once\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))\n"
        "keep_once(Path('key'), b'a' * 65)"
    )
    ended = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert "OSError: [Errno 27] File too large" in ended.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_key_is_a_regular_file(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "key")
    with pytest.raises(SettingsError, match="is not a regular file"):
        read_hex_key(tmp_path / "key", "the key", "S120")
