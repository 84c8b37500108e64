"""What is `sidecar` where the names of the kits' receivers lead somewhere?

The kits register webhooks under `example.com`, which cannot be looked up without a network; nobody is called there.
"""

from __future__ import annotations

import socket
from typing import Any

from sidecar.cli import main
from sidecar.http.client import guarded_client

SOMEWHERE = "93.184.215.14"  # example.com, as it once was
looked_up = guarded_client._look_up


def look_up(host: str, port: int) -> list[tuple[Any, ...]]:
    """As the system would with a network."""
    if host == "example.com" or host.endswith(".example.com"):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (SOMEWHERE, port))]
    return looked_up(host, port)


if __name__ == "__main__":
    guarded_client._look_up = look_up
    main()
