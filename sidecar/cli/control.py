"""How does a command reach the sidecar that runs? Through the Unix socket in its data folder, which only its owner can
open."""

from __future__ import annotations

import http.client
import os
import socket
from pathlib import Path
from typing import Any

import click
import orjson

from sidecar.errors import ConfigError

NO, USAGE, INVALID = 1, 2, 3
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


def told(path: Path, target: str, as_json: bool, order: object = None, *, hint: str = "is it running?") -> Any:
    """The running sidecar's answer, printed if it is wanted as JSON. Ends the command if the answer is no."""
    try:
        status, body = ask_control(control_socket(path), target, verb="GET" if order is None else "POST", order=order)
    except ConfigError as error:
        click.echo("\n".join(str(fault) for fault in error.faults), err=True)
        raise SystemExit(INVALID) from None
    except OSError as error:
        click.echo(f"no sidecar answers here: {error.strerror or error}", err=True)
        click.echo(f"   hint: {hint}", err=True)
        raise SystemExit(NO) from None
    answer = orjson.loads(body)
    if as_json:
        click.echo(body, nl=False)
    elif status != 200:
        click.echo(answer["error"], err=True)
    if status != 200:
        raise SystemExit(USAGE if status == 400 else NO)
    return answer
