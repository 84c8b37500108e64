"""Requests tokens from OAuth token endpoints: one bounded POST (RFC 6749). Of an error, only the status and a known
code are reported."""

from __future__ import annotations

import logging
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from re import compile as pattern
from typing import Any, Final, TypeVar
from urllib.parse import quote_plus, urlencode

from sidecar.errors import Reason, Refusal, Unsent
from sidecar.http.client import (
    DIRECT,
    ClientResponse,
    ClientTimeout,
    ConnectFailed,
    Egress,
    EgressError,
    HttpClient,
    parse_origin,
)
from sidecar.http.signing_keys import SigningKey
from sidecar.protocols.jsonrpc import parse_json
from sidecar.upstreams.credentials.token_cache import FETCH_S, LATE, GrantedToken

MAX_ANSWER_BYTES: Final = 64 * 1024
MAX_TOKEN_CHARS: Final = 16 * 1024
MAX_CONNECTIONS: Final = 16
UNKNOWN_LIFE_S: Final = 60.0  # RFC 6749 5.1 lets an endpoint omit it
MAX_LIFE_S: Final = 3600.0  # the maximum, whatever the endpoint returns, so that a revoked token is not used for days
ASSERTION_S: Final = 60.0
_ASSERTION_TYPE: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_TOKEN: Final = pattern(r"[A-Za-z0-9\-._~+/]+=*")
_DIGITS: Final = pattern(r"[0-9]{1,12}")
_CODES: Final = frozenset(
    {"invalid_request", "invalid_client", "invalid_grant", "unauthorized_client", "unsupported_grant_type"}
    | {"invalid_scope", "invalid_target", "access_denied"}
)
_TYPES: Final = tuple(f"urn:ietf:params:oauth:token-type:{kind}" for kind in ("access_token", "jwt"))
Form = Sequence[tuple[str, str]]
T = TypeVar("T")

log = logging.getLogger("sidecar.upstreams.credentials")


class DeniedError(Exception):
    """The endpoint refused; the text is the code of RFC 6749, 8693 or 8707, or the HTTP status if it sent none."""


@dataclass(frozen=True, slots=True)
class ClientProof:
    """The client's authentication: a `secret` in the header, or in the form if `in_body`, or an assertion signed with
    `key`. A public client has neither."""

    client_id: str
    secret: str = field(default="", repr=False)
    in_body: bool = False
    key: SigningKey | None = field(default=None, repr=False, compare=False)
    key_id: str = ""
    audience: str = ""

    def shown(self, now_s: float, new_id: Callable[[], str]) -> tuple[Form, Form]:
        """Returns the headers and the form fields that authenticate the client."""
        if self.key is not None:
            times = {"iat": int(now_s), "exp": int(now_s + ASSERTION_S)}
            claims = {"iss": self.client_id, "sub": self.client_id, "aud": self.audience, **times, "jti": new_id()}
            signed = self.key.sign(claims, typ="JWT", kid=self.key_id)
            fields = [("client_id", self.client_id), ("client_assertion_type", _ASSERTION_TYPE)]
            return (), [*fields, ("client_assertion", signed)]
        if not self.secret:  # a public client
            return (), [("client_id", self.client_id)]
        if self.in_body:
            return (), [("client_id", self.client_id), ("client_secret", self.secret)]
        # RFC 6749 2.3.1: each half is form-encoded first.
        pair = f"{quote_plus(self.client_id)}:{quote_plus(self.secret)}"
        return [("Authorization", f"Basic {b64encode(pair.encode()).decode()}")], ()


