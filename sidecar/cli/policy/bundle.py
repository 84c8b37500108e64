"""`sidecar policy bundle build | sign | verify`: signed bundles, reproducible byte for byte."""

import time
from pathlib import Path

import click

from sidecar.app.policy_sources.bundle import build, opened, read_keys, sign
from sidecar.app.policy_sources.https import MAX_BYTES
from sidecar.app.policy_sources.tarball import BadArchive
from sidecar.cli.command import (
    EXISTING_FILE,
    FILE,
    FOLDER,
    INVALID,
    UNVERIFIED,
    CommandFailed,
    json_option,
    print_result,
)
from sidecar.cli.lazy_group import Group
from sidecar.cli.token import signing_key_in
from sidecar.http.signing_keys import read_signing_key
from sidecar.policy_tools.policy_location import in_folder
from sidecar.settings.reading import read_bounded
from sidecar.settings.timestamps import rfc3339
from sidecar.settings.writing import write_whole

DEFAULT_FILE = "policy.tar.gz"


@click.group(cls=Group)
def bundle() -> None:
    """A policy in one signed file."""


@bundle.command("build")
@click.argument("folder", type=FOLDER, default=".")
@click.option(
    "--version",
    "number",
    type=click.IntRange(1, 2**53),
    required=True,
    help="Version; must be higher than that of the last bundle.",
)
@click.option("--name", default="policy", show_default=True, help="The name of the policy: policy.source.bundle.name.")
@click.option("-o", "--out", type=FILE, default=DEFAULT_FILE, show_default=True, help="The file to write.")
@click.option("--key", "key_path", type=FILE, help="Ed25519 key, from `sidecar token keygen --algorithm EdDSA`.")
@click.option("--created", type=float, help="Time of the bundle, in seconds since the epoch, for reproducible bytes.")
@json_option
def build_(
    folder: Path, number: int, name: str, out: Path, key_path: Path | None, created: float | None, as_json: bool
) -> None:
    """Check the policy in FOLDER (policies/ and optionally models/) and pack it; with --key, also sign it."""
    try:
        place = in_folder(folder)
        if not isinstance(place.models, Path):
            hint = "put them into models/ and policies/"
            raise CommandFailed("policy.models names files one by one, which no bundle holds", INVALID, hint=hint)
        place.load()
        raw = build(folder, name=name, version=number, created_at=time.time() if created is None else created)
        write_whole(out, raw if key_path is None else sign(raw, signing_key_in(key_path)), mode=0o644)
    except BadArchive as bad:
        raise CommandFailed(str(bad), INVALID)
    said = {"bundle": str(out), "name": name, "version": number, "signed": key_path is not None}
    signed = "signed" if key_path is not None else "not signed yet: sidecar policy bundle sign"
    print_result(said, f"{out}  version {number} of {name}, {signed}", as_json)


@bundle.command("sign")
@click.argument("file", type=EXISTING_FILE, default=DEFAULT_FILE)
@click.option("--key", "key_path", type=FILE, required=True, help="Ed25519 key in PEM.")
@json_option
def sign_(file: Path, key_path: Path, as_json: bool) -> None:
    """Sign FILE. Signatures of other keys remain, so that you can rotate keys."""
    try:
        write_whole(file, sign(read_bounded(file, MAX_BYTES), signing_key_in(key_path)), mode=0o644)
    except BadArchive as bad:
        raise CommandFailed(f"{file}: {bad}", INVALID)
    kid = read_signing_key(key_path).kid
    print_result({"bundle": str(file), "kid": kid}, f"{file}  signed by {kid}", as_json)


@bundle.command("verify")
@click.argument("file", type=EXISTING_FILE, default=DEFAULT_FILE)
@click.option(
    "--keys", "keys_path", type=EXISTING_FILE, required=True, help="The keys that may sign it: a JWKS, or one PEM file."
)
@click.option("--name", help="The name that the policy must have.")
@json_option
def verify_(file: Path, keys_path: Path, name: str | None, as_json: bool) -> None:
    """Check FILE as a sidecar does, but do not compare its version with an earlier one."""
    try:
        found = opened(read_bounded(file, MAX_BYTES), read_keys(keys_path))
        if name is not None and found.manifest.name != name:
            raise BadArchive(f"it is the policy of {found.manifest.name}")
    except BadArchive as bad:
        raise CommandFailed(f"{file}: {bad}", UNVERIFIED)
    of, made_at = found.manifest, rfc3339(found.manifest.created_at)
    said: dict[str, object] = {"bundle": str(file), "name": of.name, "version": of.version, "created_at": made_at}
    said |= {"kid": found.key_id, "sha256": found.digest, "files": {path: one.size for path, one in of.files.items()}}
    told = f"{file}  version {of.version} of {of.name}, {len(of.files)} files, {of.size} bytes\nmade     {made_at}"
    print_result(said, f"{told}\nsigned   {found.key_id}\nsha256   {found.digest}", as_json)
