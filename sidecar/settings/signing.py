"""Settings of the signing key."""

from __future__ import annotations

from sidecar.settings.field_types import Many, PathField, Section


class SigningSettings(Section):
    """Our own signing key. Its public half stands at `/.well-known/jwks.json`."""

    key_path: PathField | None = None
    """PEM file with a private key (P-256, Ed25519 or RSA). By default `keys/signing.pem` in the data folder, made when
    it is first needed; replicas need one in common."""
    previous_paths: Many[PathField] = ()
    """PEM files of keys that signed before: their public halves are served on. `keys/signing.previous.pem` in the data
    folder is one too."""
