"""How do we speak HTTP to others?

    origin.py       where a URL points
    wire.py         the bytes of a request and a response, no sockets
    connection.py   one exchange over one connection: deadlines, backpressure, giving up
    pool.py         which connection carries the next request
    room.py         how much memory large answers may take, all together
    line.py         who waits for one, when all are in use
    fetch.py        one small public document
    guarded.py      what goes to an address that content chose: strict_url.py, reach.py
    failures.py     what can go wrong

A lean client of our own, because aiohttp's costs several times as much per call, and follows redirects, keeps cookies
and inflates bodies unless told otherwise. Here these do not exist.
"""

from sidecar.egress.connection import ENDLESS, Deadline, Response
from sidecar.egress.failures import (
    Broken,
    ConnectFailed,
    Crowded,
    EgressError,
    InvalidRequest,
    NoPlace,
    NoRoom,
    NotAllowed,
    TimedOut,
    TooLarge,
    Unacceptable,
)
from sidecar.egress.fetch import fetch
from sidecar.egress.guarded import Accepted, Guard, Resolve, SystemResolver
from sidecar.egress.origin import Origin, parse_origin
from sidecar.egress.pool import Client
from sidecar.egress.room import ANSWERS, Room, Share
from sidecar.egress.wire import RequestForm

__all__ = [
    "ANSWERS",
    "ENDLESS",
    "Accepted",
    "Broken",
    "Client",
    "ConnectFailed",
    "Crowded",
    "Deadline",
    "EgressError",
    "Guard",
    "InvalidRequest",
    "NoPlace",
    "NoRoom",
    "NotAllowed",
    "Origin",
    "RequestForm",
    "Resolve",
    "Response",
    "Room",
    "Share",
    "SystemResolver",
    "TimedOut",
    "TooLarge",
    "Unacceptable",
    "fetch",
    "parse_origin",
]
