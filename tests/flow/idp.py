"""Who vouches for callers in the flow tests?

An identity provider of our own: one ES256 key, tokens with all the claims that the sidecar needs, API keys beside them.
"""

import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sidecar.http.signing_keys import SigningKey, claims_for, generate
from sidecar.identity.key_files import make_key

ISSUER = "https://idp.acme.example"
APPS = "https://apps.acme.example"
PEPPER = "data/keys/api-keys.pepper"
SETTINGS = f"""\
identity:
  issuers:
    - {{issuer: "{ISSUER}", jwks_path: jwks.json, algorithms: [ES256], kinds: [user, nhi]}}
    - issuer: "{APPS}"
      namespace: apps
      jwks_path: jwks.json
      algorithms: [ES256]
      kinds: [user, nhi]
      kind_claim: is
      actor_from: azp
      clients: {{vscode: direct, planner-app: "nhi:planner"}}
  api_keys_path: keys.yaml
"""


@dataclass
class Idp:
    """Signs tokens, and keeps the API keys that it made."""

    key: SigningKey = field(default_factory=generate)
    pepper: str = field(default_factory=lambda: secrets.token_hex(32))
    _lines: list[str] = field(default_factory=list)

    def token(
        self,
        subject: str,
        audience: str | Iterable[str],
        *,
        actors: Iterable[str] = (),
        scopes: Iterable[str] = (),
        issuer: str = ISSUER,
        age_s: float = 0,
        ttl_s: float = 600,
        claims: Mapping[str, Any] | None = None,
        key: SigningKey | None = None,
    ) -> str:
        """One access token. `actors` in the order of the chain."""
        audiences = (audience,) if isinstance(audience, str) else tuple(audience)
        known = claims_for(
            issuer, subject, audiences, now=time.time() - age_s, ttl_s=ttl_s, actors=tuple(actors), scopes=tuple(scopes)
        )
        return (key or self.key).sign({**known, **(claims or {})})

    def api_key(self, principal: str, *scopes: str, ttl_s: float = 600) -> str:
        """One API key. It counts in worlds whose `files` are taken afterwards."""
        now = time.time()
        text, entry = make_key(
            principal, self.pepper.encode(), now=now, expires_at=now + ttl_s, scopes=scopes, random=secrets.token_bytes
        )
        self._lines.append(
            f'- {{id: {entry.id}, principal: "{principal}", hash: "{entry.hash}", scopes: {list(entry.scopes)}}}'
        )
        return text

    def files(self) -> dict[str, str]:
        """What the sidecar reads of us."""
        keys = "version: 1\nkeys:\n" + "".join(f"  {line}\n" for line in self._lines)
        return {"jwks.json": self.key.jwks(), PEPPER: self.pepper, "keys.yaml": keys}


def bearer(token: str) -> dict[str, str]:
    """The header that presents a token or an API key."""
    return {"Authorization": f"Bearer {token}"}
