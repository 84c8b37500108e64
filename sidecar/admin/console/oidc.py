"""Logs people in at an OpenID provider: authorization code with PKCE (RFC 6749 4.1, RFC 7636, OpenID Connect Core 3.1).

    begin     sends the browser to the provider, with a `state`, a `nonce` and a challenge; a cookie binds it to them
    finish    the provider sends the browser back with a code, which is exchanged for the ID token of the person

The worker at which a login began stores it, for ten minutes and for one use. Tokens are verified by the code that
verifies callers' tokens. Of a token, only the name, the role and the principal of the person are stored.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import secrets
import time
from base64 import urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlencode

from sidecar.admin.console.access import FLOW_S
from sidecar.admin.console.form_fields import FormFields
from sidecar.admin.console.request import ConsoleFault
from sidecar.admin.console.sessions import ASK_S, digest_of, worker_of
from sidecar.admin.other_workers import FLOW_SOCKET
from sidecar.errors import Refusal, SettingsError, Unsent
from sidecar.http.client import Egress, EgressError, parse_origin
from sidecar.http.client.fetch import fetch
from sidecar.identity.chain_builder import claim_at
from sidecar.identity.issuers import TrustedIssuer
from sidecar.identity.jwks import IssuerKeys
from sidecar.identity.jwt import MAX_LIFETIME_S, NOT_IN_ID_TOKENS, Claims, Verifier
from sidecar.policy.patterns import glob
from sidecar.protocols.jsonrpc import parse_json
from sidecar.settings.secrets import read_secret
from sidecar.upstreams.credentials.token_endpoint import ClientProof, DeniedError, TokenEndpoint
from sidecar.vocabulary import Principal

if TYPE_CHECKING:
    from sidecar.admin.other_workers import OtherWorkers
    from sidecar.admin.routes import Role
    from sidecar.gateway.snapshot import Snapshot
    from sidecar.settings.console import OidcSettings

MAX_FLOWS: Final = 1_000
KNOWN_S: Final = 3_600.0
"""How long the metadata of the provider is used."""
RETRY_S: Final = 5.0
"""How long the provider is not asked again after a failure, however many logins begin."""
MAX_GROUPS: Final = 1_000
_CODE: Final = re.compile(r"[\x20-\x7e]{1,4096}")
_NAME: Final = re.compile(r"[\x21-\x7e]{1,256}")
_ERROR: Final = re.compile(r"[a-z_]{1,64}")
OUT: Final = "the identity provider cannot be reached, or answers what cannot be used; the log says more"

log = logging.getLogger("sidecar.admin.console")


class LoginFlow(NamedTuple):
    """A login in progress. `key` is the digest of the cookie's value, `verifier` that of PKCE, and `began_at` in
    monotonic seconds."""

    key: str
    state: str
    nonce: str
    verifier: str
    redirect_uri: str
    next_path: str
    began_at: float


class ProviderDocument(NamedTuple):
    """The metadata of the provider (OpenID Connect Discovery 1.0). `secret_in_body`: the client secret is sent in the
    body, not in a header. `fetched_at` is in monotonic seconds."""

    authorization: str
    token: str
    keys: str
    secret_in_body: bool
    fetched_at: float


class LoggedIn(NamedTuple):
    """A person who has logged in. `by` is the name in audit records, `person` the principal in calls (None if there is
    none), `next_path` the page to which the login leads."""

    by: str
    role: Role
    person: Principal | None
    next_path: str


class LoginRefused(ConsoleFault):
    """A login failed: the provider is unavailable, or its response does not permit it. `reason` is for audit
    records."""

    def __init__(self, status: int, told: str, reason: str) -> None:
        super().__init__(status, told)
        self.reason = reason


@dataclass(slots=True)
class OidcLogins:
    """The logins at one provider. `live` returns the snapshot in force."""

    settings: OidcSettings
    live: Callable[[], Snapshot]
    others: OtherWorkers | None = None
    clock: Callable[[], float] = time.time
    clock_mono: Callable[[], float] = time.monotonic
    _flows: OrderedDict[str, LoginFlow] = field(default_factory=OrderedDict)
    _known: ProviderDocument | None = None
    _keys: IssuerKeys | None = None
    _not_before_s: float = 0.0
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def host(self) -> str:
        """The host of the provider, as the login page names it."""
        return parse_origin(self.settings.issuer).host_header

    async def begin(self, next_path: str, redirect_uri: str) -> tuple[str, str]:
        """Begins a login. Returns the value of its cookie, and the URL to which to send the browser. Raises
        LoginRefused."""
        provider = await self._provider()
        flow_id = f"{0 if self.others is None else self.others.me}.{secrets.token_urlsafe(32)}"
        key, now_s = digest_of(flow_id.encode()), self.clock_mono()
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        self._flows[key] = LoginFlow(key, state, nonce, verifier, redirect_uri, next_path, now_s)
        while len(self._flows) > MAX_FLOWS:
            self._flows.popitem(last=False)
        challenge = urlsafe_b64encode(sha256(verifier.encode()).digest()).rstrip(b"=").decode()
        fields = {
            "response_type": "code",
            "client_id": self.settings.client_id,
            "redirect_uri": redirect_uri,
            "scope": " ".join(dict.fromkeys(("openid", *self.settings.scopes))),
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        joint = "&" if "?" in provider.authorization else "?"
        return flow_id, f"{provider.authorization}{joint}{urlencode(fields)}"

    async def finish(self, flow_id: str, query: FormFields) -> LoggedIn:
        """Ends a login, with the query with which the provider sent the browser back. Raises LoginRefused."""
        flow = await self._taken(flow_id)
        if flow is None or not hmac.compare_digest(query.get("state", "").encode(), flow.state.encode()):
            raise LoginRefused(400, "this login was not begun here, or took longer than ten minutes", "state")
        if query.get("iss", self.settings.issuer) != self.settings.issuer:  # RFC 9207
            raise LoginRefused(400, "another identity provider answered", "issuer")
        if "error" in query:
            said = query["error"] if _ERROR.fullmatch(query["error"]) else "error"
            raise LoginRefused(403, f"the identity provider says: {said}", said)
        if not _CODE.fullmatch(query.get("code", "")):
            raise LoginRefused(400, "the identity provider sent no code", "code")
        claims = await self._claims(query["code"], flow)
        return self._logged_in(claims, flow.next_path)

    def take(self, key: str) -> LoginFlow | None:
        """Removes and returns a login that began at this worker, by the digest of its cookie; None if there is none, or
        it is too old."""
        flow = self._flows.pop(key, None)
        return flow if flow is not None and self.clock_mono() - flow.began_at < FLOW_S else None

    async def _taken(self, flow_id: str) -> LoginFlow | None:
        worker, key = worker_of(flow_id), digest_of(flow_id.encode())
        if self.others is None or worker == self.others.me:
            return self.take(key)
        reply = await self.others.ask(worker, "DELETE", f"{FLOW_SOCKET}{key}", ASK_S)
        if reply is None or reply.status != 200:
            return None
        try:
            return LoginFlow(**reply.plain)
        except TypeError:  # from a worker of another version, during an update
            return None

    async def _claims(self, code: str, flow: LoginFlow) -> Claims:
        """The verified claims of the ID token for which the code is exchanged. Raises LoginRefused."""
        provider = await self._provider()
        try:
            token = await self._exchanged(provider, code, flow)
            verifier = self._verifier(provider)
            claims = await verifier.verify(token)
        except DeniedError as denied:
            raise LoginRefused(403, "the identity provider did not take the code", str(denied)) from None
        except (Unsent, SettingsError, ValueError) as failure:
            log.warning("a login ended at the token endpoint", extra={"why": str(failure)[:200]})
            raise LoginRefused(502, OUT, "provider-out") from None
        except Refusal as refusal:
            log.warning("an ID token is refused", extra={"why": refusal.detail})
            raise LoginRefused(403, f"the ID token is refused: {refusal.detail}", "id-token") from None
        values, client = claims.values, self.settings.client_id
        is_ours = client in claims.audiences and values.get("azp", client) == client
        if not is_ours or (len(claims.audiences) > 1 and "azp" not in values):
            raise LoginRefused(403, "the ID token is for another client", "audience")
        nonce = values.get("nonce")
        if not isinstance(nonce, str) or not hmac.compare_digest(nonce.encode(), flow.nonce.encode()):
            raise LoginRefused(403, "the ID token is of another login", "nonce")
        return claims

    async def _exchanged(self, provider: ProviderDocument, code: str, flow: LoginFlow) -> str:
        chosen = self.settings
        secret = "" if chosen.client_secret_path is None else read_secret(chosen.client_secret_path, "theirs")
        proof = ClientProof(chosen.client_id, secret, provider.secret_in_body)
        new_id = partial(secrets.token_urlsafe, 16)
        endpoint = TokenEndpoint(provider.token, proof, clock=self.clock, new_id=new_id, egress=self._egress)
        form = [
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", flow.redirect_uri),
            ("code_verifier", flow.verifier),
        ]
        try:
            return await endpoint.ask_for_id_token(form)
        finally:
            await endpoint.close()

    def _verifier(self, provider: ProviderDocument) -> Verifier:
        if self._keys is None or self._keys.source != provider.keys:
            read = partial(self._fetched, provider.keys)
            self._keys = IssuerKeys(self.settings.issuer, provider.keys, read, mono=self.clock_mono)
        trusted = TrustedIssuer(self.settings.issuer, algorithms=self.settings.algorithms, typ=("", "JWT"))
        known = {trusted.issuer: trusted}
        return Verifier(known, {trusted.issuer: self._keys}, MAX_LIFETIME_S, self.clock, NOT_IN_ID_TOKENS)

    def _logged_in(self, claims: Claims, next_path: str) -> LoggedIn:
        """The person whom the claims name, with the role that the claim of `roles` grants. Raises LoginRefused."""
        name, chosen = claim_at(claims.values, self.settings.name_claim), self.settings.roles
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            told = f"the ID token has no {self.settings.name_claim} of printable ASCII characters without blanks"
            raise LoginRefused(403, told, "name")
        groups = _texts(claim_at(claims.values, chosen.claim))
        role: Role
        if any(glob(group, pattern) for group in groups for pattern in chosen.operator):
            role = "operator"
        elif any(glob(group, pattern) for group in groups for pattern in chosen.viewer):
            role = "viewer"
        else:
            raise LoginRefused(403, f"nothing in your {chosen.claim} lets you in", "role")
        try:
            person = self.live().identity.person(self.settings.issuer, claims.values)
        except Refusal as refusal:
            log.warning("a person who logged in is not a principal", extra={"why": refusal.detail})
            person = None
        return LoggedIn(f"oidc:{name}", role, person, next_path)

    @property
    def _egress(self) -> Egress:
        return self.live().egress

    async def _fetched(self, url: str) -> bytes:
        return await fetch(url, egress=self._egress)

    async def _provider(self) -> ProviderDocument:
        """The metadata of the provider. Raises LoginRefused."""
        async with self._asking:  # logins that begin during a request wait for its result
            now_s = self.clock_mono()
            if self._known is not None and now_s - self._known.fetched_at < KNOWN_S:
                return self._known
            if now_s < self._not_before_s:
                raise LoginRefused(502, OUT, "provider-out")
            issuer = self.settings.issuer
            try:
                said = parse_json(await self._fetched(f"{issuer}/.well-known/openid-configuration"))
                self._known = _document_in(said, issuer, now_s)
            except (EgressError, Refusal, ValueError) as failure:
                self._not_before_s = self.clock_mono() + RETRY_S
                log.warning("the metadata of the OpenID provider cannot be used", extra={"why": str(failure)[:200]})
                raise LoginRefused(502, OUT, "provider-out") from None
            return self._known


def plain_flow(flow: LoginFlow) -> Mapping[str, Any]:
    """A login in progress, as data for another worker."""
    return flow._asdict()


def _document_in(said: object, issuer: str, now_s: float) -> ProviderDocument:
    """The metadata in a document. Raises ValueError if it is of another issuer or incomplete, or an endpoint is neither
    https nor on this machine."""
    if not isinstance(said, dict) or str(said.get("issuer", "")).rstrip("/") != issuer:
        raise ValueError("the document is of another issuer")
    methods = said.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
    in_body = isinstance(methods, list) and "client_secret_basic" not in methods and "client_secret_post" in methods
    names = "authorization_endpoint", "token_endpoint", "jwks_uri"
    authorization, token, keys = (_endpoint(said, name) for name in names)
    return ProviderDocument(authorization, token, keys, in_body, now_s)


def _endpoint(said: Mapping[str, Any], name: str) -> str:
    url = said.get(name)
    if not isinstance(url, str):
        raise ValueError(f"the document has no {name}")
    origin = parse_origin(url)
    if not origin.secure and not origin.loopback:
        raise ValueError(f"{name} is not https")
    return url


def _texts(value: object) -> list[str]:
    values = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    return [one for one in values[:MAX_GROUPS] if isinstance(one, str)]
