"""Does sidecar.yaml say what it seems to say, and nothing dangerous by omission?"""

from collections.abc import Mapping
from pathlib import Path

import pytest

from sidecar.errors import SettingsError
from sidecar.settings.addresses import ListenAddress, UnixAddress
from sidecar.settings.load import doubts, load as load_document, load_settings
from sidecar.settings.server import TlsFiles
from sidecar.settings.sidecar_file import Settings
from tests.tables import tables

GOLDEN = Path(__file__).parents[2] / "golden" / "settings"


def load(folder: Path, text: str, environ: Mapping[str, str] | None = None) -> Settings:
    path = folder / "sidecar.yaml"
    path.write_text("version: 1\n" + text)
    return load_settings(path, environ or {}, check_files=False)


def fault_in(folder: Path, text: str) -> tuple[str, str]:
    with pytest.raises(SettingsError) as error:
        load(folder, text)
    (fault,) = error.value.faults
    assert fault.line > 0
    return fault.code, fault.message


def test_arguments_in_clear_are_doubted_with_their_place(tmp_path: Path) -> None:
    path = tmp_path / "sidecar.yaml"
    path.write_text("version: 1\naudit:\n  clear_arguments:\n    tool:pay/refund: [/amount, /max_tokens]\n")
    (doubt,) = doubts(load_document(path, {}, check_files=False))
    assert (doubt.code, doubt.severity, doubt.line) == ("S151", "warning", 4)
    assert "/amount, /max_tokens of calls of tool:pay/refund" in doubt.message


def test_the_shortest_file_gives_loopback_enforcement_and_strict_audit(tmp_path: Path) -> None:
    settings = load(tmp_path, "")
    assert settings.server.listen == ListenAddress("127.0.0.1", 8080)
    assert settings.admin.listen == ListenAddress("127.0.0.1", 9090)
    assert (settings.policy.mode, settings.store.url, settings.store.on_failure) == ("enforce", "memory://", "deny")
    assert (settings.audit.sink, settings.audit.durability) == ("file", "strict")
    assert (settings.server.max_body_bytes, settings.server.max_response_bytes) == (2**20, 10 * 2**20)
    assert settings.upstreams == {}


def test_relative_paths_start_at_the_folder_of_the_file(tmp_path: Path) -> None:
    settings = load(
        tmp_path, "data: state\npolicy: {path: /etc/rules}\nlocal: [{listen: 'unix:p.sock', principal: nhi:p}]\n"
    )
    assert settings.data == tmp_path / "state"
    assert settings.policy.path == Path("/etc/rules")
    assert settings.policy.models == tmp_path / "models"
    assert settings.local[0].listen == UnixAddress(tmp_path / "p.sock")
    assert settings.audit_path == tmp_path / "state/audit/audit.jsonl"
    assert settings.audit_key_path == tmp_path / "state/keys/audit.key"


def test_quantities_are_read_with_their_units(tmp_path: Path) -> None:
    text = "server: {shutdown_grace_s: 2m, body_timeout_s: 500ms, header_timeout_s: 3, max_body_bytes: 64KiB}\n"
    server = load(tmp_path, text).server
    assert (server.shutdown_grace_s, server.body_timeout_s, server.header_timeout_s) == (120.0, 0.5, 3.0)
    assert server.max_body_bytes == 65536


PUBLIC = "public_url: https://gw.acme.example"


@pytest.mark.parametrize("text", (GOLDEN / "accepted.txt").read_text().splitlines())
def test_this_is_accepted(tmp_path: Path, text: str) -> None:
    load(tmp_path, text.replace("\\n", "\n") + "\n")


@pytest.mark.parametrize("row", (GOLDEN / "refused.txt").read_text().splitlines())
def test_this_is_refused(tmp_path: Path, row: str) -> None:
    code, message, text = row.split(" | ", 2)
    assert fault_in(tmp_path, text + "\n") == (code, message)


def test_stores_over_tls_trust_the_authorities_of_all_connections_unless_they_name_others(tmp_path: Path) -> None:
    egress, over_tls = "egress: {ca_path: corp.pem}\n", 'store: {url: "rediss://redis.corp.test"'
    corp = tmp_path / "corp.pem"
    assert load(tmp_path, f"{egress}{over_tls}}}\n").store.certificates()["ssl_ca_certs"] == str(corp)
    with_client = load(tmp_path, f"{egress}{over_tls}, tls: {{cert_path: c, key_path: k}}}}\n").store
    assert (with_client.certificates()["ssl_ca_certs"], with_client.certificates()["ssl_keyfile"]) == (
        str(corp),
        str(tmp_path / "k"),
    )
    own = load(tmp_path, f"{egress}{over_tls}, tls: {{ca_path: own.pem}}}}\n").store
    assert own.certificates()["ssl_ca_certs"] == str(tmp_path / "own.pem")
    assert load(tmp_path, f'{egress}store: {{url: "redis://redis.corp.test"}}\n').store.tls is None
    assert load(tmp_path, f"{over_tls}}}\n").store.tls is None
    audit = 'audit: {sink: redis, redis: {store: {url: "rediss://audit.corp.test"}}}\n'
    assert load(tmp_path, f"{egress}{audit}").audit_store.certificates()["ssl_ca_certs"] == str(corp)


