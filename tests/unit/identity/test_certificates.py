"""Is a certificate exactly whom the operator says, and is no other certificate anybody?"""

from __future__ import annotations

import ssl
from ipaddress import ip_network
from pathlib import Path
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
from sidecar.settings import Settings, load_settings
from sidecar.vocabulary import Caller
from tests.unit.identity.authority import Issued, authority
from tests.unit.identity.test_chain_builder import api_key, keys_of
from tests.unit.identity.world import GITHUB, ROUTE, Clock, KeyServer, an_issuer, minted, signing_key

DOMAIN = SpiffeNames("acme.example", "/ns/prod/sa/{id}", {"/vm/7": "nhi:nightly"})
PLANNER = "spiffe://acme.example/ns/prod/sa/planner"
TABLE = {
    "dns:planner.acme.example": "nhi:planner",
    "dns:writer.acme.example": "nhi:writer",
    "uri:urn:acme:alice": "user:alice",
    "subject:CN=batch,O=Acme": "nhi:batch",
    "spiffe://other.example/known": "nhi:known",
}
WHOSE = Certificates(((DOMAIN, NamingRule()),), TABLE, trust="ca")
OPEN = Audience(GITHUB, anonymous=True)


def identity_of(certificates: Certificates = WHOSE, clock: Clock | None = None) -> Identity:
    server, time = KeyServer(), clock or Clock()
    server.serve("https://idp.acme.example", signing_key())
    keys = keys_of("nhi:planner", "user:alice")
    return Identity((an_issuer(),), keys, certificates, fetch=server.fetch, clock=time.wall, mono=time.monotonic)


async def ask(identity: Identity, at: Audience = ROUTE, **what: Any) -> Caller:
    return await identity.identify(identity.admit(Presented(**what)), at)


async def who(issued: Issued, identity: Identity | None = None, **what: Any) -> list[str]:
    # The tests' clock stands in 2027: a certificate that holds now would be over there.
    caller = await ask(identity or identity_of(clock=now()), certificate=issued.der, trust="ca", **what)
    return [principal.name for principal in caller.chain]


