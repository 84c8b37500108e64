"""Does sidecar.yaml become the identity that it describes, and is what could let anyone in refused at the start?"""

import re
from hashlib import sha512
from pathlib import Path

import pytest

from sidecar.errors import Refusal, SettingsError
from sidecar.identity import Audience, Identity, Presented
from sidecar.identity.from_settings import issuers_from
from sidecar.identity.key_files import add_key, ensure_pepper, make_key
from sidecar.settings.load import load_settings
from sidecar.settings.sidecar_file import Settings
from tests.unit.identity.test_presets import KEYCLOAK, KEYCLOAK_USER, key_of, sent
from tests.unit.identity.world import GITHUB, IDP, NOW, Clock, KeyServer, minted, signing_key

KEYS = "identity: {api_keys_path: keys.yaml}\n"


def settings_of(folder: Path, text: str) -> Settings:
    path = folder / "sidecar.yaml"
    path.write_text(f"version: 1\n{text}")
    return load_settings(path, {}, check_files=False)


def issuer_of(folder: Path, *issuers: str) -> Settings:
    return settings_of(folder, "identity:\n  issuers:\n" + "".join(f"    - {{{issuer}}}\n" for issuer in issuers))


def identity_of(folder: Path, text: str) -> tuple[Identity, KeyServer]:
    clock, server = Clock(), KeyServer()
    return Identity.from_settings(settings_of(folder, text), clock.wall, server.fetch, clock.monotonic), server


async def chain(identity: Identity, token: str) -> list[str]:
    caller = await identity.identify(Presented(authorization=(f"Bearer {token}",)), Audience(GITHUB))
    return [principal.name for principal in caller.chain]


async def test_the_contracts_example_is_an_identity(tmp_path: Path) -> None:
    identity, server = identity_of(
        tmp_path,
        f"""
identity:
  issuers:
    - issuer: {KEYCLOAK}
      preset: keycloak
      audiences: [{GITHUB}]
      jwks_url: {KEYCLOAK}/keys
      algorithms: [RS256]
      kinds: [user, nhi]
      actor_from: azp
      clients: {{vscode: direct, planner-app: nhi:planner}}
      roles_from: {{claim: realm_access.roles, namespace: corp}}
""",
    )
    server.serve(KEYCLOAK, key_of())
    assert await chain(identity, sent("keycloak", {**KEYCLOAK_USER, "azp": "planner-app"})) == [
        f"user:{KEYCLOAK_USER['sub']}",
        "nhi:planner",
    ]


async def test_a_key_set_file_and_every_other_field_reach_the_issuer(tmp_path: Path) -> None:
    (tmp_path / "jwks.json").write_text(signing_key().jwks())
    settings = settings_of(
        tmp_path,
        f"""
identity:
  issuers:
    - issuer: {IDP}
      jwks_path: jwks.json
      algorithms: [ES256]
      kinds: [user, nhi]
      namespace: acme
      typ: [at+jwt, none]
      kind_claim: kind
      roles_from: {{claim: groups, namespace: corp, only: [eng], required: true}}
""",
    )
    (issuer,) = issuers_from(settings.identity)
    assert (issuer.namespace, issuer.typ, issuer.actor_from) == ("acme", ("at+jwt", ""), "")
    assert issuer.roles_from is not None and issuer.roles_from.only == ("eng",) and issuer.roles_from.required
    clock = Clock()
    identity = Identity.from_settings(settings, clock.wall, KeyServer().fetch, clock.monotonic)
    assert await chain(identity, minted(sub="alice", kind="user", groups=["eng"])) == ["user:acme/alice"]


async def test_the_longest_lifetime_is_the_configured_one(tmp_path: Path) -> None:
    (tmp_path / "jwks.json").write_text(signing_key().jwks())
    issuer = f"{{issuer: {IDP}, jwks_path: jwks.json, algorithms: [ES256], kinds: [user]}}"
    identity, _ = identity_of(tmp_path, f"identity: {{max_token_lifetime_s: 600, issuers: [{issuer}]}}\n")
    assert await chain(identity, minted(sub="a", iat=NOW - 104, exp=NOW + 496)) == ["user:a"]
    with pytest.raises(Refusal, match="bad-credential"):
        await chain(identity, minted(sub="a", iat=NOW - 1, exp=NOW + 600))


SPIFFE = "preset: spiffe, jwks_path: k, spiffe: {trust_domain: acme, workloads: {/a: 'nhi:%s'}}"
ONE, OTHER = "issuer: a, jwks_path: k, namespace: x", "issuer: b, jwks_path: k, namespace: x"
CLIENT = "issuer: a, jwks_path: k, kinds: [nhi], actor_from: azp, clients: {app: 'nhi:x/bot'}"
KEYCLOAKS = "issuer: https://a, preset: keycloak, kinds: [nhi], spiffe: {trust_domain: acme, path: '/{id}'}"
FORGING = [
    ("S111", [ONE, OTHER]),
    ("S111", [CLIENT, OTHER]),
    ("S111", [f"issuer: a, {SPIFFE % 'x/a'}", OTHER]),
    ("S111", [f"issuer: a, {SPIFFE % 'a'}", f"issuer: b, namespace: b, {SPIFFE % 'b'}"]),
    ("S123", [KEYCLOAKS]),
]


