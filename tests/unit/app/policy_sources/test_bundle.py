"""Is a bundle believed only when somebody whom we know vouches for every byte of it?"""

import gzip
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from sidecar.app.policy_sources.bundle import MANIFEST, SIGNATURES, Keys, build, opened, read_keys, sign
from sidecar.app.policy_sources.stored_revisions import objection
from sidecar.app.policy_sources.tarball import BadArchive, archive_of, gunzipped, members
from sidecar.http.signing_keys import SigningKey, generate
from sidecar.settings.stored_policy import StoredPolicy
from tests.tables import tables

TABLES = tables("app/policy_sources/bundle")

RULES = "p, nhi:planner, tool:github/x, use, -, -, -, allow\n"


@pytest.fixture(scope="module")
def key() -> SigningKey:
    return generate("EdDSA")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "policies" / "teams").mkdir(parents=True)
    (tmp_path / "policies" / "agent_to_tool.csv").write_text(RULES)
    (tmp_path / "policies" / "teams" / "agent_to_tool.a.csv").write_text(RULES)
    (tmp_path / "policies" / ".hidden").write_text("no")
    (tmp_path / "README.md").write_text("not part of it")
    return tmp_path


@pytest.fixture
def raw(folder: Path, key: SigningKey) -> bytes:
    return sign(build(folder, name="policy", version=7, created_at=5.0), key)


def keys_of(folder: Path, *keys: SigningKey) -> Keys:
    path = folder / "keys.json"
    path.write_text(json.dumps({"keys": [dict(one.public_jwk) for one in keys]}))
    return read_keys(path)


def parts(raw: bytes) -> dict[str, bytes]:
    return {one.name: b"".join(one.content) for one in members(gunzipped(io.BytesIO(raw)))}


def test_what_was_built_and_signed_is_unpacked(raw: bytes, folder: Path, key: SigningKey, tmp_path: Path) -> None:
    into = tmp_path / "into"
    into.mkdir()
    found = opened(raw, keys_of(folder, key), into=into)
    assert (found.manifest.version, found.manifest.name, found.key_id) == (7, "policy", key.kid)
    assert (into / "policies" / "teams" / "agent_to_tool.a.csv").read_text() == RULES
    assert sorted(path.name for path in into.iterdir()) == ["policies"]


def test_the_same_files_are_the_same_bytes(folder: Path) -> None:
    one, other = (build(folder, name="policy", version=7, created_at=5.0) for _ in range(2))
    assert one == other


def test_keys_change_one_after_the_other(raw: bytes, folder: Path, key: SigningKey) -> None:
    new = generate("EdDSA")
    both = sign(raw, new)
    for known in (key, new):
        assert opened(both, keys_of(folder, known)).key_id == known.kid
    assert opened(sign(both, new), keys_of(folder, new)).key_id == new.kid


def test_a_pem_file_names_one_key(raw: bytes, folder: Path, key: SigningKey) -> None:
    (folder / "key.pem").write_text(key.pem())
    assert opened(raw, read_keys(folder / "key.pem")).key_id == key.kid


@pytest.mark.parametrize("algorithm", ["ES256", "RS256"])
def test_no_other_algorithm_vouches(raw: bytes, folder: Path, algorithm: str) -> None:
    with pytest.raises(BadArchive, match="Ed25519"):
        sign(raw, generate(algorithm))
    with pytest.raises(BadArchive, match="no Ed25519 key"):
        keys_of(folder, generate(algorithm))


def refused(raw: bytes, folder: Path, key: SigningKey, why: str) -> None:
    with pytest.raises(BadArchive, match=why):
        opened(raw, keys_of(folder, key))


def test_nobody_vouches_for_it(folder: Path, key: SigningKey, raw: bytes) -> None:
    refused(build(folder, name="policy", version=7, created_at=5.0), folder, key, "not signed")
    refused(raw, folder, generate("EdDSA"), "none of its signatures")
    files = parts(raw)
    theirs = json.loads(files[SIGNATURES])
    theirs["signatures"][0]["kid"] = key.kid
    mallory = parts(sign(archive_of({k: v for k, v in files.items() if k != SIGNATURES}), generate("EdDSA")))
    forged = json.loads(mallory[SIGNATURES])
    forged["signatures"][0]["kid"] = key.kid
    refused(archive_of(files | {SIGNATURES: json.dumps(forged).encode()}), folder, key, "none of its signatures")


