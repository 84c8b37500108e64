"""Checks the separate tokens that one agent's addresses accept.

Such a token is valid at these addresses only: elsewhere it is an unknown header, or an invalid bearer token. Only its
digest is stored; comparing digests takes constant time, and the digest identifies the token in audit records, so a
replaced token has another key id.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

from sidecar.vocabulary import Caller, Credential, Principal

KIND: Final = "agent_token"
_DOMAIN: Final = b"sidecar/agent-token/v1\0"
_ISSUER: Final = "agent:"
_KEY_ID_CHARS: Final = 12


@dataclass(frozen=True, slots=True)
class AgentTokenRule:
    """The token of one agent's addresses: the principal of its bearer, the header that carries it (lower case), and
    whether callers without it are refused."""

    agent: str
    principal: str
    header: str
    digest: bytes = field(repr=False)
    required: bool = True

    def opens(self, shown: str) -> bool:
        return hmac.compare_digest(digest_of(shown), self.digest)

    @property
    def bearer(self) -> Principal:
        return Principal(self.principal, self.credential.issuer)

    @property
    def credential(self) -> Credential:
        return Credential(KIND, f"{_ISSUER}{self.agent}", self.digest.hex()[:_KEY_ID_CHARS])

    def let_in(self, caller: Caller) -> bool:
        """Whether an authenticated caller has presented the token, here or at another address."""
        return self.credential in caller.credentials


def digest_of(token: str) -> bytes:
    """Returns the stored digest of a token, which has at least 128 bits, so the digest does not disclose it."""
    return sha256(_DOMAIN + token.encode("utf-8", "surrogateescape")).digest()


def gate_of(credential: Credential, gates: Mapping[str, AgentTokenRule]) -> AgentTokenRule | None:
    """Returns the rule whose token is still that of this credential. `gates` are by agent."""
    gate = gates.get(credential.issuer.removeprefix(_ISSUER))
    return gate if gate is not None and gate.credential == credential else None