async def refused(identity: Identity, **what: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        await ask(identity, **what)
    return caught.value


def now() -> Clock:
    from time import time

    return Clock(now=time())


issue = authority().issue

NAMED: dict[str, tuple[dict[str, Any], str]] = {
    "an SVID by the pattern": ({"uris": [PLANNER]}, "nhi:planner"),
    "an SVID by the table of its domain": ({"uris": ["spiffe://acme.example/vm/7"]}, "nhi:nightly"),
    "an SVID by the table of names": ({"uris": ["spiffe://other.example/known"]}, "nhi:known"),
    "an SVID with a DNS name of somebody else": ({"uris": [PLANNER], "dns": ["writer.acme.example"]}, "nhi:planner"),
    "a DNS name": ({"dns": ["planner.acme.example"]}, "nhi:planner"),
    "a DNS name in capitals": ({"dns": ["PLANNER.acme.example"]}, "nhi:planner"),
    "two names of one": ({"dns": ["planner.acme.example", "x.acme.example"]}, "nhi:planner"),
    "a URI of a user": ({"uris": ["urn:acme:alice"]}, "user:alice"),
    "a whole subject": ({"common_name": "batch"}, "nhi:batch"),
}


@pytest.mark.parametrize("name", NAMED)
async def test_a_certificate_is_whom_the_operator_wrote_down(name: str) -> None:
    shape, expected = NAMED[name]
    assert await who(issue(**shape)) == [expected]


NOBODY: dict[str, dict[str, Any]] = {
    "no name at all": {},
    "an unknown DNS name": {"dns": ["other.acme.example"]},
    "a wildcard": {"dns": ["*.acme.example"]},
    "a common name like a DNS name": {"common_name": "planner.acme.example"},
    "a common name like an SVID": {"common_name": PLANNER},
    "a common name without its organisation": {"common_name": "planner"},
    "a DNS name like a principal": {"dns": ["nhi.planner"]},
    "two principals": {"dns": ["planner.acme.example", "writer.acme.example"]},
    "an SVID of another domain": {"uris": ["spiffe://evil.example/ns/prod/sa/planner"]},
    "an SVID of another path": {"uris": ["spiffe://acme.example/ns/test/sa/planner"]},
    "the domain itself": {"uris": ["spiffe://acme.example"]},
    "two SPIFFE IDs": {"uris": [PLANNER, "spiffe://acme.example/ns/prod/sa/writer"]},
    "one SPIFFE ID twice": {"uris": [PLANNER, PLANNER]},
    "a SPIFFE ID and another URI": {"uris": [PLANNER, "urn:acme:alice"]},
    "another URI and a SPIFFE ID": {"uris": ["urn:acme:alice", PLANNER]},
    "dot segments": {"uris": ["spiffe://acme.example/ns/x/../prod/sa/planner"]},
    "a wildcard ID": {"uris": ["spiffe://acme.example/ns/prod/sa/*"]},
    "an encoded ID": {"uris": ["spiffe://acme.example/ns/prod/sa/plan%6eer"]},
    "capitals": {"uris": ["SPIFFE://acme.example/ns/prod/sa/planner"]},
    "a port": {"uris": ["spiffe://acme.example:443/ns/prod/sa/planner"]},
    "a query": {"uris": [f"{PLANNER}?a"]},
    "a trailing slash": {"uris": [f"{PLANNER}/"]},
    "an unknown ID with a known DNS name": {
        "uris": ["spiffe://acme.example/ns/test/sa/x"],
        "dns": ["planner.acme.example"],
    },
    "a misshapen ID with a known DNS name": {"uris": ["spiffe:/x"], "dns": ["planner.acme.example"]},
    "an authority": {"uris": [PLANNER], "ca": True},
    "one that may sign": {"uris": [PLANNER], "signs": True},
    "an authority with a known DNS name": {"dns": ["planner.acme.example"], "ca": True},
    "one that is over": {"uris": [PLANNER], "ends_s": -5},
}


@pytest.mark.parametrize("name", NOBODY)
async def test_every_other_certificate_is_a_bad_credential_and_never_nobody(name: str) -> None:
    issued = issue(**NOBODY[name])
    for at in (ROUTE, OPEN):
        refusal = await refused(identity_of(clock=now()), certificate=issued.der, trust="ca", at=at)
        assert refusal.reason is Reason.BAD_CREDENTIAL, refusal.detail


@pytest.mark.parametrize("der", [b"x", b"\x30\x00", issue(uris=[PLANNER]).der[:-5], issue().der + b"x"])
def test_bytes_that_are_no_certificate_are_none(der: bytes) -> None:
    with pytest.raises(CertificateError):
        read_certificate(der)


async def test_where_others_are_ignored_they_prove_nothing_at_all() -> None:
    identity = identity_of(Certificates(table=TABLE, refuse_others=False, trust="ca"), now())
    other = {"certificate": issue(dns=["x.acme.example"]).der, "trust": "ca"}
    assert (await refused(identity, **other)).reason is Reason.UNAUTHENTICATED
    assert (await ask(identity, OPEN, **other)).is_anonymous
    assert (await ask(identity, authorization=(f"Bearer {token()}",), **other)).last.name == "user:alice"
    assert await who(issue(dns=["planner.acme.example"]), identity) == ["nhi:planner"]
    over = {"certificate": issue(dns=["x.acme.example"], ends_s=-5).der, "trust": "ca"}
    refusal = await refused(identity, **over)
    assert (refusal.reason, refusal.credential_fault) == (Reason.BAD_CREDENTIAL, "expired")


def token(**changes: Any) -> str:
    at = int(now().now)
    return minted(iat=at - 10, exp=at + 600, **changes)


# Together with other credentials


async def test_a_users_token_and_a_certificate_give_user_then_workload() -> None:
    planner = issue(uris=[PLANNER])
    assert await who(planner, authorization=(f"Bearer {token()}",)) == ["user:alice", "nhi:planner"]
    acting = token(act={"sub": "nhi:planner"})
    assert await who(planner, authorization=(f"Bearer {acting}",)) == ["user:alice", "nhi:planner"]
    lent = token(act={"sub": "nhi:front"}, aud="nhi:planner")
    assert await who(planner, authorization=(f"Bearer {lent}",)) == ["user:alice", "nhi:front", "nhi:planner"]


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
    what = {"certificate": issue(uris=[PLANNER]).der, "trust": "ca", **CONFLICTS[name]}
    assert (await refused(identity_of(clock=now()), **what)).reason is Reason.CREDENTIAL_CONFLICT


async def test_a_users_certificate_and_a_token_name_one_place() -> None:
    what = {"certificate": issue(uris=["urn:acme:alice"]).der, "trust": "ca"}
    refusal = await refused(identity_of(clock=now()), authorization=(f"Bearer {token()}",), **what)
    assert refusal.reason is Reason.CREDENTIAL_CONFLICT


async def test_a_bad_token_beside_a_good_certificate_is_bad() -> None:
    for line in ("Bearer x", "Bearer", "Basic abc", f"Bearer {token(aud='x')}"):
        what = {"certificate": issue(uris=[PLANNER]).der, "trust": "ca", "authorization": (line,)}
        assert (await refused(identity_of(clock=now()), **what)).reason is Reason.BAD_CREDENTIAL


async def test_a_call_ends_with_its_certificate_and_evidence_names_it() -> None:
    issued = issue(uris=[PLANNER])
    caller = await ask(identity_of(clock=now()), certificate=issued.der, trust="ca")
    assert caller.expires_at == issued.certificate.not_valid_after_utc.timestamp()
    (credential,) = caller.credentials
    assert (credential.kind, credential.issuer, credential.key_id) == (
        "certificate",
        PLANNER,
        thumbprint_of(issued.der),
    )
    assert caller.last.issuer == "certificate"
    assert Presented(certificate=issued.der).kinds == ("certificate",)


async def test_who_was_let_in_by_authorities_that_changed_comes_anew() -> None:
    issued = issue(uris=[PLANNER])
    before = await ask(identity_of(clock=now()), certificate=issued.der, trust="ca")
    after = identity_of(Certificates(WHOSE.spiffe, trust="other"), now())
    assert not after.vouches_for(before)
    assert (await refused(after, certificate=issued.der, trust="ca")).reason is Reason.BAD_CREDENTIAL
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
    caller = await ask(behind(*proxies), forwarded=(line,), peer=peer, **what)
    return [principal.name for principal in caller.chain]


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


SUBJECT = f'Hash={HASH};Subject="CN=\\"batch\\",O=Acme"'
MISSHAPEN: dict[str, str] = {
    "empty": "",
    "no pair": "planner",
    "no key": f"={PLANNER}",
    "an open quote": f'Subject="CN=batch;URI={PLANNER}',
    "a quote inside": f'URI=spi"ffe://x;URI={PLANNER}',
    "after a quote": f'Subject="a"b;URI={PLANNER}',
    "an end that is cut": f"{ENVOY},",
    "an end with nothing": f"{ENVOY};",
    "an escaped name that is another": SUBJECT,
    "two URIs": f"URI={PLANNER};URI={PLANNER}",
    "two subjects": 'Subject="CN=batch,O=Acme";Subject="CN=batch,O=Acme"',
    "two hashes": f"Hash={HASH};Hash={HASH};URI={PLANNER}",
    "a short hash": f"Hash=abcd;URI={PLANNER}",
    "a hash of no digits": f"Hash={'x' * 64};URI={PLANNER}",
    "a certificate that is none": "Cert=AAAA",
    "a certificate of a version that is none": f'Cert="{quote(of_no_version(issue(uris=[PLANNER]).der))}"',
    "another certificate than its hash": f'Hash={HASH};Cert="{quote(issue(uris=[PLANNER]).pem)}"',
    "an authority's certificate": f'Cert="{quote(authority().own.pem)}"',
    "one that is over": f'Cert="{quote(issue(uris=[PLANNER], ends_s=-5).pem)}"',
    "nobody": f"Hash={HASH}",
    "a name with a letter that looks like one": "URI=spiffe://acme.example/ns/prod/sa/pl\u0430nner",
    "a thousand pairs": ";".join(["By=a"] * 1000),
}


@pytest.mark.parametrize("name", MISSHAPEN)
async def test_what_a_proxy_tells_and_cannot_be_read_is_a_bad_credential(name: str) -> None:
    for at in (ROUTE, OPEN):
        refusal = await refused(behind(), forwarded=(MISSHAPEN[name],), peer="10.0.0.7", at=at)
        assert refusal.reason is Reason.BAD_CREDENTIAL, refusal.detail


async def test_two_lines_are_two_stories() -> None:
    assert (await refused(behind(), forwarded=(ENVOY, ENVOY), peer="10.0.0.7")).reason is Reason.BAD_CREDENTIAL


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
    gateway, other = issue(uris=[GATEWAY]), issue(uris=["spiffe://acme.example/ns/prod/sa/other"])
    by_name = TrustedProxyRule(certificate=GATEWAY)
    assert await forwarded(ENVOY, by_name, certificate=gateway.der, trust="ca") == ["nhi:planner"]
    assert await forwarded(ENVOY, by_name, certificate=other.der, trust="ca") == ["nhi:other"]
    both = TrustedProxyRule(ip_network("10.0.0.0/24"), certificate=GATEWAY)
    assert await forwarded(ENVOY, both, certificate=gateway.der, trust="ca") == ["nhi:planner"]
    assert await forwarded(ENVOY, both, peer="10.9.9.9", certificate=gateway.der, trust="ca") == ["nhi:gateway"]
    refusal = await refused(behind(by_name), forwarded=(ENVOY,), peer="10.0.0.7")
    assert refusal.reason is Reason.UNAUTHENTICATED


async def test_a_proxys_own_certificate_is_never_its_callers() -> None:
    gateway = issue(uris=[GATEWAY])
    what = {"certificate": gateway.der, "trust": "ca", "peer": "10.0.0.7"}
    assert (await refused(behind(), **what)).reason is Reason.UNAUTHENTICATED
    caller = await ask(behind(), authorization=(f"Bearer {token()}",), **what)
    assert [principal.name for principal in caller.chain] == ["user:alice"]
    caller = await ask(behind(), authorization=(f"Bearer {token()}",), forwarded=(ENVOY,), **what)
    assert [principal.name for principal in caller.chain] == ["user:alice", "nhi:planner"]


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


def settings_of(folder: Path, text: str) -> Settings:
    (folder / "sidecar.yaml").write_text(f"version: 1\n{text}\n")
    return load_settings(folder / "sidecar.yaml", {}, check_files=False)


def test_the_file_says_whose_certificates_are_whose(tmp_path: Path) -> None:
    settings = settings_of(
        tmp_path,
        """
identity:
  certificates:
    spiffe:
      - {trust_domain: acme.example, path: "/ns/*/sa/{id}"}
      - {trust_domain: partner.example, path: "/{id}", namespace: partner}
    names: {"dns:Planner.acme.example": "nhi:planner", "subject:CN=batch,O=Acme": "nhi:batch"}
  trusted_proxies:
    - {address: 10.0.0.5}
    - {address: unix, certificate: "spiffe://acme.example/gw", element: first}
""",
    )
    made = certificates_from(settings.identity, "ca")
    assert [made._principal_of(name) for name in (PLANNER, "spiffe://partner.example/x")] == [
        "nhi:planner",
        "nhi:partner/x",
    ]
    assert made.table["dns:planner.acme.example"] == "nhi:planner"
    assert made.proxies == (
        TrustedProxyRule(ip_network("10.0.0.5/32")),
        TrustedProxyRule(unix=True, certificate="spiffe://acme.example/gw", first=True),
    )


TLS = "cert_path: c, key_path: k"
FAULTS = [
    (
        f"server: {{public_url: 'https://x', grpc: '127.0.0.1:1', tls: {{{TLS}, client_ca_path: a, "
        "client_certificate: required}}\nidentity: {certificates: {others: ignore}}",
        "S124",
        "the gRPC listener asks for no client certificate",
    ),
    ("identity: {certificates: {}}", "S125", "every certificate would be refused"),
    (
        "identity: {certificates: {spiffe: [{trust_domain: a, path: '/{id}'}, {trust_domain: b, path: '/{id}'}]}}",
        "S125",
        "two trust domains could name the same NHI",
    ),
    ("identity: {certificates: {names: {'dns:a': 'role:a'}}}", "Y104", "a certificate belongs to an NHI or a user"),
    ("identity: {certificates: {names: {planner: 'nhi:a'}}}", "Y104", "this is no name in a certificate"),
    ("identity: {certificates: {names: {'cn:planner': 'nhi:a'}}}", "Y104", "this is no name in a certificate"),
    ("identity: {certificates: {names: {'spiffe://A/b': 'nhi:a'}}}", "Y104", "this is no trust domain"),
    ("identity: {certificates: {others: ignore}}", "S125", "no caller is asked for a certificate"),
    ("identity: {trusted_proxies: [{address: unix}]}", "S125", "the owners of certificates are not configured"),
    ("identity: {trusted_proxies: [{}]}", "S126", "every caller would be this proxy"),
    ("identity: {trusted_proxies: [{address: gw.acme.example}]}", "Y104", "this is no address or network"),
    ("identity: {trusted_proxies: [{address: 10.0.0.1/24}]}", "Y104", "this is no address or network"),
    (
        f"server: {{public_url: 'https://x', tls: {{{TLS}, client_ca_path: a}}}}",
        "S125",
        "the owners of client certificates are not configured",
    ),
    (
        f"server: {{public_url: 'https://x', tls: {{{TLS}, client_certificate: required}}}}",
        "S124",
        "no certificate could be good enough",
    ),
]


@pytest.mark.parametrize(("text", "code", "message"), FAULTS)
def test_what_would_let_in_everybody_or_nobody_is_a_fault(tmp_path: Path, text: str, code: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        settings_of(tmp_path, text)
    (fault,) = caught.value.faults
    assert (fault.code, fault.message, fault.line) == (code, message, 2)
    assert fault.hint
