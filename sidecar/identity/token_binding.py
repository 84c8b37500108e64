"""Reads which key a token is bound to.

The claim `cnf` (RFC 7800) has the thumbprint of a key whose owner signs a proof with each request (`jkt`, RFC 9449
6.1), or of a certificate presented in the handshake (`x5t#S256`, RFC 8705 3.1). A token that is bound in any other way
cannot be checked and is refused: it may be stolen.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sidecar.errors import CredentialFault
from sidecar.identity.credentials import bad_credential

_MEMBERS: Final = frozenset({"jkt", "x5t#S256"})
_SHA256: Final = re.compile(r"[A-Za-z0-9_-]{43}")


@dataclass(frozen=True, slots=True)
class TokenBinding:
    """The thumbprints of the key and of the certificate; "" for none. If both are set, both are required."""

    key: str = ""
    certificate: str = ""


UNBOUND: Final = TokenBinding()


def bound_to(values: Mapping[str, Any]) -> TokenBinding:
    """The binding in a token's claims. Raises Refusal for a binding that cannot be checked."""
    if "cnf" not in values:
        return UNBOUND
    cnf = values["cnf"]
    if not isinstance(cnf, dict) or not cnf or not cnf.keys() <= _MEMBERS:
        raise bad_credential(
            "the token is bound to a key in a way that is not checked here", CredentialFault.NOT_ACCEPTED
        )
    if not all(isinstance(value, str) and _SHA256.fullmatch(value) for value in cnf.values()):
        raise bad_credential("the token's cnf is malformed", CredentialFault.MALFORMED)
    return TokenBinding(cnf.get("jkt", ""), cnf.get("x5t#S256", ""))
