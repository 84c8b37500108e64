"""Is a file that is larger than it can be refused, with its name and the limit, instead of read into memory?"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sidecar.app.policy_sources.bundle import read_keys
from sidecar.audit.checkpoints import read_public_keys
from sidecar.errors import SettingsError
from sidecar.gateway.kill_switch import SwitchLedger
from sidecar.http.signing_keys import generate, private_key_from, public_jwk_from, read_signing_key
from sidecar.http.tls import read_authorities, tls_from
from sidecar.identity.jwks import read_jwks_file
from sidecar.identity.key_files import keys_in
from sidecar.settings.reading import read_bounded
from sidecar.settings.secrets import read_hex_key, read_secret
from sidecar.settings.server import TlsFiles
from tests.unit.identity.authority import authority

HUGE_BYTES = 65 * 2**20  # of a sparse file, more than any of these limits


def huge(path: Path, head: str = "") -> Path:
    path.write_text(head)
    path.chmod(0o600)
    os.truncate(path, HUGE_BYTES)
    return path


def test_a_file_up_to_the_limit_is_read_whole_and_a_larger_one_is_not(tmp_path: Path) -> None:
    file = tmp_path / "some"
    file.write_bytes(b"12345")
    assert read_bounded(file, 5) == b"12345"
    with pytest.raises(OSError, match=r"it is larger than 4 bytes: put the right file there: .*/some"):
        read_bounded(file, 4)


READERS: dict[str, Callable[[Path], Any]] = {
    "signing key": read_signing_key,
    "private key": private_key_from,
    "public key": public_jwk_from,
    "authorities": read_authorities,
    "key set": read_jwks_file,
    "API keys": keys_in,
    "secret": lambda path: read_secret(path, "theirs"),
    "sealing key": lambda path: read_hex_key(path, "the key", "S1"),
    "keys of checkpoints": read_public_keys,
    "keys of bundles": read_keys,
    "kill switch": SwitchLedger.open,
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_no_reader_of_a_small_file_reads_a_huge_one(read: Callable[[Path], Any], tmp_path: Path) -> None:
    file = huge(tmp_path / "huge.pem", generate("EdDSA").pem())
    with pytest.raises((OSError, SettingsError), match=r"larger than \d+ bytes") as told:
        read(file)
    assert str(file) in str(told.value)


@pytest.mark.parametrize("which", ["cert_path", "key_path"])
def test_no_certificate_or_its_key_is_huge(which: str, tmp_path: Path) -> None:
    cert, key = authority("corp").issue(dns=("localhost",)).write(tmp_path, "own")
    files = {"cert_path": Path(cert), "key_path": Path(key)}
    huge(files[which], files[which].read_text())
    with pytest.raises(SettingsError, match=r"larger than \d+ bytes"):
        tls_from(TlsFiles(**files))
