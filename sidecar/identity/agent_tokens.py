"""Checks the separate tokens that one agent's addresses accept.

Such a token is valid at these addresses only: elsewhere it is an unknown header, or an invalid bearer token. Only its
digest is stored; comparing digests takes constant time, and the digest identifies the token in audit records: a
replaced token has another key id.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

from sidecar.vocabulary import Caller, Credential, Principal

KIND: Final = "agent_token"
_DOMAIN: Final = b"sidecar/agent-token/v1\0"
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

    @property
    def issuer(self) -> str:
        return f"agent:{self.agent}"

    @property
    def key_id(self) -> str:
        return self.digest.hex()[:_KEY_ID_CHARS]

    def opens(self, shown: str) -> bool:
        return hmac.compare_digest(digest_of(shown), self.digest)

    @property
    def bearer(self) -> Principal:
        return Principal(self.principal, self.issuer)

    @property
    def credential(self) -> Credential:
        return Credential(KIND, self.issuer, self.key_id)

    def let_in(self, caller: Caller) -> bool:
        """Whether an authenticated caller, here or elsewhere, has presented it."""
        return self.credential in caller.credentials


class AgentTokenRules:
    def __init__(self, gates: Iterable[AgentTokenRule] = ()) -> None:
        self._by_agent: Mapping[str, AgentTokenRule] = {gate.agent: gate for gate in gates}
        self._by_issuer: Mapping[str, AgentTokenRule] = {gate.issuer: gate for gate in self._by_agent.values()}

    def of(self, agent: str) -> AgentTokenRule | None:
        return self._by_agent.get(agent)

    def knows(self, credential: Credential, principal: str) -> bool:
        """Whether the token of this credential is still valid for the same principal."""
        gate = self._by_issuer.get(credential.issuer)
        return gate is not None and gate.credential == credential and gate.principal == principal


def digest_of(token: str) -> bytes:
    """The stored digest of a token. A token has at least 128 bits (`settings/secrets.py`), so its digest does not
    reveal it."""
    return sha256(_DOMAIN + token.encode("utf-8", "surrogateescape")).digest()
