"""The HTTP client for upstreams, issuers and webhooks.

    origin.py          parses URLs
    egress.py          the proxy and the trust of connections
    tunnel.py          CONNECT to a proxy
    http1.py           the bytes of a request and a response, without sockets
    connection.py      one exchange over one connection: deadlines, backpressure, cancellation
    pool.py            the connections to one origin
    room.py            the memory of all large answers together
    send_queue.py      the queue for a connection when all are in use
    fetch.py           fetches one small public document
    guarded_client.py  requests to addresses that callers chose; uses address_rules.py
    failures.py        the errors

aiohttp's client costs several times as much per call, and follows redirects, keeps cookies and inflates bodies by
default. This client has none of these features.
"""

from sidecar.http.client.connection import ENDLESS, ClientResponse, Deadline
from sidecar.http.client.egress import DIRECT, Egress, egress_from
from sidecar.http.client.failures import (
    ClientTimeout,
    ConnectFailed,
    ConnectionBroken,
    EgressError,
    InvalidRequest,
    NoCapacity,
    NoRoom,
    NotAllowed,
    QueueFull,
    ResponseTooLarge,
    UnacceptableResponse,
)
from sidecar.http.client.fetch import fetch
from sidecar.http.client.guarded_client import Accepted, GuardedClient, Resolve, SystemResolver
from sidecar.http.client.http1 import RequestForm
from sidecar.http.client.origin import TargetOrigin, parse_origin
from sidecar.http.client.pool import HttpClient
from sidecar.http.client.room import ANSWERS, Room, Share

__all__ = [
    "ANSWERS", "DIRECT", "ENDLESS", "Accepted", "ClientResponse", "ClientTimeout", "ConnectFailed", "ConnectionBroken",
    "Deadline", "Egress", "EgressError", "GuardedClient", "HttpClient", "InvalidRequest", "NoCapacity", "NoRoom",
    "NotAllowed", "QueueFull", "RequestForm", "Resolve", "ResponseTooLarge", "Room", "Share", "SystemResolver",
    "TargetOrigin", "UnacceptableResponse", "egress_from", "fetch", "parse_origin",
]  # fmt: skip
