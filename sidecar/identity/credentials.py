"""Collects the credentials of a request and refuses conflicting ones.

Nothing is verified here. A header that is there and cannot be read is a bad credential, never an absent one
(threats A11), and a header that is there twice is refused: two readers could pick different lines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from sidecar.errors import CredentialFault, Reason, Refusal
from sidecar.identity.agent_tokens import KIND as AGENT_TOKEN
from sidecar.identity.agent_tokens import AgentTokenRule
from sidecar.settings.agent_endpoints import BEARER_HEADER, KEY_HEADER
from sidecar.vocabulary import ANONYMOUS, Credential, CredentialKind, Principal

MAX_TOKEN_CHARS = 16 * 1024
API_KEY_PREFIX = "sck_"
UNIX = "unix"
"""The `peer` at the other end of a Unix socket."""


class Presented(NamedTuple):
    """What one request bears: every `Authorization` line, every `X-API-Key` line, and the principal of the local
    listener that it came in by (`nhi:planner`; "" on the data listener).

    `certificate` is what the caller showed in the handshake (DER), and `trust` the digest of the authorities that it
    was checked against. `forwarded` are the lines of `X-Forwarded-Client-Cert`; nobody reads them before
    `Identity.admit` has found that a named proxy wrote them, and which element is the caller's (`proxy`). `peer` is the
    address at the other end, or UNIX. `proofs` are the `DPoP` lines, `method` and `urls` what they must be for: the
    request's method, and its address in each spelling that callers know. `own` are the lines of a header that bears the
    token of this address alone, where that is neither of the first two."""

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
        """Which kinds of credential are there, good or bad, for evidence and metrics. `anonymous` when none is."""
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


NOTHING_PRESENTED = Presented()


class Audience(NamedTuple):
    """What the route is: its own URL, whether the upstream names `anonymous`, the scopes it asks for, and whether the
    token must go on with its caller, because of what the upstream is shown. `gate` is the token that it takes of its
    own, `alias` another URL of it ("" is none)."""

    resource: str
    anonymous: bool = False
    scopes: tuple[str, ...] = ()
    keeps_token: bool = False
    gate: AgentTokenRule | None = None
    alias: str = ""


@dataclass(frozen=True, slots=True)
class Workload:
    """Who a credential of its own proves to be on this connection. `expires_at` in seconds since the epoch."""

    principal: Principal
    credential: Credential
    expires_at: float | None = None


class ShownToken(NamedTuple):
    """What was presented, one of each; "" is none. `proven`: the token was shown as one whose bearer has its key;
    `opens`: the address' own token was."""

    token: str
    key: str
    local: str
    proven: bool = False
    opens: bool = False


def read_credentials(presented: Presented, gate: AgentTokenRule | None = None) -> ShownToken:
    """Sort what was presented where a `gate` may be. Raises Refusal for a header that is doubled or cannot be read, for
    two keys, and for whoever does not show what the gate requires."""
    if gate is None:
        return _shown(presented)
    rest = _without_own(presented, gate)
    shown = _shown(presented if rest is None else rest)
    if rest is None and gate.required:
        raise _not_shown(presented)
    return shown._replace(opens=rest is not None)


def _without_own(presented: Presented, gate: AgentTokenRule) -> Presented | None:
    """What else was presented, where the gate's token was; None where it was not."""
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


def _not_shown(presented: Presented) -> Refusal:
    if presented.kinds == (ANONYMOUS,):
        return Refusal(Reason.UNAUTHENTICATED)  # RFC 6750 3.1, as `unauthenticated`
    return bad_credential("this address has a token of its own, and it was not shown", CredentialFault.UNKNOWN)


def _shown(presented: Presented) -> ShownToken:
    if len(presented.authorization) > 1 or len(presented.api_key) > 1:
        raise bad_credential("a credential header is there more than once", CredentialFault.MALFORMED)
    scheme, token = _read_line(presented.authorization[0]) if presented.authorization else ("bearer", "")
    key = _key_from(presented.api_key[0]) if presented.api_key else ""
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
    """401: something was presented and does not hold. `detail` is a sentence of ours, never the caller's bytes.
    `scheme` and `error` are those of the challenge, `more` further parameters of it."""
    challenge = _challenge(detail, error) + (f", {more}" if more else "")
    return Refusal(Reason.BAD_CREDENTIAL, detail, challenge=challenge, scheme=scheme, credential_fault=fault)


def conflict(detail: str) -> Refusal:
    """401: two credentials claim the same place in the chain."""
    return Refusal(Reason.CREDENTIAL_CONFLICT, detail, challenge=_challenge(detail))


def client_unknown(detail: str) -> Refusal:
    """401: the token was issued to a client that the issuer's table does not name."""
    return Refusal(Reason.CLIENT_UNKNOWN, detail, challenge=_challenge(detail))


def unauthenticated(audience: Audience) -> Refusal:
    """401 without `error`: RFC 6750 3.1 wants none where no credential was presented."""
    scope = f'scope="{" ".join(audience.scopes)}"' if audience.scopes else ""
    return Refusal(Reason.UNAUTHENTICATED, challenge=scope)


def insufficient_scope(audience: Audience) -> Refusal:
    """403: the credential holds, and lacks a scope. The challenge names all that the route needs (MCP 2025-11-25)."""
    scope = " ".join(audience.scopes)
    return Refusal(Reason.INSUFFICIENT_SCOPE, challenge=f'error="insufficient_scope", scope="{scope}"')


def _read_line(line: str) -> tuple[str, str]:
    """(scheme in lower case, token)"""
    if len(line) > MAX_TOKEN_CHARS + 16:
        raise bad_credential("the credential is too long", CredentialFault.MALFORMED)
    scheme, _, token = line.partition(" ")
    token = token.strip(" ")
    # What the credential is made of is checked where it is read: a remembered token passed there before.
    if scheme.lower() not in ("bearer", "dpop") or not token:
        raise bad_credential("Authorization must be one Bearer credential", CredentialFault.MALFORMED)
    return scheme.lower(), token


def _key_from(line: str) -> str:
    if not line.startswith(API_KEY_PREFIX):
        raise bad_credential("the API key is not one of ours", CredentialFault.MALFORMED)
    return line


def _looks_like_key(line: str) -> bool:
    return line[:7].lower() == "bearer " and line[7:].lstrip().startswith(API_KEY_PREFIX)


def _challenge(detail: str, error: str = "invalid_token") -> str:
    return f'error="{error}", error_description="{detail}"'
