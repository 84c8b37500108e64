"""Runs a program to its end and returns what it wrote."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import NamedTuple

from sidecar.upstreams.processes.launcher import Exit, Processes, Program

CHUNK_BYTES = 64 * 1024


class CapturedOutput(NamedTuple):
    """The beginning of both outputs, and how the program ended."""

    stdout: bytes
    stderr: bytes
    exit: Exit


async def output_of(processes: Processes, program: Program, *, most: int, sent: bytes = b"") -> CapturedOutput:
    """Run a program with this input, and read all of its output, of which the first `most` bytes of each stream are
    kept. If this is cancelled, the program is ended. Raises StartFailed."""
    process = await processes.start(program)

    async def feed() -> None:
        with suppress(ConnectionError):  # it ended early; its exit code says why
            process.stdin.write(sent)
            await process.stdin.drain()
        process.stdin.close()

    try:
        said, told, _ = await asyncio.gather(_kept(process.stdout, most), _kept(process.stderr, most), feed())
        return CapturedOutput(said, told, await process.wait())
    finally:
        await process.end(patience_s=0.0, grace_s=0.2)


async def _kept(stream: asyncio.StreamReader, most: int) -> bytes:
    kept = bytearray()
    while chunk := await stream.read(CHUNK_BYTES):
        kept += chunk[: most - len(kept)]
    return bytes(kept)
