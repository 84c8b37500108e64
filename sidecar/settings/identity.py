"""Settings of issuers, API keys and certificates."""

from collections import Counter
from collections.abc import Iterator, Mapping
from ipaddress import ip_network
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from sidecar.settings.field_types import (
    ClaimName,
    KeyUrl,
    Many,
    NhiName,
    PathField,
    Seconds,
    Section,
    Slug,
    Word,
    is_caller,
    is_nhi,
    listed,
    matching,
)
from sidecar.settings.validation_errors import Finding, reject, reject_any

Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""Asymmetric only: with a shared secret, every verifier could issue tokens."""
ALGORITHMS: frozenset[str] = frozenset(get_args(Algorithm))

KEYS_OF_PRESET: Mapping[str, str] = {
    "keycloak": "{issuer}/protocol/openid-connect/certs",  # issuer: https://<host>/realms/<realm>
    "entra": "{issuer_without_version}/discovery/v2.0/keys",  # https://login.microsoftonline.com/<tenant>/v2.0
    "okta": "{issuer}/v1/keys",  # https://<org>.okta.com/oauth2/<server>
    "sidecar": "{issuer}/.well-known/jwks.json",  # the public_url of another sidecar
}
ROLES_OF_PRESET: Mapping[str, str] = {
    "keycloak": "realm_access.roles",
    "entra": "roles",
    "okta": "groups",
    "sidecar": "roles",
}

SVID_ALGORITHMS = ("RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "PS256", "PS384", "PS512")  # JWT-SVID 2.1
FURTHER_OF_PRESET: Mapping[str, Mapping[str, Any]] = {
    "sidecar": {"kinds": ["user", "nhi"], "algorithms": ["ES256"]},
    "spiffe": {"kinds": ["nhi"], "algorithms": [*SVID_ALGORITHMS]},
}

_trust_domain = matching(  # SPIFFE-ID 2.1
    r"[a-z0-9._-]{1,255}", "trust domain", "write acme.example: lower case, without spiffe:// and slashes"
)
_spiffe_path = matching(  # SPIFFE-ID 2.2
    r"(?=.{1,2048}\Z)(?:/(?!\.{1,2}(?:/|\Z))[A-Za-z0-9._-]+)+", "path of a SPIFFE ID", "write /ns/prod/sa/planner"
)


def _spiffe_pattern(text: str) -> str:
    segments = text.split("/")
    if segments.count("{id}") != 1:
        reject("one segment must be {id}, which becomes the NHI's id", hint="write /ns/prod/sa/{id}")
    _spiffe_path("/".join("x" if segment in ("{id}", "*") else segment for segment in segments))
    return text


TrustDomain = Annotated[str, AfterValidator(_trust_domain)]
SpiffePath = Annotated[str, AfterValidator(_spiffe_path)]
SpiffePattern = Annotated[str, AfterValidator(_spiffe_pattern)]


def _certificate_name(text: str) -> str:
    if text.startswith("spiffe://"):
        domain, slash, path = text.removeprefix("spiffe://").partition("/")
        _trust_domain(domain)
        _spiffe_path(slash + path)
        return text
    kind, _, rest = text.partition(":")
    if kind not in ("uri", "dns", "subject") or not rest or not text.isprintable():
        hint = "write spiffe://<trust domain>/<path>, uri:<URI>, dns:<host> or subject:CN=planner,O=Acme"
        reject("this is not a name in a certificate", hint=hint)
    return f"dns:{rest.lower()}" if kind == "dns" else text


def _proxy_address(text: str) -> str:
    try:
        return text if text == "unix" else str(ip_network(text))
    except ValueError:
        reject("this is not an address or a network", hint="write 10.0.0.5, 10.1.0.0/24, fd00::/8 or unix")


CertificateName = Annotated[str, Field(max_length=2100), AfterValidator(_certificate_name)]
ProxyAddress = Annotated[str, AfterValidator(_proxy_address)]


class RolesFromSettings(Section):
    """Roles that a token grants to its own subject: `role:<namespace>/<value>`."""

    claim: ClaimName
    """Claim that holds a string or a list of strings. Dots select members of objects: `realm_access.roles`."""
    namespace: Slug
    """Namespace of these roles."""
    only: Many[Word] = ()
    """Values that become roles. `*` matches any run of characters. Default: all values."""
    required: bool = False
    """Whether a token without the claim is refused."""


class SpiffeSettings(Section):
    """The NHIs of the workloads in a SPIFFE trust domain."""

    trust_domain: TrustDomain
    """Trust domain, such as `acme.example` in `spiffe://acme.example/ns/prod/sa/planner`. IDs of other trust domains do
    not match."""
    path: SpiffePattern | None = None
    """Pattern for the path of an ID. In `/ns/prod/sa/{id}`, the segment `{id}` becomes the id of the NHI. `*` matches
    one segment."""
    workloads: Mapping[SpiffePath, NhiName] = {}
    """Map from paths to `nhi:<name>`. It takes precedence over `path`."""

    def _faults(self) -> Iterator[Finding]:
        if self.path is None and not self.workloads:
            hint = 'write path: "/ns/prod/sa/{id}", or workloads: {/ns/prod/sa/planner: nhi:planner}'
            yield Finding("no workload of this trust domain is mapped to a principal", "S123", hint, ("trust_domain",))


class CertificateDomain(SpiffeSettings):
    """The NHIs of the X.509-SVIDs of a trust domain."""

    namespace: Slug | None = None
    """Namespace of the NHIs that `path` names: `nhi:<namespace>/<id>`. Of several trust domains, only one can omit
    it."""


class CertificateSettings(Section):
    """The principals of client certificates."""

    spiffe: Many[CertificateDomain] = ()
    """Trust domains. A certificate with a SPIFFE ID identifies that workload, and its other names are ignored."""
    names: Annotated[Mapping[CertificateName, str], Field(max_length=10_000)] = {}
    """Map from names in certificates (`spiffe://…`, `uri:…`, `dns:…`, `subject:CN=planner,O=Acme`) to `nhi:…` or
    `user:…`."""
    others: Literal["refuse", "ignore"] = "refuse"
    """How to treat a certificate without a known name: `refuse` it as a bad credential, or `ignore` it except as the
    key that a token may be bound to."""

    def _faults(self) -> Iterator[Finding]:
        if not self.spiffe and not self.names and self.others == "refuse":
            hint = "write spiffe: [...] or names: {...}, or others: ignore"
            yield Finding("every certificate would be refused", "S125", hint)
        bare = {entry.trust_domain for entry in self.spiffe if entry.namespace is None}
        if len(bare) > 1:
            hint = "with several trust domains, all but one need a namespace"
            yield Finding("two trust domains could name the same NHI", "S125", hint, ("spiffe",))
        for name, principal in self.names.items():
            if not is_caller(principal):
                hint = "write nhi:<id> or user:<id>"
                yield Finding("a certificate identifies an NHI or a user", hint=hint, at=("names", name))


class TrustedProxy(Section):
    """A proxy that may forward the certificate of its caller. It must match all conditions that are set."""

    address: ProxyAddress | None = None
    """Address of the proxy: an IP address, a network such as `10.1.0.0/24`, or `unix`."""
    certificate: CertificateName | None = None
    """Name in the client certificate of the proxy."""
    element: Literal["last", "first"] = "last"
    """Element of the header that describes the caller. Use `first` only if this proxy does not accept the header from
    its callers."""

    def _faults(self) -> Iterator[Finding]:
        if self.address is None and self.certificate is None:
            hint = "write address: 10.0.0.5, or certificate: spiffe://acme.example/gateway"
            yield Finding(
                "without an address or a certificate, every caller would be this proxy", "S126", hint, on_key=True
            )


class IssuerSettings(Section):
    """An issuer of tokens, and the names that its tokens may contain."""

    issuer: Word
    """Exact `iss` of its tokens."""
    preset: Annotated[
        Literal["keycloak", "entra", "okta", "spiffe", "sidecar"] | None,
        Field(description="Defaults for the tokens of a product. Settings in the file take precedence."),
    ] = None
    audiences: Many[Word] = ()
    """Accepted values of `aud`, in addition to the called address (`<public_url>/mcp/<server>`)."""
    jwks_url: KeyUrl | None = None
    """URL of the issuer's public keys. All presets except `spiffe` set it."""
    jwks_path: PathField | None = None
    """File with the issuer's public keys, instead of `jwks_url`."""
    algorithms: Annotated[Many[Algorithm], Field(min_length=1)] = ("RS256",)
    """Accepted signature algorithms."""
    kinds: Annotated[Many[Literal["user", "nhi"]], Field(min_length=1)] = ("user",)
    """Kinds of principals that its tokens may name."""
    namespace: Slug | None = None
    """Namespace of the principals in its tokens: `user:<namespace>/<id>`. Of several issuers, only one can omit it."""
    typ: Annotated[
        Many[Annotated[Word, AfterValidator(lambda word: "" if word == "none" else word)]], BeforeValidator(listed)
    ] = ()
    """Accepted `typ` headers of access tokens. `none` accepts tokens without one. Default: `at+jwt` and `JWT`, or those
    of the preset."""
    actor_from: Literal["act", "azp", "client_id", "cid", "appid"] | None = None
    """Claim with the client id to look up in `clients`. `act` looks up nothing, because the sidecar always reads `act`
    (RFC 8693)."""
    clients: Mapping[Word, str] = {}
    """Map from client ids to `direct` (a person's own program) or `nhi:<name>`. A client that is not listed is
    refused."""
    roles_from: RolesFromSettings | None = None
    """Roles from a claim of the token."""
    kind_claim: ClaimName | None = None
    """Claim whose value is `user` or `nhi`. Without it, if there are several `kinds`, `sub` contains the kind:
    `nhi:planner`."""
    subject_kind: Literal["user", "nhi"] | None = None
    """Kind of every bare `sub`, if `kinds` has both. Each `act.sub` is then a bare NHI, as in RFC 8693."""

    actors: Many[NhiName] = ()
    """Makes the issuer a peer, another sidecar that may speak for these NHIs. The newest actor of its tokens, or the
    audience of a token that it delegates, must be one of them."""
    relays: Many[Slug] = ()
    """For a peer without `namespace`: namespaces of other issuers whose names it may pass on."""

    spiffe: SpiffeSettings | None = None
    """Makes `sub` a SPIFFE ID that identifies an NHI. The preset `spiffe` requires it."""

    @model_validator(mode="before")
    @classmethod
    def _fill_from_preset(cls, given: Any) -> Any:
        """Adds the preset's values for settings that are missing. Token formats of products are in
        `sidecar.identity`."""
        preset = given.get("preset") if isinstance(given, dict) else None
        if not isinstance(preset, str) or preset not in (*KEYS_OF_PRESET, *FURTHER_OF_PRESET):
            return given
        filled = {**FURTHER_OF_PRESET.get(preset, {}), **given}
        if preset in KEYS_OF_PRESET and "jwks_url" not in given and "jwks_path" not in given:
            issuer = str(given.get("issuer", "")).rstrip("/")
            places = {"issuer": issuer, "issuer_without_version": issuer.removesuffix("/v2.0")}
            filled["jwks_url"] = KEYS_OF_PRESET[preset].format(**places)
        roles = given.get("roles_from")
        if isinstance(roles, dict) and preset in ROLES_OF_PRESET:
            filled["roles_from"] = {"claim": ROLES_OF_PRESET[preset], **roles}
        return filled

    @field_validator("algorithms", mode="before")
    @classmethod
    def _no_shared_secret(cls, given: Any) -> Any:
        hint = "write asymmetric algorithms, such as RS256, ES256 or EdDSA"
        reject_any(
            Finding(f"{name} is not accepted", "S106", hint, (index,))
            for index, name in enumerate(given if isinstance(given, list) else [])
            if isinstance(name, str) and (name.upper().startswith("HS") or name.lower() == "none")
        )
        return given

    @field_validator("clients")
    @classmethod
    def _known_clients(cls, clients: Mapping[str, str]) -> Mapping[str, str]:
        reject_any(
            Finding("a client must be direct or an NHI", hint="write direct, or nhi:<id>", at=(client,))
            for client, means in clients.items()
            if means != "direct" and not is_nhi(means)
        )
        return clients

    def _faults(self) -> Iterator[Finding]:
        if (self.jwks_url is None) == (self.jwks_path is None):
            hint = "write jwks_url: https://... or jwks_path: keys.json"
            yield Finding("an issuer needs exactly one of jwks_url and jwks_path", "S107", hint, ("issuer",))
        if self.actor_from not in (None, "act") and not self.clients:
            hint = "write clients: {<client id>: direct} or {<client id>: nhi:<name>}"
            yield Finding("actor_from without clients refuses every token", "S108", hint, ("actor_from",))
        if self.clients and (self.actor_from == "act" or (self.actor_from is None and self.preset is None)):
            yield Finding("clients are read only with actor_from", "S108", "write actor_from: azp", ("clients",))
        if self.subject_kind and (self.kind_claim or set(self.kinds) != {"user", "nhi"}):
            hint = "it applies to kinds: [user, nhi] without kind_claim"
            yield Finding("subject_kind is not needed here", "S109", hint, ("subject_kind",))
        yield from self._peer_faults()
        yield from self._spiffe_faults()
        if "nhi" not in self.kinds and any(means != "direct" for means in self.clients.values()):
            hint = "write kinds: [user, nhi]"
            yield Finding("this issuer cannot name an NHI", "S109", hint, ("clients",))

    def _peer_faults(self) -> Iterator[Finding]:
        if self.preset == "sidecar" and not self.actors:
            hint = "write actors: [nhi:<name>], the agents of that sidecar"
            yield Finding("a peer needs actors: without them it could speak for every NHI", "S122", hint, ("issuer",))
        if self.relays and (not self.actors or self.namespace):
            hint = "relays applies to an issuer with actors and without a namespace"
            yield Finding("relays has no effect for this issuer", "S122", hint, ("relays",))
        if self.actors and self.preset in ("keycloak", "entra", "okta"):
            yield Finding("this preset does not support actors", "S122", "write preset: sidecar", ("preset",))
        if self.actors:
            for key in ("kind_claim", "subject_kind", "actor_from", "clients"):
                if getattr(self, key):
                    hint = "the tokens of a peer contain the kinds and actors"
                    yield Finding(f"{key} does not apply to an issuer with actors", "S122", hint, (key,))
            if "nhi" not in self.kinds:
                yield Finding("this issuer cannot name an NHI", "S109", "write kinds: [user, nhi]", ("kinds",))

    def _spiffe_faults(self) -> Iterator[Finding]:
        if self.spiffe is None:
            if self.preset == "spiffe":
                hint = 'write spiffe: {trust_domain: acme.example, path: "/ns/prod/sa/{id}"}'
                yield Finding("the preset spiffe needs the key spiffe", "S123", hint, ("issuer",))
            return
        if self.preset not in (None, "spiffe"):
            yield Finding("this preset does not support SPIFFE IDs", "S123", "write preset: spiffe", ("preset",))
        for key in ("kind_claim", "subject_kind", "actor_from", "clients", "actors"):
            if getattr(self, key):
                yield Finding(f"{key} does not apply to SPIFFE IDs", "S123", "remove it", (key,))
        if self.kinds != ("nhi",):
            yield Finding("a SPIFFE ID identifies a workload, never a user", "S123", "write kinds: [nhi]", ("kinds",))
        if self.preset == "spiffe" and "EdDSA" in self.algorithms:
            yield Finding("a JWT-SVID is never signed with EdDSA", "S106", "remove it", ("algorithms",))