@pytest.mark.parametrize(("code", "issuers"), FORGING)
def test_issuers_that_could_forge_one_another_are_faults_at_their_places(
    tmp_path: Path, code: str, issuers: list[str]
) -> None:
    with pytest.raises(SettingsError) as caught:
        issuer_of(tmp_path, *issuers)
    assert {fault.code for fault in caught.value.faults} == {code}
    assert all(fault.line >= 4 and fault.hint for fault in caught.value.faults)


@pytest.mark.parametrize("content", [None, "", "{}", '{"keys": []}', "not JSON"])
def test_a_key_set_file_that_cannot_be_used_stops_the_start(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "jwks.json").write_text(content)
    text = f"identity: {{issuers: [{{issuer: {IDP}, jwks_path: jwks.json}}]}}\n"
    with pytest.raises(SettingsError) as caught:
        identity_of(tmp_path, text)
    assert caught.value.faults[0].file == str(tmp_path / "jwks.json")


async def test_a_token_as_rfc_8693_shows_it_is_a_user_and_an_nhi(tmp_path: Path) -> None:
    """RFC 8693 4.1: both names are bare; a setting says which kind each is."""
    (tmp_path / "jwks.json").write_text(signing_key().jwks())
    text = f"identity: {{issuers: [{{issuer: {IDP}, jwks_path: jwks.json, algorithms: [ES256], kinds: %s}}]}}\n"
    token = minted(sub="alice", act={"sub": "researcher", "act": {"sub": "planner"}})
    identity, _ = identity_of(tmp_path, text % "[user, nhi], subject_kind: user")
    assert await chain(identity, token) == ["user:alice", "nhi:planner", "nhi:researcher"]
    assert await chain(identity, minted(sub="planner")) == ["user:planner"], "an NHI stands in act alone"
    for sub in ("user:alice", "nhi:planner"):  # a kind that the token brings is not believed
        with pytest.raises(Refusal, match="bad-credential"):
            await chain(identity, minted(sub=sub))
    told = {"[user]": "kinds: .user, nhi. and subject_kind", "[user, nhi]": "kind_claim or subject_kind"}
    for kinds, said in told.items():
        identity, _ = identity_of(tmp_path, text % kinds)
        with pytest.raises(Refusal) as refused:
            await chain(identity, token)
        assert re.search(said, refused.value.detail)
    for kinds in ("[user], subject_kind: user", "[user, nhi], subject_kind: user, kind_claim: kind"):
        with pytest.raises(SettingsError, match="S109"):
            identity_of(tmp_path, text % kinds)


async def test_the_pepper_can_lie_elsewhere_and_a_replica_without_it_is_told(tmp_path: Path) -> None:
    _, entry = make_key("nhi:a", b"p" * 32, now=NOW, expires_at=None, scopes=(), random=lambda n: b"x" * n)
    add_key(tmp_path / "keys.yaml", entry, NOW)
    with pytest.raises(SettingsError, match=r"S317.*pepper(.|\n)*identity\.api_keys_pepper_path"):
        identity_of(tmp_path, KEYS)
    path = tmp_path / "sidecar.yaml"
    for given, environ in (
        ("identity: {api_keys_path: keys.yaml, api_keys_pepper_path: shared/pepper}\n", {}),
        (KEYS, {"SIDECAR_IDENTITY__API_KEYS_PEPPER_PATH": str(tmp_path / "shared" / "pepper")}),
    ):
        path.write_text(f"version: 1\n{given}")
        assert load_settings(path, environ, check_files=False).api_keys_pepper_path == tmp_path / "shared" / "pepper"


async def test_api_keys_are_read_with_their_pepper(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, KEYS)
    pepper = ensure_pepper(settings.api_keys_pepper_path, lambda count: sha512(b"pepper").digest()[:count])
    key, entry = make_key("nhi:planner", pepper, now=NOW, expires_at=None, scopes=(), random=lambda n: b"x" * n)
    add_key(tmp_path / "keys.yaml", entry, NOW)
    identity, _ = identity_of(tmp_path, KEYS)
    assert await chain(identity, key) == ["nhi:planner"]


def test_keys_whose_pepper_is_gone_stop_the_start_and_no_keys_need_none(tmp_path: Path) -> None:
    with pytest.raises(SettingsError):
        identity_of(tmp_path, KEYS)  # the file is missing
    (tmp_path / "keys.yaml").write_text("version: 1\nkeys:\n")
    identity_of(tmp_path, KEYS)
    _, entry = make_key("nhi:a", b"p" * 32, now=NOW, expires_at=None, scopes=(), random=lambda n: b"x" * n)
    add_key(tmp_path / "keys.yaml", entry, NOW)
    with pytest.raises(SettingsError):
        identity_of(tmp_path, KEYS)
    assert not (tmp_path / "data").exists()
