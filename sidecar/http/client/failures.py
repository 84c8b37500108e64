"""Errors of outgoing connections.

`upstreams` and `identity` translate these into refusals; none contains a header, a body or a credential.
"""

from __future__ import annotations


class EgressError(Exception):
    """The exchange did not happen, or cannot be trusted."""


class InvalidRequest(EgressError):
    """The request may not be sent: a line break in a header, a bad token, a header that the client sets. Nothing was
    sent."""


class NotAllowed(EgressError):
    """A URL in content is not allowed; nothing was sent. The text is for its author, `why` for the operator."""

    def __init__(self, message: str, why: str) -> None:
        super().__init__(message)
        self.why = why


class ConnectFailed(EgressError):
    """No connection: refused, unresolvable, TLS not trusted, the client closed. Nothing was sent."""


class QueueFull(EgressError):
    """All connections are in use and the queue for one is full, or the system provides no more. Nothing was sent."""


class ClientTimeout(EgressError):
    """A deadline passed. The request may have been executed."""


class NoCapacity(ClientTimeout):
    """A deadline passed while all connections were in use. Nothing was sent."""


class NoRoom(EgressError):
    """A deadline passed while other answers used all the memory for answers. The request was executed."""


class ConnectionBroken(EgressError):
    """The peer broke HTTP or hung up early. The request may have been executed."""


class UnacceptableResponse(EgressError):
    """The response is valid HTTP in a form that was not requested: a content coding, an upgrade."""


class ResponseTooLarge(EgressError):
    """The response is longer than its reader allows."""
