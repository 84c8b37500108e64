"""An OpenID provider on a socket, which logs `person` in without asking and checks what its clients must send."""

import hmac
import secrets
import time
from base64 import b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qs, unquote_plus, urlencode

from aiohttp import web

from sidecar.http.signing_keys import SigningKey, generate
from tests.flow.world import listening

CLIENT, SECRET = "console", "s3cr3t with blanks & signs"


@dataclass
class OpenIdProvider:
    """`claims` are added to each ID token, and those with None are left out; `document` changes what it says of
    itself; `broken` are paths that answer 500. `refused` lists why a client got no token, `asked`
    the paths of all requests."""

    url: str = ""
    key: SigningKey = field(default_factory=generate)
    person: str = "alice"
    secret: str = SECRET
    claims: dict[str, Any] = field(default_factory=dict)
    document: dict[str, Any] = field(default_factory=dict)
    answer: dict[str, str] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    refused: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    signer: SigningKey | None = None
    _codes: dict[str, dict[str, str]] = field(default_factory=dict)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.path)
        if request.path in self.broken:
            return web.Response(status=500)
        match request.path:
            case "/.well-known/openid-configuration":
                return web.json_response(self._document())
            case "/keys":
                return web.Response(text=self.key.jwks(), content_type="application/json")
            case "/authorize":
                return self._authorize(dict(request.query))
            case "/token":
                return self._token(request, parse_qs(await request.text(), strict_parsing=True))
        return web.Response(status=404)

    def _document(self) -> dict[str, Any]:
        places = {"authorization_endpoint": "/authorize", "token_endpoint": "/token", "jwks_uri": "/keys"}
        return {"issuer": self.url, **{name: self.url + path for name, path in places.items()}, **self.document}

    def _authorize(self, asked: dict[str, str]) -> web.Response:
        assert asked["response_type"] == "code" and asked["client_id"] == CLIENT
        assert asked["code_challenge_method"] == "S256" and "openid" in asked["scope"].split()
        code = secrets.token_urlsafe(16)
        self._codes[code] = asked
        said = {"code": code, "state": asked["state"], "iss": self.url, **self.answer}
        return web.Response(status=302, headers={"Location": f"{asked['redirect_uri']}?{urlencode(said)}"})

    def _token(self, request: web.Request, form: dict[str, list[str]]) -> web.Response:
        given = {name: values[0] for name, values in form.items()}
        asked = self._codes.pop(given.get("code", ""), None)
        if why := self._objection(request, given, asked):
            self.refused.append(why)
            return web.json_response({"error": "invalid_grant"}, status=400)
        assert asked is not None
        now = int(time.time())
        claims = {
            "iss": self.url,
            "sub": self.person,
            "aud": CLIENT,
            "iat": now,
            "exp": now + 300,
            "nonce": asked["nonce"],
            "at_hash": "x",
            "groups": ["platform"],
            **self.claims,
        }
        known = {name: value for name, value in claims.items() if value is not None}
        token = (self.signer or self.key).sign(known, typ="JWT")
        return web.json_response({"access_token": "a", "token_type": "Bearer", "id_token": token})

    def _objection(self, request: web.Request, given: dict[str, str], asked: dict[str, str] | None) -> str:
        if asked is None:
            return "the code is not known"
        if self.secret:
            kind, _, pair = request.headers.get("Authorization", "").partition(" ")
            name, _, secret = b64decode(pair).decode().partition(":")
            if kind != "Basic" or (unquote_plus(name), unquote_plus(secret)) != (CLIENT, self.secret):
                return "the client is not known"
        elif given.get("client_id") != CLIENT or "Authorization" in request.headers:
            return "the client is not public"
        challenge = urlsafe_b64encode(sha256(given.get("code_verifier", "").encode()).digest()).rstrip(b"=").decode()
        if not hmac.compare_digest(challenge, asked["code_challenge"]):
            return "the verifier does not fit the challenge"
        if given.get("redirect_uri") != asked["redirect_uri"] or given.get("grant_type") != "authorization_code":
            return "the redirect address is another"
        return ""


@asynccontextmanager
async def openid_provider(**said: Any) -> AsyncIterator[OpenIdProvider]:
    provider = OpenIdProvider(**said)
    async with listening(provider.handle) as url:
        provider.url = url
        yield provider
