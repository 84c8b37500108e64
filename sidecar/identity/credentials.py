"""Collects the credentials of a request and refuses conflicting ones.

Nothing is verified here. A header that cannot be parsed is an invalid credential, never an absent one, and a repeated
header is refused, because two parsers could choose different lines.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from sidecar.errors import CredentialFault, Reason, Refusal
from sidecar.identity.agent_tokens import KIND as AGENT_TOKEN, AgentTokenRule
from sidecar.settings.agent_endpoints import BEARER_HEADER, KEY_HEADER
from sidecar.vocabulary import ANONYMOUS, Caller, Credential, CredentialKind, Principal

MAX_TOKEN_CHARS = 16 * 1024
API_KEY_PREFIX = "sck_"
UNIX = "unix"
"""The `peer` of a Unix socket."""


class Presented(NamedTuple):
    """The credentials of one request: every `Authorization` line, every `X-API-Key` line, and the principal of the
    local listener on which it arrived (`nhi:planner`; "" on the data listener). The other fields have the facts needed
    to verify these credentials, and are empty otherwise.

    `certificate` is the client certificate of the handshake (DER), and `trust` the digest of the authorities that
    verified it. `forwarded` are the lines of `X-Forwarded-Client-Cert`; they are not read until `Identity.admit` has
    verified that a configured proxy wrote them, and determined which element is the caller's (`proxy`). `peer` is the
    remote address, or UNIX. `proofs` are the `DPoP` lines; `method` and `urls` are the values that they must contain:
    the request's method, and its address in each form that callers use. `own` are the lines of the header that carries
    the token of this address, if that is neither of the first two.
    """

    authorization: tuple[str, ...] = ()
    api_key: tuple[str, ...] = ()
    local: str = ""
    certificate: bytes = b""
    trust: str = ""
    forwarded: tuple[str, ...] = ()
    peer: str = ""
    proofs: tuple[str, ...] = ()
    method: str = ""
    urls: tuple[str, ...] = ()
    proxy: Literal["", "first", "last"] = ""
    own: tuple[str, ...] = ()

    @property
    def kinds(self) -> tuple[CredentialKind, ...]:
        """The kinds of credentials present, valid or not; `anonymous` if there are none."""
        keyed = any(_looks_like_key(line) for line in self.authorization) or bool(self.api_key)
        token = bool(self.proofs) or any(not _looks_like_key(line) for line in self.authorization)
        seen: tuple[tuple[CredentialKind, bool], ...] = (
            ("jwt", token),
            ("api_key", keyed),
            (AGENT_TOKEN, bool(self.own)),
            ("local", bool(self.local)),
            ("certificate", bool(self.certificate) or bool(self.proxy and self.forwarded)),
        )
        return tuple(kind for kind, there in seen if there) or ("anonymous",)


class Audience(NamedTuple):
    """A route: its URL, whether the upstream allows `anonymous`, the required scopes, and whether the caller keeps its
    token because the upstream's credential needs it. `gate` is the address's own token, `alias` another URL of the
    route ("" for none)."""

    resource: str
    anonymous: bool = False
    scopes: tuple[str, ...] = ()
    keeps_token: bool = False
    gate: AgentTokenRule | None = None
    alias: str = ""


@dataclass(frozen=True)
class Workload:
    """The principal that a credential other than a token proves. `expires_at` is in seconds since the epoch."""

    principal: Principal
    credential: Credential
    expires_at: float | None = None

    @cached_property
    def caller(self) -> Caller:
        """The caller that presents this credential alone."""
        return Caller((self.principal,), (self.credential,), self.expires_at)


class ShownToken(NamedTuple):
    """The presented credentials, one of each kind; "" for none. `proven`: the token was presented with the scheme for
    key-bound tokens; `opens`: the address's own token was presented."""

    token: str
    key: str
    local: str
    proven: bool = False
    opens: bool = False


def read_credentials(presented: Presented, gate: AgentTokenRule | None = None) -> ShownToken:
    """Sorts the presented credentials. Raises Refusal for a header that is repeated or cannot be parsed, for two keys,
    and if the token that `gate` requires is missing."""
    if gate is None:
        return _shown(presented)
    rest = _without_own(presented, gate)
    shown = _shown(presented if rest is None else rest)
    if rest is None and gate.required:
        if presented.kinds == (ANONYMOUS,):
            raise Refusal(Reason.UNAUTHENTICATED)  # RFC 6750 3.1; see `unauthenticated`
        raise bad_credential("this address has a token of its own, and it was not shown", CredentialFault.UNKNOWN)
    return shown._replace(opens=rest is not None)


