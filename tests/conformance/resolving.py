"""Runs `sidecar` where the names of the kits' receivers lead somewhere.

The kits register webhooks under `example.com`, which cannot be looked up without a network; no request is sent there.
"""

import socket
from typing import Any

from sidecar.cli import main

SOMEWHERE = "93.184.215.14"  # example.com, as it once was
looked_up = socket.getaddrinfo


def look_up(host: Any, port: Any, *more: Any, **options: Any) -> Any:
    """As the system would with a network."""
    if str(host) == "example.com" or str(host).endswith(".example.com"):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (SOMEWHERE, port))]
    return looked_up(host, port, *more, **options)


if __name__ == "__main__":
    socket.getaddrinfo = look_up
    main()
