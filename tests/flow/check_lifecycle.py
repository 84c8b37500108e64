"""Compressed bombs and a lack of descriptors leave a sidecar as it was."""

import asyncio
import os
import resource
import signal
import socket
import zlib
from pathlib import Path
from urllib.parse import urlsplit

from tests.flow.raw import CALL, request, statuses, wire
from tests.flow.test_kill import process
from tests.flow.test_lifecycle import descriptors_in, rss_bytes
from tests.flow.world import PATIENCE_S, Upstream, World, until, world


async def test_bombs_are_answered_soon_and_leave_no_memory_behind(tmp_path: Path) -> None:
    packed = zlib.compress(b"0" * 20_000_000)
    nested = CALL.replace(b'"acme/raw"', b"[" * 200_000)
    digits = CALL.replace(b'"acme/raw"', b"9" * 200_000)
    fractions = CALL.replace(b'"acme/raw"', b"[" + b",".join([b"0.1"] * 99_000) + b"]")
    async with world(tmp_path) as running:
        bombs: dict[bytes, int] = {
            request(running, "Content-Encoding: deflate", body=packed): 415,
            request(running, "Content-Length: 1000000000", body=b"", length=False): 413,
            request(running, body=nested): 400,
            request(running, body=digits): 400,
            request(running, body=fractions): 403,  # its condition cannot be asked of them
        }
        for bomb, status in bombs.items():
            assert await answered_soon(running, bomb) == [status]
        before = rss_bytes()
        for _ in range(2):
            await asyncio.gather(*(answered_soon(running, bomb) for bomb in bombs))
        assert rss_bytes() - before < 32 * 2**20
        assert (await running.call("search_code", {"repo": "acme/x"}))[0] == 200


async def answered_soon(running: World, bomb: bytes) -> list[int]:
    async with wire(running) as connection:
        await connection.send(bomb)
        return statuses(await connection.quiet(0.05, within_s=3.0))


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def test_without_descriptors_nobody_is_lost_and_nothing_spins() -> None:
    async with process(Upstream(), settings='server: {listen: "127.0.0.1:0", header_timeout_s: 60}\n') as client:
        assert (await client.call())[0] == 200
        running = client.running
        pid = running.process.pid
        where, hard = urlsplit(running.url), resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]
        taken = descriptors_in(f"/proc/{pid}/fd")
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (taken + 10, hard))
        flood = [socket.create_connection((where.hostname, where.port)) for _ in range(60)]
        await until(lambda: "the system accepts none" in running.log())
        before_s = cpu_s(pid)
        await asyncio.sleep(0.5)
        assert cpu_s(pid) - before_s < 0.25, "it waits, and does not ask again and again"
        answers = await asyncio.gather(*(client.call() for _ in range(4)), return_exceptions=True)
        assert {answer[0] for answer in answers if isinstance(answer, tuple)} <= {200, 502}
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard, hard))
        for sock in flood:
            sock.close()
        async with asyncio.timeout(PATIENCE_S):
            while [(await client.call())[0] for _ in range(10)] != [200] * 10:  # and no breaker opened for it
                await asyncio.sleep(0.05)
        running.signal(signal.SIGTERM)
        assert await running.ended() == 0
        assert running.verify()[0] == 0
        assert running.log().count("the system accepts none") == 1