class IdentitySettings(Section):
    """Tokens, API keys and certificates that identify callers."""

    issuers: Many[IssuerSettings] = ()
    """Issuers whose tokens are accepted."""
    api_keys_path: PathField | None = None
    """YAML file with the MACs of the API keys."""
    api_keys_pepper_path: PathField | None = None
    """File with the secret that hashes API keys, the same at all replicas. Default: a secret that is created in the
    data folder."""
    certificates: CertificateSettings | None = None
    """Principals of client certificates."""
    trusted_proxies: Many[TrustedProxy] = ()
    """Proxies whose `X-Forwarded-Client-Cert` header is accepted. From all other callers, the header is ignored."""
    max_token_lifetime_s: Seconds = 86400.0
    """Maximum lifetime of a token (`exp` - `iat`). A token with a longer lifetime is refused."""

    def _faults(self) -> Iterator[Finding]:
        """Checks that no issuer can mint names of another."""
        names = Counter(issuer.issuer for issuer in self.issuers)
        spaces = Counter(issuer.namespace for issuer in self.issuers)
        domains = Counter(one.spiffe.trust_domain for one in self.issuers if one.spiffe and one.preset == "spiffe")
        # A peer has no names of its own: the names it relays belong to other issuers.
        minting = {i for i, issuer in enumerate(self.issuers) if not issuer.actors}
        first_without = next((i for i in sorted(minting) if self.issuers[i].namespace is None), None)
        for index, issuer in enumerate(self.issuers):
            at = ("issuers", index)
            if names[issuer.issuer] > 1:
                yield Finding("this issuer is listed twice", "S110", "keep one entry for each issuer", (*at, "issuer"))
            if issuer.namespace is None and index in minting and index != first_without:
                hint = "with several issuers, all but one need a namespace"
                yield Finding('the key "namespace" is missing', "S111", hint, (*at, "issuer"))
            if issuer.namespace and spaces[issuer.namespace] > 1:
                yield Finding("two issuers share this namespace", "S111", "give each its own", (*at, "namespace"))
            workloads = issuer.spiffe.workloads if issuer.spiffe else {}
            if issuer.spiffe and issuer.preset == "spiffe" and domains[issuer.spiffe.trust_domain] > 1:
                domain = (*at, "spiffe", "trust_domain")
                yield Finding("two issuers share this trust domain", "S111", "keep one of them", domain)
            named: dict[tuple[str, ...], str] = {("clients", client): name for client, name in issuer.clients.items()}
            named |= {("spiffe", "workloads", path): name for path, name in workloads.items()}
            for place, name in named.items():
                namespace, slash, _ = name.partition(":")[2].partition("/")
                if slash and namespace != issuer.namespace and namespace in spaces:
                    hint = f"only the issuer of that namespace may name {name}"
                    yield Finding("this name is in another issuer's namespace", "S111", hint, (*at, *place))
