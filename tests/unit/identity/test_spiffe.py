"""Does a JWT-SVID prove exactly the workload that it names, and nothing else that looks like one?"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sidecar.errors import Reason, SettingsError
from sidecar.http.signing_keys import SigningKey
from sidecar.identity import TrustedIssuer, with_preset
from sidecar.identity.from_settings import issuers_from
from sidecar.identity.jwks import JwksError, parse_jwks
from sidecar.identity.spiffe import SpiffeNames, parse_spiffe_id
from tests.tables import tables
from tests.unit.identity.test_chain_builder import api_key, keys_of
from tests.unit.identity.test_from_settings import issuer_of
from tests.unit.identity.world import GITHUB, IDP, NOW, World, a_world, acting, an_issuer, signing_key

TABLES = tables("identity/spiffe")

DOMAIN = "acme.example"
ISSUER = f"spiffe://{DOMAIN}"
PLANNER = f"{ISSUER}/ns/prod/sa/planner"
NAMES = SpiffeNames(DOMAIN, "/ns/prod/sa/{id}", {"/vm/7": "nhi:old-planner"})


def a_domain(name: str = ISSUER, spiffe: SpiffeNames = NAMES, **what: Any) -> TrustedIssuer:
    issuer = an_issuer(name, kinds=("nhi",), spiffe=spiffe, jwks_url=f"{name}/bundle", **what)
    return with_preset(issuer, "spiffe")


def bundle_of(*keys: SigningKey, **changes: Any) -> bytes:
    """A trust bundle, as a SPIFFE server gives it: X.509 authorities beside the keys of JWT-SVIDs."""
    entries = [{**key.public_jwk, "use": "jwt-svid", **changes} for key in keys]
    return json.dumps({"keys": [{"use": "x509-svid", "kty": "EC", "x5c": ["MIIB"]}, *entries]}).encode()


def domains(*issuers: TrustedIssuer) -> World:
    known = issuers or (a_domain(),)
    world = a_world(*known, keys=keys_of("nhi:planner", "nhi:writer"))
    world.server.sets |= {f"{issuer.issuer}/bundle": bundle_of(signing_key()) for issuer in known}
    return world


def svid(subject: str = PLANNER, *, key: SigningKey | None = None, typ: str = "JWT", **changes: Any) -> str:
    claims = {"sub": subject, "aud": [GITHUB], "iat": int(NOW) - 10, "exp": int(NOW) + 300, **changes}
    return (key or signing_key()).sign({name: value for name, value in claims.items() if value is not None}, typ)


@pytest.fixture
def world() -> World:
    return domains()


async def test_a_workload_is_what_the_pattern_or_the_table_says(world: World) -> None:
    assert await world.chain(svid()) == ["nhi:planner"]
    assert await world.chain(svid(f"{ISSUER}/vm/7")) == ["nhi:old-planner"]
    assert await world.chain(svid(iss=ISSUER)) == ["nhi:planner"]
    assert await world.chain(svid(iat=None)) == ["nhi:planner"]
    for typ in ("JWT", "JOSE"):
        assert await world.chain(svid(typ=typ)) == ["nhi:planner"]


NOBODY = [*TABLES["subjects"], f"{ISSUER}/ns/prod/sa/{'a' * 257}", f"{ISSUER}/{'a/' * 1024}a"]


@pytest.mark.parametrize("subject", NOBODY)
async def test_any_other_spelling_is_nobody(world: World, subject: str) -> None:
    await world.refused(svid(subject))
    await world.refused(svid(subject, iss=ISSUER))


def test_one_spelling_is_read_as_one_workload() -> None:
    assert parse_spiffe_id(PLANNER) == (DOMAIN, "/ns/prod/sa/planner")
    assert parse_spiffe_id(f"{ISSUER}/a.b/..c/_-") == (DOMAIN, "/a.b/..c/_-")
    assert [subject for subject in NOBODY if parse_spiffe_id(subject)] == [
        f"{ISSUER}/ns/prod/sa/planner/x",
        f"{ISSUER}/ns/test/sa/planner",
        "spiffe://other.example/ns/prod/sa/planner",
        "spiffe://acme.example.evil/ns/prod/sa/planner",
        f"{ISSUER}/ns/prod/sa/{'a' * 257}",
    ]


BAD: dict[str, Mapping[str, Any]] = {
    "no audience": {"aud": None}, "another audience": {"aud": ["https://elsewhere.example"]}, "no end": {"exp": None},
    "over": {"exp": int(NOW) - 100, "iat": int(NOW) - 200}, "for ever": {"exp": int(NOW) + 10**8},
    "for ever, since nobody knows when": {"exp": int(NOW) + 10**8, "iat": None}, "another's issuer": {"iss": IDP},
    "no issuer that is known": {"iss": "https://else.example"}, "an issuer that is no string": {"iss": None, "sub": 7},
    "another key": {"key": signing_key("somebody")}, "an access token's type": {"typ": "at+jwt"},
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
async def test_what_spiffe_forbids_is_refused(world: World, what: str) -> None:
    await world.refused(svid(**BAD[what]))


async def test_a_svid_is_no_users_and_a_user_is_no_svid() -> None:
    """Two issuers, one key each: neither's token passes for the other's."""
    world = domains(a_domain(), an_issuer(namespace="idp"))
    world.server.serve(IDP, signing_key("idp"))
    assert await world.chain(svid()) == ["nhi:planner"]
    await world.refused(svid(key=signing_key("idp")))
    await world.refused(svid(iss=IDP))
    await world.refused(svid(iss=IDP, key=signing_key("idp")))


async def test_actors_are_spiffe_ids_too_and_a_svid_beside_another_credential_claims_one_place(world: World) -> None:
    assert await world.chain(svid(act=acting(f"{ISSUER}/ns/prod/sa/writer"))) == ["nhi:planner", "nhi:writer"]
    for actor in ("writer", "nhi:writer", f"{ISSUER}/ns/test/sa/writer"):
        await world.refused(svid(act=acting(actor)))
    await world.refused(svid(), Reason.CREDENTIAL_CONFLICT, key=api_key("nhi:planner"))


async def test_two_trust_domains_have_names_and_keys_of_their_own() -> None:
    other = a_domain("spiffe://other.example", SpiffeNames("other.example", "/{id}"), namespace="other")
    world = domains(a_domain(), other)
    world.server.sets["spiffe://other.example/bundle"] = bundle_of(signing_key("other"))
    assert await world.chain(svid("spiffe://other.example/planner", key=signing_key("other"))) == ["nhi:other/planner"]
    await world.refused(svid(key=signing_key("other")))
    await world.refused(svid("spiffe://other.example/planner"))
    await world.refused(svid("spiffe://other.example/planner", iss=ISSUER))


@pytest.mark.parametrize("change", [{"use": "sig"}, {"use": "x509-svid"}, {"use": ""}, {"kid": ""}, {"use": None}])
def test_only_keys_that_are_named_and_for_svids_count(change: dict[str, Any]) -> None:
    assert len(parse_jwks(bundle_of(signing_key()), "jwt-svid")) == 1
    with pytest.raises(JwksError):
        parse_jwks(bundle_of(signing_key(), **change), "jwt-svid")
    with pytest.raises(JwksError):
        parse_jwks(bundle_of(signing_key()), "sig")


# sidecar.yaml


async def test_the_preset_knows_what_a_svid_is(tmp_path: Path) -> None:
    (tmp_path / "bundle.json").write_bytes(bundle_of(signing_key()))
    spiffe = f"{{trust_domain: {DOMAIN}, path: '/ns/*/sa/{{id}}', workloads: {{/vm/7: 'nhi:old-planner'}}}}"
    settings = issuer_of(tmp_path, f"issuer: '{ISSUER}', preset: spiffe, jwks_path: bundle.json, spiffe: {spiffe}")
    (issuer,) = issuers_from(settings.identity)
    assert (issuer.kinds, issuer.svid, len(issuer.algorithms)) == (("nhi",), True, 9)
    world = a_world(issuer)
    assert await world.chain(svid()) == ["nhi:planner"]
    assert await world.chain(svid(f"{ISSUER}/vm/7")) == ["nhi:old-planner"]


def test_a_key_set_that_is_no_trust_bundle_is_found_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "jwks.json").write_text(signing_key().jwks())
    spiffe = f"spiffe: {{trust_domain: {DOMAIN}, path: '/{{id}}'}}"
    settings = issuer_of(tmp_path, f"issuer: a, preset: spiffe, jwks_path: jwks.json, {spiffe}")
    with pytest.raises(SettingsError, match="S316"):
        issuers_from(settings.identity)


@pytest.mark.parametrize(("what", "code", "message"), TABLES["faults"])
def test_what_names_none_or_all_is_a_fault_at_its_place(tmp_path: Path, what: str, code: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        issuer_of(tmp_path, f"issuer: a, preset: spiffe, jwks_path: b{', ' if what else ''}{what}")
    (fault,) = caught.value.faults
    assert (fault.code, fault.message, fault.line) == (code, message, 4) and fault.hint


async def test_a_workload_that_is_called_otherwise_now_has_lost_what_it_had(world: World) -> None:
    caller = await world.ask(f"Bearer {svid(f'{ISSUER}/vm/7')}")
    assert domains().identity.vouches_for(caller)
    for changed in (
        SpiffeNames(DOMAIN, "/ns/prod/sa/{id}", {"/vm/7": "nhi:new-planner"}),
        SpiffeNames(DOMAIN, "/ns/prod/sa/{id}"),
    ):
        assert not domains(a_domain(spiffe=changed)).identity.vouches_for(caller)
