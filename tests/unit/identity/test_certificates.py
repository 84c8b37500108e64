"""Is a certificate exactly whom the operator says, and is no other certificate anybody?"""

import ssl
from ipaddress import ip_network
from pathlib import Path
from time import time
from typing import Any
from urllib.parse import quote

import pytest

from sidecar.errors import Reason, Refusal, SettingsError
from sidecar.identity import Audience, Identity, Presented
from sidecar.identity.certificate_names import CertificateError, read_certificate, thumbprint_of
from sidecar.identity.certificates import Certificates, TrustedProxyRule
from sidecar.identity.from_settings import certificates_from
from sidecar.identity.names import NamingRule
from sidecar.identity.spiffe import SpiffeNames
from sidecar.identity.xfcc import read_forwarded
from sidecar.vocabulary import Caller
from tests.tables import tables
from tests.unit.identity.authority import Issued, authority
from tests.unit.identity.test_chain_builder import api_key, keys_of
from tests.unit.identity.test_from_settings import settings_of
from tests.unit.identity.world import GITHUB, IDP, ROUTE, Clock, KeyServer, an_issuer, minted, signing_key

TABLES = tables("identity/certificates")

DOMAIN = SpiffeNames("acme.example", "/ns/prod/sa/{id}", {"/vm/7": "nhi:nightly"})
DOMAIN_ID = "spiffe://acme.example"
PLANNER = f"{DOMAIN_ID}/ns/prod/sa/planner"
TABLE = TABLES["table"]
WHOSE = Certificates(((DOMAIN, NamingRule()),), TABLE, trust="ca")
OPEN = Audience(GITHUB, anonymous=True)


def identity_of(certificates: Certificates = WHOSE, clock: Clock | None = None, **what: Any) -> Identity:
    server, clock = KeyServer(), clock or Clock()
    server.serve(IDP, signing_key())
    times = {"clock": clock.wall, "mono": clock.monotonic}
    keys = keys_of("nhi:planner", "user:alice")
    return Identity((an_issuer(),), keys, certificates, fetch=server.fetch, **times, **what)


async def ask(identity: Identity, at: Audience = ROUTE, **what: Any) -> Caller:
    return await identity.identify(identity.admit(Presented(**what)), at)


async def who(issued: Issued, identity: Identity | None = None, **what: Any) -> list[str]:
    """Whose certificate this is."""
    return await names_of(identity or identity_of(clock=now()), **shown(issued), **what)


async def names_of(identity: Identity, **what: Any) -> list[str]:
    return [principal.name for principal in (await ask(identity, **what)).chain]


def shown(issued: Issued) -> dict[str, Any]:
    return {"certificate": issued.der, "trust": "ca"}


