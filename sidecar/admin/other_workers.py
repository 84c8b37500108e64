"""Lets the workers that serve one address answer operators and scrapes as one process.

All workers accept connections at the common addresses. Each has a socket in its part of the data folder, at which the
others ask for its health and its metrics, pass on reloads, announce switches, and look up logins to the console.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson
from aiohttp import web

from sidecar.admin.requests import answered, problem
from sidecar.settings.sidecar_file import METRICS_FILE, Settings
from sidecar.settings.writing import write_whole

if TYPE_CHECKING:
    from sidecar.observability.worker_series import WorkerSeries

HEALTH_S: Final = 0.5
SCRAPE_S: Final = 3.0
ORDER_S: Final = 25.0  # commands wait for 30 s
SYNC_S: Final = 2.0
MAX_ANSWER_BYTES: Final = 64 * 2**20
SERIES, SYNC, RELOAD = "/worker/series", "/worker/sync", "/api/reload"
SESSION_SOCKET: Final = "/worker/console-session/"
"""The address of a login to the console, at the worker at which it began. The digest of its id follows."""
FLOW_SOCKET: Final = "/worker/console-login/"
"""The address of a login in progress at an OpenID provider. The digest of its cookie follows."""
BY_HEADER: Final = "Sidecar-By"
"""The header that names the operator whose request one worker passes to the others."""
_SWITCHES: Final = ("/api/principals/", "/api/upstreams/")


class WorkerReply(NamedTuple):
    status: int
    body: bytes

    @property
    def plain(self) -> Mapping[str, Any]:
        try:
            said = orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return {}
        return said if isinstance(said, dict) else {}


@dataclass(frozen=True, slots=True)
class OtherWorkers:
    """The sockets of the other workers, and the files with the last metrics of all workers, by the number of the
    worker. `me` is the number of this one."""

    me: int
    sockets: Mapping[int, Path]
    files: Mapping[int, Path]

    @classmethod
    def of(cls, settings: Settings) -> OtherWorkers | None:
        """Returns the workers that serve with this one; None for a process that serves alone."""
        me, numbers = settings.server.worker, settings.worker_numbers
        if not numbers:
            return None
        sockets = {number: settings.worker_socket(number) for number in numbers if number != me}
        return cls(me, sockets, {number: settings.own_of(number) / METRICS_FILE for number in numbers})

    async def readiness(self, ready: bool, own: Mapping[str, Any]) -> tuple[bool, Mapping[str, Any]]:
        """Returns whether the sidecar is ready, and the document that says so, from those of this worker and of the
        others. If this one is not ready, the others are not asked. A worker that does not answer makes the state
        `degraded`."""
        if not ready:
            return ready, own
        replies = await self.ask_all("GET", "/readyz", HEALTH_S)
        reasons, faults = Counter[str](own.get("reasons", {})), Counter[str](own.get("faults", {}))
        for reply in replies.values():
            if reply is not None and reply.status == 200:
                reasons |= Counter(reply.plain.get("reasons", {}))  # the maximum of each
                faults |= Counter(reply.plain.get("faults", {}))
            else:
                reasons["worker-out"] += 1
        if not reasons:
            return True, {"status": "ready"}
        return True, {"status": "degraded", "reasons": reasons, **({"faults": faults} if faults else {})}

    async def series(self) -> Sequence[WorkerSeries]:
        """Returns the metrics of the others; for a worker that does not answer, those of the last scrape."""
        replies = await self.ask_all("GET", SERIES, SCRAPE_S)

        def found() -> list[WorkerSeries]:
            from sidecar.observability.worker_series import NOTHING_KNOWN, series_from

            alive = {
                number: series_from(reply.body) if reply is not None and reply.status == 200 else None
                for number, reply in replies.items()
            }
            return [series or kept_series(self.files[number]) or NOTHING_KNOWN for number, series in alive.items()]

        return await asyncio.to_thread(found)

    def keep(self, series: WorkerSeries) -> bytes:
        """Stores the metrics of this worker, for scrapes after its end. Returns them in the form for the others.
        Blocks."""
        raw = series.plain()
        with suppress(OSError):  # a full disk must not hide the metrics
            write_whole(self.files[self.me], raw, mode=0o600)
        return raw

    async def complete(self, verb: str, path: str, by: str, response: web.StreamResponse) -> web.StreamResponse:
        """Returns the response to an operator's request for all workers. A reload is repeated at the others, a switch
        is announced to them, and the status is completed by theirs. All other responses are returned unchanged."""
        if response.status >= 300 or not isinstance(response, web.Response):
            return response
        if path == RELOAD:
            return await self._reload(by, response)
        if verb == "POST" and path.startswith(_SWITCHES):
            await self.ask_all("POST", SYNC, SYNC_S, by)  # a worker that does not answer finds it in the store later
        if verb == "GET" and path == "/status":
            replies = await self.ask_all("GET", "/readyz", HEALTH_S)
            found: dict[int, str] = {
                number: "out" if reply is None else str(reply.plain.get("status", "out"))
                for number, reply in replies.items()
            }
            own = orjson.loads(response.body)  # type: ignore[arg-type]
            found[self.me] = own["status"]
            workers = {str(number): found[number] for number in sorted(found)}
            return answered({**own, "worker": self.me, "workers": workers})
        return response

    async def _reload(self, by: str, response: web.Response) -> web.Response:
        replies = await self.ask_all("POST", RELOAD, ORDER_S, by)
        failed = {number: reply for number, reply in replies.items() if reply is None or reply.status != 200}
        if not failed:
            return response
        faults = [fault for reply in failed.values() if reply is not None for fault in reply.plain.get("faults", ())]
        names = ", ".join(map(str, failed))
        return problem(f"the old policy continues to serve at worker {names}", 409, faults=list(dict.fromkeys(faults)))

    async def ask_all(self, verb: str, target: str, within_s: float, by: str = "") -> Mapping[int, WorkerReply | None]:
        """The replies by worker; None for a worker that did not reply in time."""
        asked = (_ask(path, verb, target, within_s, by) for path in self.sockets.values())
        return dict(zip(self.sockets, await asyncio.gather(*asked), strict=True))

    async def ask(self, worker: int, verb: str, target: str, within_s: float) -> WorkerReply | None:
        """The reply of one worker; None if it is not one of the others, or did not reply in time."""
        path = self.sockets.get(worker)
        return None if path is None else await _ask(path, verb, target, within_s, "")


def kept_series(path: Path) -> WorkerSeries | None:
    """The metrics of a worker from the last scrape; None if there are none that can be read."""
    from sidecar.observability.worker_series import series_from  # loaded with the first scrape

    try:
        with path.open("rb") as file:
            return series_from(file.read(MAX_ANSWER_BYTES), alive=False)
    except OSError:
        return None


async def _ask(path: Path, verb: str, target: str, within_s: float, by: str) -> WorkerReply | None:
    head = f"{verb} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n"
    try:
        async with asyncio.timeout(within_s):
            reader, writer = await asyncio.open_unix_connection(str(path))
            try:
                writer.write(f"{head}{BY_HEADER}: {by}\r\n\r\n".encode("latin-1", "replace"))
                return _reply_in(await _whole(reader))
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return None


async def _whole(reader: asyncio.StreamReader) -> bytes:
    pieces, size = [], 0
    while piece := await reader.read(2**16):
        size += len(piece)
        if size > MAX_ANSWER_BYTES:
            return b""
        pieces.append(piece)
    return b"".join(pieces)


def _reply_in(raw: bytes) -> WorkerReply | None:
    head, _, body = raw.partition(b"\r\n\r\n")
    words = head.split(b"\r\n", 1)[0].split()
    if len(words) < 2 or not words[1].isdigit():
        return None
    return WorkerReply(int(words[1]), body)