class TokenEndpoint:
    """One token endpoint, as one client. `clock` gives seconds since the epoch."""

    def __init__(
        self,
        url: str,
        proof: ClientProof,
        *,
        clock: Callable[[], float],
        new_id: Callable[[], str],
        egress: Egress = DIRECT,
    ) -> None:
        """Raises ValueError for an invalid URL, or one to which secrets must not be sent."""
        self._origin = parse_origin(url)
        if not self._origin.secure and not self._origin.loopback:
            raise ValueError("a token endpoint needs an https URL")
        self._proof, self._clock, self._new_id = proof, clock, new_id
        self._client = HttpClient(self._origin, egress=egress, max_connections=MAX_CONNECTIONS)

    async def ask(self, form: Form) -> GrantedToken:
        """Requests an access token. Raises Unsent, and DeniedError if the endpoint refuses. A failure is logged."""
        return await self._posted(form, _granted)

    async def ask_for_id_token(self, form: Form) -> str:
        """Requests an ID token (OpenID Connect Core 3.1.3). Raises the same errors as `ask`."""
        return await self._posted(form, _id_token)

    async def _posted(self, form: Form, granted: Callable[[int, Mapping[str, Any]], T]) -> T:
        headers, fields = self._proof.shown(self._clock(), self._new_id)
        body = urlencode([*form, *fields]).encode()
        sent = [("Accept", "application/json"), ("Content-Type", "application/x-www-form-urlencoded"), *headers]
        try:
            with await self._client.request("POST", self._origin.path, sent, body, deadline_s=FETCH_S) as response:
                return granted(response.status, await _object(response))
        except (EgressError, Unsent, DeniedError) as failure:
            unsent = _unsent(failure) if isinstance(failure, EgressError) else failure
            why = f"it denied: {unsent}" if isinstance(unsent, DeniedError) else unsent.detail
            log.warning("token_endpoint_gave_no_token", extra={"endpoint": self._origin.host_header, "why": why})
            raise unsent from (None if unsent is failure else failure)

    async def close(self) -> None:
        await self._client.close()


async def _object(response: ClientResponse) -> Mapping[str, Any]:
    """Returns the JSON object of a response; an empty one if there is none. Raises EgressError."""
    raw = await response.read(MAX_ANSWER_BYTES)
    if response.media_type != "application/json":
        return {}
    try:
        value = parse_json(raw)
    except Refusal:
        return {}
    return value if isinstance(value, dict) else {}


def _check_status(status: int, said: Mapping[str, Any]) -> None:
    if status in (400, 401, 403):
        code = said.get("error")
        raise DeniedError(code if isinstance(code, str) and code in _CODES else f"HTTP {status}")
    if status != 200:
        raise _failed(f"its token endpoint answered HTTP {status}")


def _id_token(status: int, said: Mapping[str, Any]) -> str:
    _check_status(status, said)
    token = said.get("id_token")
    if not isinstance(token, str) or len(token) > MAX_TOKEN_CHARS:
        raise _failed("its token endpoint gave no ID token")
    return token


def _granted(status: int, said: Mapping[str, Any]) -> GrantedToken:
    _check_status(status, said)
    token, kind = said.get("access_token"), said.get("token_type")
    if not isinstance(token, str) or len(token) > MAX_TOKEN_CHARS or not _TOKEN.fullmatch(token):
        raise _failed("its token endpoint gave no token")
    if not isinstance(kind, str) or kind.lower() != "bearer":
        raise _failed("its token endpoint gave a token that is not a bearer token")
    if said.get("issued_token_type", _TYPES[0]) not in _TYPES:  # RFC 8693 2.2.1: ID tokens are not for servers
        raise _failed("its token endpoint gave a token that is not an access token")
    life_s = _life_s(said.get("expires_in"))
    if life_s <= 0:
        raise _failed("its token endpoint gave a token that has expired")
    return GrantedToken(token, min(life_s, MAX_LIFE_S))


def _life_s(said: object) -> float:
    """Returns the lifetime in seconds, UNKNOWN_LIFE_S if it is absent or not a number. Digits in a string are accepted,
    as some products send them."""
    if isinstance(said, str) and _DIGITS.fullmatch(said):
        return float(said)
    if isinstance(said, bool) or not isinstance(said, int | float):
        return UNKNOWN_LIFE_S
    return float(min(max(said, 0), MAX_LIFE_S))


def _failed(detail: str) -> Unsent:
    return Unsent(Reason.UPSTREAM_FAILED, detail)


def _unsent(failure: EgressError) -> Unsent:
    if isinstance(failure, ClientTimeout):
        return Unsent(*LATE)
    reached = not isinstance(failure, ConnectFailed)
    return _failed(f"its token endpoint {'gave no answer that can be used' if reached else 'cannot be reached'}")