async def refused(identity: Identity, **what: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        await ask(identity, **what)
    return caught.value


def now() -> Clock:
    return Clock(now=time())


issue = authority().issue

NAMED: dict[str, tuple[dict[str, Any], str]] = TABLES["named"]


@pytest.mark.parametrize("name", NAMED)
async def test_a_certificate_is_whom_the_operator_wrote_down(name: str) -> None:
    shape, expected = NAMED[name]
    assert await who(issue(**shape)) == [expected]


NOBODY: dict[str, dict[str, Any]] = TABLES["nobody"]


@pytest.mark.parametrize("name", NOBODY)
async def test_every_other_certificate_is_a_bad_credential_and_never_anonymous(name: str) -> None:
    issued = issue(**NOBODY[name])
    for at in (ROUTE, OPEN):
        refusal = await refused(identity_of(clock=now()), **shown(issued), at=at)
        assert refusal.reason is Reason.BAD_CREDENTIAL, refusal.detail


@pytest.mark.parametrize("der", [b"x", b"\x30\x00", issue(uris=[PLANNER]).der[:-5], issue().der + b"x"])
def test_bytes_that_are_no_certificate_are_none(der: bytes) -> None:
    with pytest.raises(CertificateError):
        read_certificate(der)


async def test_where_others_are_ignored_they_prove_nothing_at_all() -> None:
    identity = identity_of(Certificates(table=TABLE, refuse_others=False, trust="ca"), now())
    other = shown(issue(dns=["x.acme.example"]))
    assert (await refused(identity, **other)).reason is Reason.UNAUTHENTICATED
    assert (await ask(identity, OPEN, **other)).is_anonymous
    assert await names_of(identity, authorization=(f"Bearer {token()}",), **other) == ["user:alice"]
    assert await who(issue(dns=["planner.acme.example"]), identity) == ["nhi:planner"]
    refusal = await refused(identity, **shown(issue(dns=["x.acme.example"], ends_s=-5)))
    assert (refusal.reason, refusal.credential_fault) == (Reason.BAD_CREDENTIAL, "expired")


def token(**changes: Any) -> str:
    at = int(now().now)
    return minted(iat=at - 10, exp=at + 600, **changes)


# Together with other credentials


async def test_a_users_token_and_a_certificate_give_user_then_workload() -> None:
    planner = issue(uris=[PLANNER])
    for line, chain in (
        (token(), ["user:alice", "nhi:planner"]),
        (token(act={"sub": "nhi:planner"}), ["user:alice", "nhi:planner"]),
        (token(act={"sub": "nhi:front"}, aud="nhi:planner"), ["user:alice", "nhi:front", "nhi:planner"]),
    ):
        assert await who(planner, authorization=(f"Bearer {line}",)) == chain


CONFLICTS: dict[str, dict[str, Any]] = {
    "its own API key": {"api_key": (api_key("nhi:planner"),)},
    "a user's API key": {"api_key": (api_key("user:alice"),)},
    "a local listener": {"local": "nhi:planner"},
    "its own token": {"authorization": (f"Bearer {token(sub='nhi:planner')}",)},
    "another workload's token": {"authorization": (f"Bearer {token(sub='nhi:writer')}",)},
    "a token of another actor": {"authorization": (f"Bearer {token(act={'sub': 'nhi:writer'})}",)},
}


@pytest.mark.parametrize("name", CONFLICTS)
async def test_two_credentials_for_one_place_are_a_conflict(name: str) -> None:
    what = {**shown(issue(uris=[PLANNER])), **CONFLICTS[name]}
    assert (await refused(identity_of(clock=now()), **what)).reason is Reason.CREDENTIAL_CONFLICT


async def test_a_users_certificate_and_a_token_name_one_place_and_a_bad_token_is_bad_beside_it() -> None:
    users, planners = shown(issue(uris=["urn:acme:alice"])), shown(issue(uris=[PLANNER]))
    refusal = await refused(identity_of(clock=now()), authorization=(f"Bearer {token()}",), **users)
    assert refusal.reason is Reason.CREDENTIAL_CONFLICT
    for line in ("Bearer x", "Bearer", "Basic abc", f"Bearer {token(aud='x')}"):
        refusal = await refused(identity_of(clock=now()), authorization=(line,), **planners)
        assert refusal.reason is Reason.BAD_CREDENTIAL


async def test_a_call_ends_with_its_certificate_and_evidence_names_it() -> None:
    issued = issue(uris=[PLANNER])
    caller = await ask(identity_of(clock=now()), **shown(issued))
    assert caller.expires_at == issued.certificate.not_valid_after_utc.timestamp()
    (credential,) = caller.credentials
    evidence = (credential.kind, credential.issuer, credential.key_id)
    assert evidence == ("certificate", PLANNER, thumbprint_of(issued.der))
    assert caller.last.issuer == "certificate"
    assert Presented(certificate=issued.der).kinds == ("certificate",)


async def test_who_was_let_in_by_authorities_that_changed_comes_anew() -> None:
    issued = issue(uris=[PLANNER])
    before = await ask(identity_of(clock=now()), **shown(issued))
    after = identity_of(Certificates(WHOSE.spiffe, trust="other"), now())
    assert not after.vouches_for(before)
    assert (await refused(after, **shown(issued))).reason is Reason.BAD_CREDENTIAL
    moved = Certificates(((SpiffeNames("acme.example", "/ns/*/sa/{id}"), NamingRule("prod")),), trust="ca")
    assert not identity_of(moved, now()).vouches_for(before)
    assert identity_of(clock=now()).vouches_for(before)


# X-Forwarded-Client-Cert

NEAR = TrustedProxyRule(ip_network("10.0.0.0/24"))
HASH = "ab" * 32


def of_no_version(der: bytes) -> str:
    """The same certificate, in a version of X.509 that there is not."""
    changed = der.replace(bytes.fromhex("a003020102"), bytes.fromhex("a003020109"), 1)
    return ssl.DER_cert_to_PEM_cert(changed)


def behind(*proxies: TrustedProxyRule) -> Identity:
    return identity_of(Certificates(WHOSE.spiffe, TABLE, proxies=proxies or (NEAR,), trust="ca"), now())


async def forwarded(line: str, *proxies: TrustedProxyRule, peer: str = "10.0.0.7", **what: Any) -> list[str]:
    return await names_of(behind(*proxies), forwarded=(line,), peer=peer, **what)


ENVOY = f'By=spiffe://acme.example/gw;Hash={HASH};Subject="";URI={PLANNER}'
GOOD: dict[str, tuple[str, str]] = {
    "as Envoy writes it": (ENVOY, "nhi:planner"),
    "the last element": (f"By=a;URI=spiffe://acme.example/ns/prod/sa/writer,{ENVOY}", "nhi:planner"),
    "keys in any case": (f"by=a;hash={HASH.upper()};uri={PLANNER}", "nhi:planner"),
    "a quoted subject": (f'Hash={HASH};Subject="CN=batch,O=Acme"', "nhi:batch"),
    "a DNS name": (f'Hash={HASH};Subject="CN=x";DNS=planner.acme.example;DNS=x', "nhi:planner"),
    "an empty URI beside a DNS name": ("URI=;DNS=planner.acme.example", "nhi:planner"),
    "what is new to us": (f"{ENVOY};Later=x", "nhi:planner"),
    "the whole certificate": (f'Cert="{quote(issue(uris=[PLANNER]).pem)}"', "nhi:planner"),
}


@pytest.mark.parametrize("name", GOOD)
async def test_a_named_proxy_tells_of_its_callers_certificate(name: str) -> None:
    line, expected = GOOD[name]
    assert await forwarded(line) == [expected]


MISSHAPEN: dict[str, str] = {
    **TABLES["headers"],
    "a hash of no digits": f"Hash={'x' * 64};URI={PLANNER}",
    "a certificate of a version that is none": f'Cert="{quote(of_no_version(issue(uris=[PLANNER]).der))}"',
    "another certificate than its hash": f'Hash={HASH};Cert="{quote(issue(uris=[PLANNER]).pem)}"',
    "an authority's certificate": f'Cert="{quote(authority().own.pem)}"',
    "one that is over": f'Cert="{quote(issue(uris=[PLANNER], ends_s=-5).pem)}"',
    "a thousand pairs": ";".join(["By=a"] * 1000),
}


@pytest.mark.parametrize("name", MISSHAPEN)
async def test_what_a_proxy_tells_and_cannot_be_read_is_a_bad_credential(name: str) -> None:
    for at in (ROUTE, OPEN):
        for lines in ((MISSHAPEN[name],), (ENVOY, ENVOY)):  # two lines are two stories
            refusal = await refused(behind(), forwarded=lines, peer="10.0.0.7", at=at)
            assert refusal.reason is Reason.BAD_CREDENTIAL, refusal.detail


STRANGERS = ["10.0.1.7", "127.0.0.1", "", "unix", "::1", "10.0.0", "10.0.0.7.evil", "fe80::1%eth0"]


@pytest.mark.parametrize("peer", STRANGERS)
@pytest.mark.parametrize("line", [ENVOY, "", "planner", "URI=x,,"])
async def test_from_anybody_else_the_header_is_as_if_it_were_not_there(peer: str, line: str) -> None:
    """BL-015."""
    refusal = await refused(behind(), forwarded=(line,), peer=peer)
    assert (refusal.reason, refusal.challenge) == (Reason.UNAUTHENTICATED, "")
    assert (await ask(behind(), OPEN, forwarded=(line,), peer=peer)).is_anonymous
    assert await forwarded(line, peer=peer, api_key=(api_key("nhi:planner"),)) == ["nhi:planner"]


async def test_a_header_that_nobody_admitted_is_not_read() -> None:
    with pytest.raises(Refusal) as caught:
        await behind().identify(Presented(forwarded=(ENVOY,), peer="10.0.0.7"), ROUTE)
    assert caught.value.reason is Reason.UNAUTHENTICATED


@pytest.mark.parametrize(("proxy", "peer"), [
    (TrustedProxyRule(ip_network("10.0.0.7/32")), "10.0.0.7"),
    (TrustedProxyRule(ip_network("10.0.0.7/32")), "::ffff:10.0.0.7"),
    (TrustedProxyRule(ip_network("fd00::/8")), "fd00::7"),
    (TrustedProxyRule(unix=True), "unix"),
])  # fmt: skip
async def test_a_proxy_is_named_by_where_it_is(proxy: TrustedProxyRule, peer: str) -> None:
    assert await forwarded(ENVOY, proxy, peer=peer) == ["nhi:planner"]


GATEWAY = "spiffe://acme.example/ns/prod/sa/gateway"


async def test_a_proxy_is_named_by_its_certificate() -> None:
    gateway, other = shown(issue(uris=[GATEWAY])), shown(issue(uris=["spiffe://acme.example/ns/prod/sa/other"]))
    by_name = TrustedProxyRule(certificate=GATEWAY)
    assert await forwarded(ENVOY, by_name, **gateway) == ["nhi:planner"]
    assert await forwarded(ENVOY, by_name, **other) == ["nhi:other"]
    both = TrustedProxyRule(ip_network("10.0.0.0/24"), certificate=GATEWAY)
    assert await forwarded(ENVOY, both, **gateway) == ["nhi:planner"]
    assert await forwarded(ENVOY, both, peer="10.9.9.9", **gateway) == ["nhi:gateway"]
    refusal = await refused(behind(by_name), forwarded=(ENVOY,), peer="10.0.0.7")
    assert refusal.reason is Reason.UNAUTHENTICATED


async def test_a_proxys_own_certificate_is_never_its_callers() -> None:
    what = {**shown(issue(uris=[GATEWAY])), "peer": "10.0.0.7"}
    assert (await refused(behind(), **what)).reason is Reason.UNAUTHENTICATED
    what["authorization"] = (f"Bearer {token()}",)
    assert await names_of(behind(), **what) == ["user:alice"]
    assert await names_of(behind(), forwarded=(ENVOY,), **what) == ["user:alice", "nhi:planner"]


async def test_a_proxy_that_is_named_no_more_vouches_for_nobody() -> None:
    caller = await ask(behind(), forwarded=(ENVOY,), peer="10.0.0.7")
    assert caller.expires_at is None and behind().vouches_for(caller)
    assert not behind(TrustedProxyRule(ip_network("10.9.0.0/24"))).vouches_for(caller)


async def test_the_first_element_is_the_callers_where_the_operator_says_so() -> None:
    first = TrustedProxyRule(ip_network("10.0.0.0/24"), first=True)
    assert await forwarded(f"{ENVOY},By=a;URI=spiffe://acme.example/ns/prod/sa/mesh", first) == ["nhi:planner"]


def test_a_hash_is_the_thumbprint_of_a_bound_token() -> None:
    issued = issue(uris=[PLANNER])
    digest = issued.certificate.fingerprint(issued.certificate.signature_hash_algorithm)  # SHA-256 too
    assert read_forwarded(f"Hash={digest.hex()};URI={PLANNER}", first=False).thumbprint == thumbprint_of(issued.der)


# sidecar.yaml


def test_the_file_says_whose_certificates_are_whose(tmp_path: Path) -> None:
    text = TABLES["settings"]
    made = certificates_from(settings_of(tmp_path, text).identity, "ca")
    names = [made._principal_of(name) for name in (PLANNER, "spiffe://partner.example/x")]
    assert names == ["nhi:planner", "nhi:partner/x"]
    assert made.table["dns:planner.acme.example"] == "nhi:planner"
    by_name = TrustedProxyRule(unix=True, certificate="spiffe://acme.example/gw", first=True)
    assert made.proxies == (TrustedProxyRule(ip_network("10.0.0.5/32")), by_name)


TLS = "public_url: 'https://x', tls: {cert_path: c, key_path: k"
GRPC = f"server: {{grpc: '127.0.0.1:1', {TLS}, client_ca_path: a, client_certificate: required}}}}"
FAULTS = [
    *TABLES["faults"],
    (
        f"{GRPC}\nidentity: {{certificates: {{others: ignore}}}}",
        "S124",
        "the gRPC listener does not request client certificates",
    ),
]


@pytest.mark.parametrize(("text", "code", "message"), FAULTS)
def test_what_would_let_in_all_callers_or_none_is_a_fault(tmp_path: Path, text: str, code: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        settings_of(tmp_path, f"{text}\n")
    (fault,) = caught.value.faults
    assert (fault.code, fault.message, fault.line) == (code, message, 2) and fault.hint
