"""Errors of outgoing connections.

`upstreams` and `identity` translate these into refusals; none carries a header, a body or a credential.
"""

from __future__ import annotations


class EgressError(Exception):
    """The exchange did not happen, or cannot be trusted."""


class InvalidRequest(EgressError):
    """We were asked to send what HTTP cannot carry: a line break in a header, a bad token. Nothing was sent."""


class NotAllowed(EgressError):
    """Content names a place that may not be reached. Nothing was sent, and nobody was asked. Its text is for whoever
    named it, `why` for the operator."""

    def __init__(self, message: str, why: str) -> None:
        super().__init__(message)
        self.why = why


class ConnectFailed(EgressError):
    """No connection: refused, unresolvable, TLS not trusted, the client closed. Nothing was sent."""


class QueueFull(EgressError):
    """All connections are in use and too many wait for one, or the system gives us none. Nothing was sent."""


class ClientTimeout(EgressError):
    """A deadline passed. The request may have been executed."""


class NoCapacity(ClientTimeout):
    """A deadline passed while all connections were in use. Nothing was sent."""


class NoRoom(EgressError):
    """A deadline passed while other answers took all the memory that there is for them. The request was executed."""


class ConnectionBroken(EgressError):
    """The peer broke HTTP or hung up early. The request may have been executed."""


class UnacceptableResponse(EgressError):
    """The answer is HTTP, but in a form that nobody asked for: a content coding, an upgrade."""


class ResponseTooLarge(EgressError):
    """The answer is longer than the caller is willing to read."""
