"""The HTTP client for upstreams, issuers and webhooks.

    origin.py       where a URL points
    http1.py         the bytes of a request and a response, no sockets
    connection.py   one exchange over one connection: deadlines, backpressure, giving up
    pool.py         which connection carries the next request
    room.py         how much memory large answers may take, all together
    send_queue.py         who waits for one, when all are in use
    fetch.py        one small public document
    guarded_client.py      what goes to an address that content chose: strict_url.py, address_rules.py
    failures.py     what can go wrong

A lean client of our own, because aiohttp's costs several times as much per call, and follows redirects, keeps cookies
and inflates bodies unless told otherwise. Here these do not exist.
"""

from sidecar.http.client.connection import ENDLESS, ClientResponse, Deadline
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
    "ANSWERS",
    "ENDLESS",
    "Accepted",
    "ClientResponse",
    "ClientTimeout",
    "ConnectFailed",
    "ConnectionBroken",
    "Deadline",
    "EgressError",
    "GuardedClient",
    "HttpClient",
    "InvalidRequest",
    "NoCapacity",
    "NoRoom",
    "NotAllowed",
    "QueueFull",
    "RequestForm",
    "Resolve",
    "ResponseTooLarge",
    "Room",
    "Share",
    "SystemResolver",
    "TargetOrigin",
    "UnacceptableResponse",
    "fetch",
    "parse_origin",
]
