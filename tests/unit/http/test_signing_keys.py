"""Are keys of an unsupported kind refused like any other file?"""

from base64 import encodebytes
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from sidecar.http.signing_keys import read_public_jwk

P256, UNKNOWN = bytes.fromhex("06082a8648ce3d030107"), bytes.fromhex("06082a8648ce3d030109")  # curves, as OIDs


@pytest.mark.parametrize("kind", ["PRIVATE", "PUBLIC"])
def test_a_key_on_an_unknown_curve_is_no_key(kind: str, tmp_path: Path) -> None:
    key = generate_private_key(SECP256R1())
    raw = (
        key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
        if kind == "PRIVATE"
        else key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    )
    body = encodebytes(raw.replace(P256, UNKNOWN)).decode()
    path = tmp_path / "key.pem"
    path.write_text(f"-----BEGIN {kind} KEY-----\n{body}-----END {kind} KEY-----\n")
    with pytest.raises(ValueError, match="P-256"):
        read_public_jwk(path)
