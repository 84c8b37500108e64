"""How is one small public document fetched (a JWKS)?"""

from __future__ import annotations

from sidecar.egress.failures import Broken, EgressError
from sidecar.egress.origin import parse_origin
from sidecar.egress.pool import Client


async def fetch(url: str, *, max_bytes: int = 262_144, deadline_s: float = 5.0, operators: bool = False) -> bytes:
    """The body of a 200 answer to one GET. Raises EgressError.

    https only, except on this machine, and where plain http is the `operators`' own word for an upstream; no redirects,
    since a redirect would let the answer choose the next address.
    """
    try:
        origin = parse_origin(url)
    except ValueError as error:
        raise EgressError(str(error)) from error
    if not origin.secure and not origin.loopback and not operators:
        raise EgressError("only https is fetched from other machines")
    client = Client(origin, connect_timeout_s=deadline_s)
    try:
        response = await client.request(
            "GET", origin.path, [("Accept", "application/json")], None, deadline_s=deadline_s
        )
        with response:
            if response.status != 200:
                raise Broken(f"status {response.status} where 200 was needed")
            return await response.read(max_bytes)
    finally:
        await client.close()