def _without_own(presented: Presented, gate: AgentTokenRule) -> Presented | None:
    """Returns the other credentials, if the gate's token was presented; None if it was not."""
    if gate.header == BEARER_HEADER and len(presented.authorization) == 1:
        scheme, _, token = presented.authorization[0].partition(" ")
        opens = gate.opens(token.strip(" "))
        return presented._replace(authorization=()) if opens and scheme.lower() == "bearer" else None
    if gate.header == KEY_HEADER and len(presented.api_key) == 1:
        return presented._replace(api_key=()) if gate.opens(presented.api_key[0]) else None
    if len(presented.own) > 1:
        raise bad_credential("a credential header is there more than once", CredentialFault.MALFORMED)
    if presented.own and not gate.opens(presented.own[0]):
        raise bad_credential("the token of this address is not valid", CredentialFault.UNKNOWN)
    return presented if presented.own else None


def _shown(presented: Presented) -> ShownToken:
    if len(presented.authorization) > 1 or len(presented.api_key) > 1:
        raise bad_credential("a credential header is there more than once", CredentialFault.MALFORMED)
    scheme, token = _read_line(presented.authorization[0]) if presented.authorization else ("bearer", "")
    key = presented.api_key[0] if presented.api_key else ""
    if presented.api_key and not key.startswith(API_KEY_PREFIX):
        raise bad_credential("the API key is malformed", CredentialFault.MALFORMED)
    if presented.proofs and scheme != "dpop":
        raise bad_credential("a DPoP proof is there, and no token that is shown as DPoP", CredentialFault.PROOF)
    if not token.startswith(API_KEY_PREFIX):
        return ShownToken(token, key, presented.local, scheme == "dpop")
    if key:
        raise conflict("two API keys")
    if scheme == "dpop":
        raise bad_credential("an API key is not bound to a key", CredentialFault.PROOF)
    return ShownToken("", token, presented.local)


def bad_credential(
    detail: str, fault: CredentialFault, *, scheme: str = "Bearer", error: str = "invalid_token", more: str = ""
) -> Refusal:
    """Returns a refusal with 401: a credential is invalid. `detail` is a fixed sentence, never the caller's bytes.
    `scheme` and `error` are those of the challenge, `more` its further parameters."""
    challenge = _challenge(detail, error) + (f", {more}" if more else "")
    return Refusal(Reason.BAD_CREDENTIAL, detail, challenge=challenge, scheme=scheme, credential_fault=fault)


def conflict(detail: str, reason: Reason = Reason.CREDENTIAL_CONFLICT) -> Refusal:
    """Returns a refusal with 401: two credentials claim the same position in the chain; or another `reason`."""
    return Refusal(reason, detail, challenge=_challenge(detail))


def unauthenticated(audience: Audience) -> Refusal:
    """Returns a refusal with 401 without `error`: RFC 6750 3.1 omits it if no credential was presented."""
    scope = f'scope="{" ".join(audience.scopes)}"' if audience.scopes else ""
    return Refusal(Reason.UNAUTHENTICATED, challenge=scope)


def insufficient_scope(audience: Audience) -> Refusal:
    """Returns a refusal with 403: a scope is missing. The challenge names all scopes that the route needs (MCP
    2025-11-25)."""
    scope = " ".join(audience.scopes)
    return Refusal(Reason.INSUFFICIENT_SCOPE, challenge=f'error="insufficient_scope", scope="{scope}"')


def _read_line(line: str) -> tuple[str, str]:
    """Returns (scheme in lower case, token)."""
    if len(line) > MAX_TOKEN_CHARS + 16:
        raise bad_credential("the credential is too long", CredentialFault.MALFORMED)
    scheme, _, token = line.partition(" ")
    token = token.strip(" ")
    # The token's syntax is checked when it is parsed; a cached token has already passed.
    if scheme.lower() not in ("bearer", "dpop") or not token:
        raise bad_credential("Authorization must be one Bearer credential", CredentialFault.MALFORMED)
    return scheme.lower(), token


def _looks_like_key(line: str) -> bool:
    return line[:7].lower() == "bearer " and line[7:].lstrip().startswith(API_KEY_PREFIX)


def _challenge(detail: str, error: str = "invalid_token") -> str:
    return f'error="{error}", error_description="{detail}"'