def test_no_file_is_changed_added_left_out_or_moved(folder: Path, key: SigningKey, raw: bytes) -> None:
    files = parts(raw)
    name = "policies/agent_to_tool.csv"
    refused(archive_of(files | {name: files[name].replace(b"use", b"*  ")}), folder, key, "as the manifest says")
    refused(archive_of(files | {name: files[name] + b"\n"}), folder, key, "as the manifest says")
    refused(archive_of(files | {"policies/more.csv": b"x"}), folder, key, "as the manifest says")
    refused(archive_of({k: v for k, v in files.items() if k != name}), folder, key, "missing")
    swapped = {k: files[k] for k in (SIGNATURES, MANIFEST, name)}
    refused(archive_of(swapped), folder, key, "not a policy bundle")
    manifest = files[MANIFEST].replace(b'"version": 7', b'"version": 8')
    refused(archive_of(files | {MANIFEST: manifest}), folder, key, "none of its signatures")


@pytest.mark.parametrize(
    "raw_",
    [b"", b"x", b"\x1f\x8b" + b"x" * 40, gzip.compress(b"", mtime=0), gzip.compress(b"{}", mtime=0)],
    ids=["nothing", "a letter", "no gzip", "a gzip of nothing", "a gzip of no tar"],
)
def test_what_is_none_is_told_so(raw_: bytes, folder: Path, key: SigningKey) -> None:
    with pytest.raises(BadArchive):
        opened(raw_, keys_of(folder, key))
    with pytest.raises(BadArchive):
        sign(raw_, key)


def test_a_folder_without_rules_is_no_policy(tmp_path: Path) -> None:
    (tmp_path / "policies").mkdir()
    with pytest.raises(BadArchive, match="no rules"):
        build(tmp_path, name="policy", version=1, created_at=0.0)


def signed_manifest(raw: bytes, key: SigningKey, **members_: object) -> bytes:
    """The bundle with another manifest, rightly signed."""
    files = parts(raw)
    said = json.loads(files[MANIFEST]) | members_
    return archive_of({**files, MANIFEST: json.dumps(said).encode()} | _signatures(said, key))


def _signatures(said: object, key: SigningKey) -> dict[str, bytes]:
    from sidecar.app.policy_sources.bundle import DOMAIN
    from sidecar.protocols import base64url

    signature = base64url.encode(key.sign_bytes(DOMAIN + json.dumps(said).encode()))
    return {SIGNATURES: json.dumps({"v": 1, "signatures": [{"kid": key.kid, "signature": signature}]}).encode()}


def test_what_a_newer_minor_version_adds_is_passed_over(raw: bytes, folder: Path, key: SigningKey) -> None:
    newer = signed_manifest(raw, key, expires_at=99, labels={"a": ["b"]})
    assert opened(newer, keys_of(folder, key)).manifest.version == 7


@pytest.mark.parametrize(("changed", "why"), [*TABLES["manifests"], ({"version": 2**60}, "not a positive number")])
def test_a_signed_manifest_that_makes_no_sense_is_refused(
    changed: dict[str, object], why: str, raw: bytes, folder: Path, key: SigningKey
) -> None:
    refused(signed_manifest(raw, key, **changed), folder, key, why)


OLD = StoredPolicy("a", "bundle", "policy", 7, 1000, "k", 0.0, 0.0)


@pytest.mark.parametrize(("new", "why"), TABLES["newer"])
def test_versions_rise_and_policies_do_not_vanish(new: dict[str, object], why: str) -> None:
    found = objection(replace(OLD, name="b", **new), OLD, None)  # type: ignore[arg-type]
    assert (why in found) if why else not found
    assert not objection(replace(OLD, name="b", **new), OLD, "b")  # type: ignore[arg-type]


def test_git_has_no_versions_but_times() -> None:
    old = replace(OLD, kind="git")
    assert not objection(replace(old, name="b"), old, None)
    assert "older" in objection(replace(old, name="b", version=6), old, None)
