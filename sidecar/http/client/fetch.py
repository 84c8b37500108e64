"""Fetches small public documents, such as key sets and policy bundles."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import NamedTuple

from sidecar.http.client.failures import ConnectionBroken, EgressError
from sidecar.http.client.origin import TargetOrigin, parse_origin
from sidecar.http.client.pool import HttpClient

_MAX_ETAG_CHARS = 256


class FetchedDocument(NamedTuple):
    """A document, and its ETag; "" without one."""

    etag: str
    body: bytes


async def fetch(url: str, *, max_bytes: int = 262_144, deadline_s: float = 5.0, operators: bool = False) -> bytes:
    """Returns the body of a 200 answer to one GET. Raises EgressError.

    Requires https, except on this machine, and where `operators` says that the operator configured plain http for an
    upstream. Redirects are not followed, because the response would choose the next address.
    """
    origin = _origin(url, operators=operators)
    fetched = await _get(origin, [("Accept", "application/json")], max_bytes, deadline_s, None)
    if fetched is None:
        raise ConnectionBroken("status 304 where 200 was needed")
    return fetched.body


async def fetch_newer(
    url: str,
    etag: str,
    headers: Sequence[tuple[str, str]],
    *,
    max_bytes: int,
    deadline_s: float,
    tls: ssl.SSLContext | None = None,
) -> FetchedDocument | None:
    """Returns the document, or None if its state is still `etag`. Bounded as `fetch` is. Raises EgressError."""
    asked = [*headers, ("If-None-Match", etag)] if etag else headers
    fetched = await _get(_origin(url), asked, max_bytes, deadline_s, tls)
    if fetched is None and not etag:
        raise ConnectionBroken("status 304 where 200 was needed")
    return fetched


def _origin(url: str, *, operators: bool = False) -> TargetOrigin:
    try:
        origin = parse_origin(url)
    except ValueError as error:
        raise EgressError(str(error)) from error
    if not origin.secure and not origin.loopback and not operators:
        raise EgressError("only https is fetched from other machines")
    return origin


async def _get(
    origin: TargetOrigin,
    headers: Sequence[tuple[str, str]],
    max_bytes: int,
    deadline_s: float,
    tls: ssl.SSLContext | None,
) -> FetchedDocument | None:
    client = HttpClient(origin, connect_timeout_s=deadline_s, tls=tls)
    try:
        response = await client.request("GET", origin.path, headers, None, deadline_s=deadline_s)
        with response:
            if response.status == 304:
                return None
            if response.status != 200:
                raise ConnectionBroken(f"status {response.status} where 200 was needed")
            etag = response.headers.get("etag", "")
            return FetchedDocument(etag if len(etag) <= _MAX_ETAG_CHARS else "", await response.read(max_bytes))
    finally:
        await client.close()
