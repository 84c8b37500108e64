"""`sidecar connect`: a stdio MCP server that forwards to a sidecar, for clients that only start programs."""

import asyncio
import logging
import os
import re
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import click

from sidecar.cli.client_files.bridge import MAX_LINE_BYTES, StdioBridge
from sidecar.cli.client_files.formats import KEY_VARIABLE
from sidecar.cli.command import FILE
from sidecar.http.client import HttpClient, egress_from, parse_origin
from sidecar.settings.egress import EgressSettings
from sidecar.settings.secrets import read_secret

_REFERENCE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_HEADER: Final = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+)[:=]\s*(.*)")


@click.command()
@click.argument("url")
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    help="A header to send; ${VAR} is replaced from the environment.",
)
@click.option(
    "--api-key-path", type=FILE, help=f"File of an API key, read with each request; by default ${KEY_VARIABLE}."
)
@click.option("--bearer-path", type=FILE, help="File of a token for Authorization: Bearer, read with each request.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(1, 86_400),
    default=600.0,
    show_default=True,
    help="Seconds to wait for a response.",
)
def connect(
    url: str, headers: tuple[str, ...], api_key_path: Path | None, bearer_path: Path | None, timeout_s: float
) -> None:
    """Forward MCP between standard input and output and the server at URL (Streamable HTTP).

    For clients that only start programs, such as Claude Desktop: `sidecar connect http://127.0.0.1:8070/mcp/github`."""
    try:
        origin = parse_origin(url)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="URL") from None
    given = [_header(text) for text in headers]
    if api_key_path is None and not bearer_path and (key := os.environ.get(KEY_VARIABLE)):
        given.append(("X-API-Key", key))

    def shown() -> Sequence[tuple[str, str]]:
        more = [("X-API-Key", read_secret(api_key_path, "theirs"))] if api_key_path else []
        more += [("Authorization", f"Bearer {read_secret(bearer_path, 'theirs')}")] if bearer_path else []
        return [*given, *more]

    shown()  # reports a missing file at once
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="sidecar connect: %(message)s")
    with suppress(KeyboardInterrupt, BrokenPipeError):
        client = HttpClient(origin, egress=egress_from(EgressSettings(), os.environ))
        asyncio.run(StdioBridge(client, origin, _write, shown, timeout_s).run(_lines()))


async def _lines() -> AsyncIterator[bytes]:
    """Yields the lines of standard input. Raises UsageError if it is a file, ClickException for a line that is too
    long."""
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader(limit=MAX_LINE_BYTES)
    try:
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    except ValueError:
        raise click.UsageError("standard input is a file: an MCP client starts this command with pipes") from None
    try:
        while line := await reader.readline():
            yield line
    except ValueError:
        raise click.ClickException(f"a line has more than {MAX_LINE_BYTES} bytes") from None


def _write(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def _header(text: str) -> tuple[str, str]:
    found = _HEADER.fullmatch(text)
    if found is None:
        raise click.BadParameter(f"{text.partition('=')[0]!r} is not a header: write NAME=VALUE", param_hint="--header")
    missing = [name for name in _REFERENCE.findall(found[2]) if name not in os.environ]
    if missing:
        raise click.BadParameter(f"the variable {missing[0]} is not set", param_hint="--header")
    return found[1], _REFERENCE.sub(lambda match: os.environ[match[1]], found[2])
