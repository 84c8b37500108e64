"""Fetches small public documents, such as key sets and policy bundles."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import Any, NamedTuple

from sidecar.http.client.egress import DIRECT, Egress
from sidecar.http.client.failures import ConnectionBroken, EgressError
from sidecar.http.client.origin import parse_origin
from sidecar.http.client.pool import HttpClient

_MAX_ETAG_CHARS = 256


class FetchedDocument(NamedTuple):
    """A document, and its ETag; "" if there is none that a request can carry."""

    etag: str
    body: bytes


async def fetch(
    url: str, *, max_bytes: int = 262_144, deadline_s: float = 5.0, egress: Egress = DIRECT, operators: bool = False
) -> bytes:
    """Returns the body of a 200 answer to one GET. Raises EgressError. Requires https, except on this machine or if the
    operator configured plain http (`operators`). Redirects are not followed: they would choose an address."""
    accept = [("Accept", "application/json")]
    bounds: dict[str, Any] = {"max_bytes": max_bytes, "deadline_s": deadline_s}
    fetched = await fetch_newer(url, "", accept, **bounds, egress=egress, operators=operators)
    assert fetched is not None, "without an ETag there is a document"
    return fetched.body


async def fetch_newer(
    url: str,
    etag: str,
    headers: Sequence[tuple[str, str]],
    *,
    max_bytes: int,
    deadline_s: float,
    egress: Egress = DIRECT,
    tls: ssl.SSLContext | None = None,
    operators: bool = False,
) -> FetchedDocument | None:
    """Returns the document, or None if its state is still `etag`. Otherwise like `fetch`. Raises EgressError."""
    try:
        origin = parse_origin(url)
    except ValueError as error:
        raise EgressError(str(error)) from error
    if not origin.secure and not origin.loopback and not operators:
        raise EgressError("only https is fetched from other machines")
    asked = [*headers, ("If-None-Match", etag)] if etag else headers
    client = HttpClient(origin, egress=egress, connect_timeout_s=deadline_s, tls=tls)
    try:
        with await client.request("GET", origin.path, asked, None, deadline_s=deadline_s) as response:
            if response.status == 304 and etag:
                return None
            if response.status != 200:
                raise ConnectionBroken(f"status {response.status} where 200 was needed")
            found = response.headers.get("etag", "")
            body = await response.read(max_bytes)
            can_be_sent = len(found) <= _MAX_ETAG_CHARS and found.isascii()
            return FetchedDocument(found if can_be_sent else "", body)
    finally:
        await client.close()
