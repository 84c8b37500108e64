"""Verifies the audit logs in the background, one verification at a time, and stores the result of the last one.

The result is in the data folder, where all workers read it, also after a restart. It is only about the moment of the
verification, and anyone who can write to the folder can change it. For proof, run `sidecar audit verify`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from sidecar.audit.segments import files_of
from sidecar.audit.verify_process import COMMAND, order_of
from sidecar.errors import Refusal
from sidecar.settings.sidecar_file import Settings
from sidecar.settings.timestamps import rfc3339
from sidecar.settings.writing import write_whole

FILE: Final = "audit-verification.json"
DEADLINE_S: Final = 3600.0
MAX_LINE_BYTES: Final = 4 * 2**20
MAX_FILE_BYTES: Final = 64 * 2**20
DIED: Final = "the process that verified ended before it was done"

log = logging.getLogger("sidecar.admin.console")


@dataclass(slots=True)
class Verification:
    """One verification, running or ended. `logs` are the reports of the workers' logs, `fault` is why it failed."""

    by: str
    began_at: str
    total_bytes: int
    read_bytes: int = 0
    ended_at: str | None = None
    fault: str | None = None
    logs: list[Mapping[str, Any]] = field(default_factory=list)

    def plain(self) -> Mapping[str, Any]:
        names = ("by", "began_at", "ended_at", "fault", "total_bytes", "read_bytes", "logs")
        holds = self.fault is None and all("report" in one and one["report"]["ok"] for one in self.logs)
        return {name: getattr(self, name) for name in names} | {"holds": holds if self.ended_at else None}


@dataclass(slots=True)
class LogVerifier:
    """Runs verifications of this sidecar's logs. `witness` records who began one, and its result."""

    settings: Callable[[], Settings]
    witness: Callable[..., Awaitable[None]]
    _running: Verification | None = None
    _task: asyncio.Task[None] | None = None

    @property
    def running(self) -> Mapping[str, Any] | None:
        return None if self._running is None else self._running.plain()

    async def last(self) -> Mapping[str, Any] | None:
        """The last verification that ended, at any worker; None if there is none that can be read."""
        return await asyncio.to_thread(_read, self.settings().data / FILE)

    async def begin(self, by: str) -> bool:
        """Begins a verification. Returns False if one already runs at this worker. Raises Refusal(AUDIT_UNAVAILABLE),
        OSError."""
        if self._running is not None:
            return False
        settings = self.settings()
        self._running = run = Verification(by, rfc3339(time.time()), 0)
        try:
            run.total_bytes = await asyncio.to_thread(_size_of, settings)
            await self.witness("audit-verification", by, logs=len(settings.audit_logs), bytes=run.total_bytes)
        except BaseException:
            self._running = None
            raise
        self._task = asyncio.create_task(self._run(settings, run))
        return True

    async def _run(self, settings: Settings, run: Verification) -> None:
        try:
            async with asyncio.timeout(DEADLINE_S):
                await _verify(settings, run)
        except TimeoutError:
            run.fault = f"it took longer than {DEADLINE_S:g} s: run sidecar audit verify"
        except (OSError, ValueError) as error:
            run.fault = f"{DIED}: {error}"
        finally:
            self._running = None
        run.ended_at = rfc3339(time.time())
        found = run.plain()
        problems = sum(one["report"]["problem_count"] for one in run.logs if "report" in one)
        records = sum(one["report"]["records"] for one in run.logs if "report" in one)
        with suppress(Refusal):  # the audit reports its own write failures
            about = {"holds": found["holds"], "records": records, "problems": problems, "fault": run.fault}
            await self.witness("audit-verified", run.by, **about)
        try:
            await asyncio.to_thread(write_whole, settings.data / FILE, orjson.dumps(found), mode=0o600)
        except OSError as error:
            log.warning("the result of a verification cannot be stored", extra={"error": str(error)})


async def _verify(settings: Settings, run: Verification) -> None:
    """Verifies the logs in a separate process, which ends with this task, and adds the results to `run`. Raises
    OSError, ValueError."""
    keys = [settings.audit_key_path, *settings.previous_audit_key_paths]
    order = order_of(settings.audit_logs, keys, list(settings.checkpoint_key_paths))
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        *COMMAND, stdin=pipe, stdout=pipe, stderr=null, limit=MAX_LINE_BYTES, start_new_session=True
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(order)
        await process.stdin.drain()
        async for line in process.stdout:
            told = orjson.loads(line)
            if "read" in told:
                run.read_bytes = told["read"]
            else:
                run.logs.append(told)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    if len(run.logs) < len(settings.audit_logs):
        run.fault = DIED


def _size_of(settings: Settings) -> int:
    size = 0
    for path in settings.audit_logs.values():
        for file in files_of(path):
            with suppress(FileNotFoundError):  # deleted in the meantime
                size += file.stat().st_size
    return size


def _read(path: Path) -> Mapping[str, Any] | None:
    try:
        with path.open("rb") as file:
            found = orjson.loads(file.read(MAX_FILE_BYTES))
    except (OSError, orjson.JSONDecodeError):
        return None
    return found if isinstance(found, dict) and "logs" in found else None
