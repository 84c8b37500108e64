"""How does a command reach the sidecar that runs? Through the Unix socket in its data folder, which only its owner can
open."""

from __future__ import annotations

import http.client
import os
import socket
from pathlib import Path

import orjson

DEADLINE_S = 3.0
MAX_ANSWER_BYTES = 32 * 2**20  # all principals that can be disabled, with their reasons


def control_socket(config: Path) -> Path:
    """Where it is. Raises ConfigError for a configuration that says nothing."""
    from sidecar.settings import load_settings

    return load_settings(config, os.environ, check_files=False).control_path


def ask_control(control: Path, target: str, *, verb: str = "GET", order: object = None) -> tuple[int, bytes]:
    """Status and body of the answer; `order` is sent as JSON. Raises OSError if nobody answers."""
    connection = http.client.HTTPConnection("localhost", timeout=DEADLINE_S)
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.sock.settimeout(DEADLINE_S)
        connection.sock.connect(str(control))
        connection.request(verb, target, None if order is None else orjson.dumps(order))
        response = connection.getresponse()
        return response.status, response.read(MAX_ANSWER_BYTES)
    except http.client.HTTPException as error:  # it ended in the middle, or is no sidecar
        raise OSError(f"no whole answer: {type(error).__name__}") from None
    finally:
        connection.close()