def test_tls_is_files_or_a_word(tmp_path: Path) -> None:
    server = load(tmp_path, f"server: {{{PUBLIC}/, tls: {{cert_path: c.pem, key_path: k.pem}}}}\n").server
    assert server.tls == TlsFiles(cert_path=tmp_path / "c.pem", key_path=tmp_path / "k.pem")
    assert server.public_url == "https://gw.acme.example"


# Issuers


def issuers(*entries: str) -> str:
    return "identity:\n  issuers:\n" + "".join(f"    - {{{entry}}}\n" for entry in entries)


ACME = "issuer: 'https://idp.acme.example'"
KEYS = "jwks_path: keys.json"


def test_two_issuers_share_neither_name_nor_namespace(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as error:
        load(tmp_path, issuers(f"{ACME}, {KEYS}, namespace: a", f"{ACME}, {KEYS}, namespace: a"))
    assert [fault.code for fault in error.value.faults] == ["S110", "S111", "S110", "S111"]


PRESET_KEYS = tables("settings/settings")["PRESET_KEYS"]


@pytest.mark.parametrize(("preset", "issuer", "keys"), PRESET_KEYS)
def test_a_preset_knows_where_the_keys_are_and_what_is_written_wins(
    tmp_path: Path, preset: str, issuer: str, keys: str
) -> None:
    own = f"issuer: b, preset: {preset}, namespace: b, jwks_url: 'https://x/k', roles_from: {{claim: c, namespace: d}}"
    of_file = f"issuer: c, preset: {preset}, namespace: c, jwks_path: k.json"
    text = issuers(f"issuer: '{issuer}', preset: {preset}, roles_from: {{namespace: corp}}", own, of_file)
    filled, written, from_file = load(tmp_path, text).identity.issuers
    assert filled.jwks_url == keys and filled.roles_from.claim in {"realm_access.roles", "roles", "groups"}
    assert (written.jwks_url, written.roles_from.claim) == ("https://x/k", "c")
    assert (from_file.jwks_url, from_file.jwks_path) == (None, tmp_path / "k.json")


def test_typ_is_one_word_or_several_and_none_means_absent(tmp_path: Path) -> None:
    entries = f"{ACME}, {KEYS}, typ: JWT", f"issuer: b, {KEYS}, namespace: b, typ: [at+jwt, none]"
    one, several = load(tmp_path, issuers(*entries)).identity.issuers
    assert (one.typ, several.typ) == (("JWT",), ("at+jwt", ""))
    code, _ = fault_in(tmp_path, issuers("issuer: 'http://idp.acme.example', preset: keycloak"))
    assert code == "Y104", "a preset over plain HTTP fetches no keys"


# Files


def test_files_that_are_named_must_be_there(tmp_path: Path) -> None:
    path = tmp_path / "sidecar.yaml"
    path.write_text(
        "version: 1\nidentity: {api_keys_path: keys.yaml}\n"
        "upstreams: {a: {mcp: {url: 'http://x'}, credential: {bearer_path: token}}}\n"
    )
    (tmp_path / "models").mkdir()
    with pytest.raises(SettingsError) as error:
        load_settings(path, {})
    assert [(fault.line, fault.code, fault.message) for fault in error.value.faults] == [
        (1, "S116", f"{tmp_path}/policies is not a folder"),
        (2, "S116", f"{tmp_path}/keys.yaml is not a file"),
        (3, "S116", f"{tmp_path}/token is not a file"),
    ]


def test_a_weak_admin_secret_stops_the_start_at_its_place(tmp_path: Path) -> None:
    path = tmp_path / "sidecar.yaml"
    path.write_text("version: 1\nadmin: {credentials: [{role: viewer, secret_path: admin.key}]}\n")
    (tmp_path / "admin.key").write_text("changeme\n")
    (tmp_path / "models").mkdir()
    (tmp_path / "policies").mkdir()
    with pytest.raises(SettingsError) as error:
        load_settings(path, {})
    (fault,) = error.value.faults
    assert (fault.line, fault.column, fault.code) == (2, 51, "S121")
    assert "changeme" not in str(fault)
