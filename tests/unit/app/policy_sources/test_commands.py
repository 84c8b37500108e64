"""Does a bundle go from a folder to one who trusts it, by commands alone?"""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sidecar.cli import main

RULES = "p, nhi:planner, tool:github/x, use, -, -, -, allow\n"


def run(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "agent_to_tool.csv").write_text(RULES)
    assert run("token", "keygen", "--algorithm", "EdDSA", "--out", tmp_path).exit_code == 0
    return tmp_path


def test_it_is_built_signed_and_verified(folder: Path) -> None:
    bundle, key, keys = folder / "b.tar.gz", folder / "signing-key.pem", folder / "jwks.json"
    built = run("policy", "bundle", "build", folder, "--version", 3, "--name", "prod", "-o", bundle)
    assert built.exit_code == 0 and "not signed yet" in built.output
    unsigned = run("policy", "bundle", "verify", bundle, "--keys", keys)
    assert unsigned.exit_code == 5 and "not signed" in unsigned.output
    assert run("policy", "bundle", "sign", bundle, "--key", key).exit_code == 0
    good = run("policy", "bundle", "verify", bundle, "--keys", keys, "--name", "prod", "--json")
    assert good.exit_code == 0
    assert (json.loads(good.output)["version"], json.loads(good.output)["name"]) == (3, "prod")
    assert run("policy", "bundle", "verify", bundle, "--keys", keys, "--name", "staging").exit_code == 5
    bundle.write_bytes(bundle.read_bytes()[:-200])
    assert run("policy", "bundle", "verify", bundle, "--keys", keys).exit_code == 5


def test_a_policy_with_faults_is_not_packed(folder: Path) -> None:
    (folder / "policies" / "agent_to_tool.csv").write_text("p, x\n")
    failed = run("policy", "bundle", "build", folder, "--version", 3, "-o", folder / "b.tar.gz")
    assert failed.exit_code == 3 and "error[P" in failed.output
    assert not (folder / "b.tar.gz").exists()


def test_what_is_no_key_or_no_bundle_is_told_so(folder: Path) -> None:
    bundle = folder / "b.tar.gz"
    bundle.write_bytes(b"x")
    assert run("policy", "bundle", "sign", bundle, "--key", folder / "signing-key.pem").exit_code == 3
    assert run("policy", "bundle", "sign", bundle, "--key", folder / "jwks.json").exit_code == 2
    assert run("policy", "bundle", "sign", folder / "none", "--key", folder / "signing-key.pem").exit_code == 2


def test_files_that_the_settings_name_are_in_no_bundle(tmp_path: Path) -> None:
    (tmp_path / "policies").mkdir()
    (tmp_path / "sidecar.yaml").write_text(
        "policy: {models: {agent_to_tool: {model: casbin/m.conf, policy: [casbin/p.csv]}}}\n"
    )
    failed = run("policy", "bundle", "build", tmp_path, "--version", 1, "-o", tmp_path / "b.tar.gz")
    assert failed.exit_code == 3
    assert "policy.models names files one by one, which no bundle holds" in failed.output
    assert not (tmp_path / "b.tar.gz").exists()
