"""Builds identity from the settings."""

from __future__ import annotations

from ipaddress import ip_network

from sidecar.errors import SettingsError, Together, fault_in
from sidecar.identity.agent_tokens import AgentTokenRule, digest_of
from sidecar.identity.api_keys import ApiKeys, read_pepper, records_of
from sidecar.identity.certificates import Certificates, TrustedProxyRule
from sidecar.identity.credentials import UNIX
from sidecar.identity.issuers import DEFAULT_TYP, KindRule, TrustedIssuer, with_preset
from sidecar.identity.jwks import JwksError, parse_jwks, read_jwks_file
from sidecar.identity.names import NamingRule
from sidecar.identity.spiffe import SpiffeNames
from sidecar.settings.identity import IdentitySettings, IssuerSettings as IssuerSettings, SpiffeSettings
from sidecar.settings.secrets import check_private
from sidecar.settings.sidecar_file import Settings
from sidecar.settings.yaml_document import read_document

NO_PEPPER = "the pepper of the API keys is missing: without it, no key is valid"


def issuers_from(settings: IdentitySettings) -> tuple[TrustedIssuer, ...]:
    """Returns the configured issuers; their key-set files are read once as a check. Raises SettingsError."""
    issuers = tuple(_issuer(entry) for entry in settings.issuers)
    for issuer in issuers:
        if issuer.jwks_path is not None:
            try:
                parse_jwks(read_jwks_file(issuer.jwks_path), issuer.key_use)
            except (OSError, JwksError) as error:
                fault = fault_in(issuer.jwks_path, f"no usable key set: {error}", code="S316")
                raise SettingsError([fault]) from None
    return issuers


def certificates_from(settings: IdentitySettings, trust: str) -> Certificates:
    chosen = settings.certificates
    spaces = frozenset(issuer.namespace for issuer in settings.issuers if issuer.namespace)
    return Certificates(
        spiffe=tuple(
            (_spiffe_names(entry), NamingRule(entry.namespace or "", spaces - {entry.namespace}))
            for entry in (chosen.spiffe if chosen else ())
        ),
        table=chosen.names if chosen else {},
        refuse_others=chosen is None or chosen.others == "refuse",
        proxies=tuple(
            TrustedProxyRule(
                None if entry.address in (None, UNIX) else ip_network(str(entry.address)),
                entry.address == UNIX,
                entry.certificate or "",
                entry.element == "first",
            )
            for entry in settings.trusted_proxies
        ),
        trust=trust,
    )


def api_keys_from(settings: Settings, now: float) -> ApiKeys:
    """Returns the configured API keys. Raises SettingsError, also for keys without a pepper, because none of them could
    match."""
    path = settings.identity.api_keys_path
    if path is None:
        return ApiKeys()
    check_private(path)
    records = records_of(read_document(path), now)
    if not records:
        return ApiKeys()
    pepper = settings.api_keys_pepper_path
    if not pepper.exists():
        hint = "every replica needs the one that `sidecar token api-key` created: copy it here, or name it with"
        raise SettingsError([fault_in(pepper, NO_PEPPER, code="S317", hint=f"{hint} identity.api_keys_pepper_path")])
    return ApiKeys(records, read_pepper(pepper))


def gates_from(settings: Settings) -> dict[str, AgentTokenRule]:
    """Returns the tokens of agents' own addresses, by agent. Raises SettingsError for a token that is unreadable or
    weak."""
    together, gates = Together(), dict[str, AgentTokenRule]()
    for name, _, offer in settings.offers():
        auth = offer.authentication
        if auth is None or auth.principal is None:
            continue
        with together.noted():
            token = digest_of(auth.token())
            gates[name] = AgentTokenRule(name, auth.principal, auth.header, token, auth.required)
    together.refuse()
    return gates


def aliases_in(settings: Settings) -> tuple[str, ...]:
    return tuple(offer.base_path for _, _, offer in settings.offers() if offer.base_path is not None)


def _issuer(entry: IssuerSettings) -> TrustedIssuer:
    issuer = TrustedIssuer(
        issuer=entry.issuer,
        jwks_url=entry.jwks_url or "",
        jwks_path=entry.jwks_path,
        audiences=entry.audiences,
        algorithms=entry.algorithms,
        kinds=entry.kinds,
        namespace=entry.namespace or "",
        typ=entry.typ or DEFAULT_TYP,
        actor_from="" if entry.actor_from in (None, "act") else entry.actor_from,
        clients=entry.clients,
        roles_from=entry.roles_from,
        kind_rules=_rules(entry),
        actors=frozenset(entry.actors),
        relays=frozenset(entry.relays),
        spiffe=_spiffe_names(entry.spiffe) if entry.spiffe else None,
    )
    return with_preset(issuer, entry.preset) if entry.preset else issuer


def _spiffe_names(entry: SpiffeSettings) -> SpiffeNames:
    return SpiffeNames(entry.trust_domain, entry.path or "", entry.workloads)


def _rules(entry: IssuerSettings) -> tuple[KindRule, ...]:
    if entry.subject_kind:
        return (KindRule(entry.subject_kind, "sub"),)  # every token has `sub`
    claim = entry.kind_claim
    return (KindRule("user", claim, "user"), KindRule("nhi", claim, "nhi")) if claim else ()
