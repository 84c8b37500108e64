"""Checks the separate tokens that one agent's addresses accept.

It is a credential of these addresses alone: at every other one it is a header that nobody asked for, or a bad bearer
token. What is kept of it is a digest, by which it is compared in the same time whatever is shown, and which names it in
evidence: another token is another key.
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
    """The token of one agent's addresses: whose it is, which header bears it (lower case), and whether callers without
    it are refused."""

    agent: str
    principal: str
    header: str
    digest: bytes = field(repr=False)
    required: bool = True

    @property
    def issuer(self) -> str:
        """Who vouches for its bearer."""
        return f"agent:{self.agent}"

    @property
    def key_id(self) -> str:
        """Which token it is, in evidence."""
        return self.digest.hex()[:_KEY_ID_CHARS]

    def opens(self, shown: str) -> bool:
        """Whether this is the token."""
        return hmac.compare_digest(digest_of(shown), self.digest)

    @property
    def bearer(self) -> Principal:
        """Whoever shows it."""
        return Principal(self.principal, self.issuer)

    @property
    def credential(self) -> Credential:
        """It, as evidence names it."""
        return Credential(KIND, self.issuer, self.key_id)

    def let_in(self, caller: Caller) -> bool:
        """Whether somebody who was proven, here or elsewhere, has shown it."""
        return self.credential in caller.credentials


class AgentTokenRules:
    """Those of all agents, by the agent's name."""

    def __init__(self, gates: Iterable[AgentTokenRule] = ()) -> None:
        self._by_agent: Mapping[str, AgentTokenRule] = {gate.agent: gate for gate in gates}
        self._by_issuer: Mapping[str, AgentTokenRule] = {gate.issuer: gate for gate in self._by_agent.values()}

    def of(self, agent: str) -> AgentTokenRule | None:
        """The gate of an agent that has one."""
        return self._by_agent.get(agent)

    def knows(self, credential: Credential, principal: str) -> bool:
        """Whether a token that let somebody in still would, as the same one."""
        gate = self._by_issuer.get(credential.issuer)
        return gate is not None and gate.credential == credential and gate.principal == principal


def digest_of(token: str) -> bytes:
    """What is kept of a token. It has 128 bits at least (`settings/secrets.py`), so that nobody finds it by its
    digest."""
    return sha256(_DOMAIN + token.encode("utf-8", "surrogateescape")).digest()
