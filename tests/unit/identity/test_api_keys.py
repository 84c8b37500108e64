"""Does an API key prove its principal, only while it lives, and does its file give nothing away?"""

import hmac
import json
import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sidecar.cli import main
from sidecar.errors import SettingsError
from sidecar.identity import Audience, Identity, Presented
from sidecar.identity.api_keys import ApiKeys, digest_of, read_pepper, records_of
from sidecar.identity.key_files import add_key, ensure_pepper, make_key, remove_key
from sidecar.settings.yaml_document import read_document
from sidecar.vocabulary import Credential
from tests.tables import tables
from tests.unit.identity.world import GITHUB, IDP, NOW, a_world, an_issuer, minted

TABLES = tables("identity/api_keys")

PEPPER = b"0123456789abcdef0123456789abcdef"
DAY_S = 86_400.0


def counting_bytes() -> Callable[[int], bytes]:
    """Bytes that differ from call to call and not from run to run."""
    calls = iter(range(1, 1_000_000))
    return lambda count: next(calls).to_bytes(count)


def load_api_keys(path: Path, pepper: bytes, now: float) -> ApiKeys:
    return ApiKeys(records_of(read_document(path), now), pepper)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.yaml"


class KeyFile:
    """A keys.yaml in which keys are made."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._random = counting_bytes()

    def make(self, principal: str, expires_at: float | None = None, scopes: tuple[str, ...] = ()) -> str:
        text, entry = make_key(principal, PEPPER, now=NOW, expires_at=expires_at, scopes=scopes, random=self._random)
        add_key(self.path, entry, NOW)
        return text

    def load(self, now: float = NOW) -> ApiKeys:
        return load_api_keys(self.path, PEPPER, now)


@pytest.fixture
def file(path: Path) -> KeyFile:
    return KeyFile(path)


def id_of(key: str) -> str:
    return key.split("_")[1]


async def test_a_key_proves_its_principal_in_either_header(file: KeyFile) -> None:
    key = file.make("nhi:planner", scopes=("read",))
    world = a_world(keys=file.load())
    for caller in (await world.ask(key=key), await world.ask(f"Bearer {key}")):
        assert caller.last.name == "nhi:planner"
        assert caller.last.scopes == {"read"}
        assert caller.credentials == (Credential("api_key", "api-key", id_of(key)),)
        assert caller.expires_at is None


async def test_a_key_ends_to_the_second(file: KeyFile) -> None:
    key = file.make("nhi:planner", expires_at=NOW + 10)
    world = a_world(keys=file.load())
    for caller in (await world.ask(key=key), await world.ask(f"Bearer {minted()}", key=key)):
        assert caller.expires_at == NOW + 10
    world.clock.pass_s(9)
    await world.ask(key=key)
    world.clock.pass_s(1)
    refusal = await world.refusal(key=key)
    assert (refusal.detail, refusal.credential_fault) == ("the API key has expired", "expired")


async def test_every_change_of_a_key_is_refused(file: KeyFile) -> None:
    key = file.make("nhi:planner")
    other = file.make("nhi:other")
    world = a_world(keys=file.load())
    for at in range(len(key)):
        changed = key[:at] + ("A" if key[at] != "A" else "B") + key[at + 1 :]
        await world.refusal(key=changed)
    crossed = f"sck_{id_of(other)}_{key.split('_')[2]}"
    refusal = await world.refusal(key=crossed)
    assert (refusal.detail, refusal.credential_fault) == ("the API key is not valid", "unknown")
    for changed in (key + "a", key.upper(), key[4:], f" {key}", key + "\n"):
        await world.refusal(key=changed)


async def test_without_keys_or_with_another_pepper_no_key_is_valid(file: KeyFile) -> None:
    key = file.make("nhi:planner")
    for keys in (None, ApiKeys(), load_api_keys(file.path, PEPPER[::-1], NOW)):
        await a_world(keys=keys).refusal(key=key)


def test_the_file_does_not_hold_the_key(file: KeyFile) -> None:
    key = file.make("nhi:planner")
    assert key.split("_")[2] not in file.path.read_text()
    assert file.path.stat().st_mode & 0o777 == 0o600


def test_keys_have_256_bits_and_never_repeat() -> None:
    how = {"now": NOW, "expires_at": None, "scopes": ()}
    drawn = [make_key("nhi:a", PEPPER, random=lambda n, one=one: bytes([one]) * n, **how)[0] for one in (0, 1, 255)]
    assert {len(key.split("_")[2]) for key in drawn} == {43} and len(set(drawn)) == 3


def test_what_is_kept_of_a_key_stays_the_same_from_version_to_version() -> None:
    independent = hmac.new(PEPPER, b"sidecar/api-key/v1\0sck_abcd_x", sha256).digest()
    assert digest_of("sck_abcd_x", PEPPER) == independent


# Rotation


async def test_two_keys_of_a_principal_live_at_once_and_a_third_does_not(file: KeyFile) -> None:
    old, new = file.make("nhi:planner"), file.make("nhi:planner")
    before = file.path.read_text()
    with pytest.raises(SettingsError, match="more than 2 valid keys"):
        file.make("nhi:planner")
    assert file.path.read_text() == before
    world = a_world(keys=file.load())
    for key in (old, new):
        assert (await world.ask(key=key)).last.name == "nhi:planner"
    assert remove_key(file.path, id_of(old), NOW)
    world = a_world(keys=file.load())
    await world.refusal(key=old)
    assert (await world.ask(key=new)).last.name == "nhi:planner"


def test_expired_keys_do_not_count(file: KeyFile) -> None:
    for _ in range(3):
        file.make("nhi:planner", expires_at=NOW - 1)
    file.make("nhi:planner")
    file.make("nhi:planner")
    file.load()


# The file


ENTRY = "version: 1\nkeys:\n- {id: aaaa, principal: 'nhi:a', hash: H}\n"
BAD_FILES = TABLES["bad_files"]


def written(text: str) -> str:
    return text.replace("hash: H", f"hash: 'hmac-sha256:{'0' * 64}'")


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_file_that_is_not_right_is_not_loaded(path: Path, name: str) -> None:
    path.write_text(written(ENTRY))
    load_api_keys(path, PEPPER, NOW)
    path.write_text(written(BAD_FILES[name]))
    with pytest.raises(SettingsError) as caught:
        load_api_keys(path, PEPPER, NOW)
    assert all(fault.file == str(path) for fault in caught.value.faults)


def test_a_fault_has_its_place(path: Path) -> None:
    path.write_text(f"version: 1\nkeys:\n  - id: aaaa\n    principal: role:x\n    hash: hmac-sha256:{'0' * 64}\n")
    with pytest.raises(SettingsError) as caught:
        load_api_keys(path, PEPPER, NOW)
    assert [(fault.line, fault.column) for fault in caught.value.faults] == [(4, 16)]


def test_a_file_keeps_what_people_wrote_into_it(path: Path, file: KeyFile) -> None:
    path.write_text("# who has keys\nversion: 1\nkeys:\n  # agents\n")
    path.chmod(0o640)
    first = file.make("nhi:a")
    second = file.make("nhi:b", expires_at=NOW + DAY_S, scopes=("x",))
    assert remove_key(path, id_of(first), NOW)
    text = path.read_text()
    assert "# who has keys" in text and "# agents" in text
    assert id_of(first) not in text and id_of(second) in text
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_file_in_another_shape_is_written_anew_with_the_same_keys(path: Path, file: KeyFile) -> None:
    path.write_text(f"keys: [{{id: aaaa, principal: 'nhi:a', hash: 'hmac-sha256:{'0' * 64}'}}]\nversion: 1\n")
    key = file.make("nhi:b")
    assert path.read_text().count("hmac-sha256") == 2
    for gone, there in (("aaaa", True), ("aaaa", False), (id_of(key), True)):  # the last key can go
        file.load()
        assert remove_key(path, gone, NOW) is there
    file.load()
    file.make("nhi:a")


# The pepper


def test_a_pepper_is_made_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "pepper"
    with pytest.raises(SettingsError):
        read_pepper(path)
    assert ensure_pepper(path, os.urandom) == ensure_pepper(path, counting_bytes()) == read_pepper(path)
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", ["", "short", "a" * 64, "changeme" * 8])
def test_a_pepper_that_could_be_guessed_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "pepper"
    path.write_text(text)
    with pytest.raises(SettingsError):
        read_pepper(path)


# `sidecar token`


def run(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["token", *arguments], catch_exceptions=False)


def data_of(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_third_key_is_refused_with_the_line_and_what_to_do(folder: Path) -> None:
    for code in (0, 0, 3):
        result = run(folder, "api-key", "--principal", "nhi:planner", "--keys", "keys.yaml", "--pepper", "pepper")
        assert result.exit_code == code, result.output
    assert "keys.yaml:5" in result.stderr and "nhi:planner has more than 2 valid keys" in result.stderr
    assert "revoke or expire an older one" in result.stderr and "sck_" not in result.output


@pytest.mark.parametrize("algorithm", ["ES256", "RS256", "EdDSA"])
async def test_a_minted_token_is_accepted_by_whoever_has_the_key_set(folder: Path, algorithm: str) -> None:
    made = data_of(run(folder, "keygen", "--algorithm", algorithm, "--json"))
    assert (folder / "signing-key.pem").stat().st_mode & 0o777 == 0o600
    minted = run(
        folder,
        *("mint", "--issuer", IDP, "--sub", "user:alice", "--aud", GITHUB, "--act", "nhi:a", "--act", "nhi:b"),
        *("--scope", "read", "--claim", 'groups=["eng"]', "--claim", "dept=ops"),
    ).stdout.strip()
    issuer = an_issuer(jwks_url="", jwks_path=Path(made["jwks"]), algorithms=(algorithm,))
    identity = Identity([issuer], fetch=a_world().server.fetch)
    caller = await identity.identify(Presented(authorization=(f"Bearer {minted}",)), Audience(GITHUB))
    assert [principal.name for principal in caller.chain] == ["user:alice", "nhi:a", "nhi:b"]
    assert caller.first.scopes == {"read"}


def test_a_signing_key_is_never_written_over(folder: Path) -> None:
    run(folder, "keygen")
    before = (folder / "signing-key.pem").read_bytes()
    again = run(folder, "keygen")
    assert again.exit_code == 1
    assert (folder / "signing-key.pem").read_bytes() == before


async def test_a_key_from_the_command_line_works_until_it_is_revoked(folder: Path) -> None:
    files = ("--keys", "keys.yaml", "--pepper", "pepper")
    made = run(folder, "api-key", "--principal", "nhi:planner", "--expires", "30d", *files)
    key = made.stdout.strip()
    world = a_world(keys=load_api_keys(folder / "keys.yaml", read_pepper(folder / "pepper"), NOW))
    world.clock.now = 0  # before it ends, whatever the day is
    assert (await world.ask(key=key)).last.name == "nhi:planner"
    assert run(folder, "revoke", key, "--keys", "keys.yaml").exit_code == 0
    assert run(folder, "revoke", key, "--keys", "keys.yaml").exit_code == 1
    await a_world(keys=load_api_keys(folder / "keys.yaml", PEPPER, NOW)).refusal(key=key)


def test_the_configured_files_are_the_default(folder: Path) -> None:
    (folder / "sidecar.yaml").write_text("version: 1\nidentity: {api_keys_path: keys.yaml}\n")
    (folder / "keys.yaml").write_text("version: 1\nkeys: []\n")
    made = data_of(run(folder, "api-key", "--principal", "nhi:planner", "--json"))
    assert made["principal"] == "nhi:planner" and "hash" not in made
    assert (folder / "data" / "keys" / "api-keys.pepper").exists()
    (listed,) = data_of(run(folder, "list", "--json"))["keys"]
    assert listed.items() >= {"id": made["id"], "principal": "nhi:planner", "state": "valid", "scopes": ""}.items()
    assert run(folder, "list").stdout.splitlines()[1].split()[:3] == [made["id"], "nhi:planner", "valid"]
    assert data_of(run(folder, "revoke", made["id"], "--json")) == {"revoked": made["id"]}
    assert "has no keys" in run(folder, "list").stdout


@pytest.mark.parametrize(
    "arguments", [*TABLES["orders"], ("mint", "--sub", "user:alice", "--aud", GITHUB, "--key", "missing.pem")]
)
def test_wrong_usage_exits_with_2(folder: Path, arguments: tuple[str, ...]) -> None:
    assert run(folder, *arguments).exit_code == 2
