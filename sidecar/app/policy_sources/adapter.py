"""Reads a policy's rows by a pycasbin adapter.

`sidecar.policy.adapter_rows` runs the adapter in a process of its own, which remains for the next reading and writes
the rows into a file. Their digest is the policy's name. A pause after each reading bounds the total processor time.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import orjson

from sidecar.app.file_watcher import WatchLook, look_under
from sidecar.app.policy_sources.stored_revisions import SourceError, StoredRevisions, objection
from sidecar.errors import SettingsError
from sidecar.policy.model import MAX_MODEL_CHARS
from sidecar.policy.rows import MAX_FILE_BYTES
from sidecar.settings.policy import SECRET_PLACE, AdapterSource, PythonClass
from sidecar.settings.reading import read_bounded
from sidecar.settings.secrets import read_secret
from sidecar.settings.sidecar_file import Settings
from sidecar.settings.stored_policy import ROWS_FILE, StoredPolicy, kept_for
from sidecar.upstreams.processes.launcher import Process, Processes, Program, StartFailed

READER: Final = Path(__file__).parents[2] / "policy" / "adapter_rows.py"
REST: Final = 2  # times the processor time of a reading: readings take at most a third of a core
SETTLE_S: Final = 0.05  # after the watcher reports a change, for further changes
EXIT_S: Final = 0.5
_OURS: Final = "SIDECAR_"  # variables with these names are settings of the sidecar, possibly secrets

Order = Mapping[str, Any]
_Judged = tuple[str, AdapterSource, WatchLook]


@dataclass(slots=True)
class AdapterOrigin:
    """The rows of an adapter. `hint` is called when its watcher reports a change. `_refused` are refused rows, with the
    settings and the state of the files at that time, and the reason."""

    clock: Callable[[], float]
    processes: Processes
    hint: Callable[[], None]
    rest_s: float = 0.0
    _reader: _ReaderProcess | None = None
    _looked_at: _Judged | None = None
    _refused: tuple[_Judged, str] | None = None

    async def look(self, settings: Settings) -> StoredPolicy | None:
        chosen = settings.policy.source.adapter if settings.policy.source else None
        assert chosen is not None
        try:
            async with asyncio.timeout(chosen.timeout_s):
                return await self._look(settings, chosen)
        except TimeoutError:
            await self.close()
            raise SourceError(f"the adapter took longer than {chosen.timeout_s:g} s") from None
        except OSError as error:
            raise SourceError(f"it cannot be stored: {error}") from None
        except asyncio.CancelledError:
            await self.close()
            raise

    def refuse(self, why: str) -> None:
        if self._looked_at is not None:
            self._refused = self._looked_at, why

    def forget(self) -> None:
        self._refused = None

    async def close(self) -> None:
        if self._reader is not None:
            self._reader.end()
        self._reader = None

    async def _look(self, settings: Settings, chosen: AdapterSource) -> StoredPolicy | None:
        order, models = await asyncio.to_thread(_prepared, settings, chosen)
        reader = await self._running(order, chosen)
        found = await reader.ask({"read": models, "most_bytes": MAX_FILE_BYTES})
        self.rest_s = REST * float(found.get("cpu_s", 0.0))
        if unfit := found.get("unfit"):
            raise SourceError(str(unfit), refused=True)
        digest, rows = str(found["digest"]), int(found["rows"])
        old = await asyncio.to_thread(kept_for, settings)
        if old is not None and (old.kind, old.name) == ("adapter", digest):
            return None
        self._looked_at = digest, chosen, await asyncio.to_thread(look_under, settings.policy.folders)
        if self._refused is not None and self._refused[0] == self._looked_at:
            raise SourceError(self._refused[1], refused=True)
        if not rows:
            raise SourceError("it gave no rows", refused=True)
        now = self.clock()
        version = max(int(now), old.version + 1 if old is not None and old.kind == "adapter" else 0)
        new = StoredPolicy(digest, "adapter", _of(chosen), version, rows, "", now, now)
        if why := objection(new, old, chosen.accept):
            raise SourceError(f"{why} (their digest is {digest})", refused=True)
        shelf = StoredRevisions(settings)
        with shelf.aside() as made:
            (made / "policies").mkdir(mode=0o700)
            await reader.ask({"write": str(made / "policies" / ROWS_FILE)})
            await asyncio.to_thread(shelf.name, made, digest)
        return new

    async def _running(self, order: Order, chosen: AdapterSource) -> _ReaderProcess:
        """Returns the process. Starts it if it does not run, or runs with other settings or secrets."""
        if self._reader is None or not self._reader.runs or self._reader.order != order:
            await self.close()
            environ = {name: text for name, text in self.processes.environ.items() if not name.startswith(_OURS)}
            # -P: no module is imported from the working folder.
            argv = [sys.executable, "-P", str(READER)]
            program = Program(sys.executable, argv, environ, str(chosen.cwd.absolute()))
            try:
                process = await self.processes.start(program)
            except StartFailed as error:
                raise SourceError(f"no process can be started for the adapter: {error}") from None
            self._reader = _ReaderProcess(process, order, self._changed)
            self._reader.tell(order)
        return self._reader

    def _changed(self) -> None:
        asyncio.get_running_loop().call_later(SETTLE_S, self.hint)


class _ReaderProcess:
    """A running process of `adapter_rows`, which serves one `order`. It receives one request at a time."""

    def __init__(self, process: Process, order: Order, changed: Callable[[], None]) -> None:
        self.order = order
        self._process, self._changed = process, changed
        self._answer: asyncio.Future[Mapping[str, Any]] | None = None
        names = ("reads the answers", self._hear), ("reads the errors", self._drop_errors)
        self._tasks = [asyncio.create_task(run(), name=f"{what} of process {process.pid}") for what, run in names]

    @property
    def runs(self) -> bool:
        return not self._tasks[0].done()

    def tell(self, order: Order) -> None:
        self._process.stdin.write(orjson.dumps(order) + b"\n")

    async def ask(self, order: Order) -> Mapping[str, Any]:
        """The answer. Raises SourceError with the reported failure, or if the process ends."""
        self._answer = asyncio.get_running_loop().create_future()
        if not self.runs:
            raise SourceError(self._why())
        self.tell(order)
        answer = await self._answer
        if failed := answer.get("failed"):
            raise SourceError(f"the adapter failed: {failed}")
        return answer

    def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._process.abandon()

    async def _hear(self) -> None:
        try:
            while line := await self._process.stdout.readline():
                async with self._process.answer():
                    said = orjson.loads(line)
                    if "changed" in said:
                        self._changed()
                    elif self._answer is not None and not self._answer.done():
                        self._answer.set_result(said)
            with suppress(TimeoutError):
                async with asyncio.timeout(EXIT_S):
                    await self._process.wait()  # so that the error can state how it ended
        except (OSError, ValueError):
            pass  # its later output cannot be interpreted
        finally:
            self._process.abandon()
            if self._answer is not None and not self._answer.done():
                self._answer.set_exception(SourceError(self._why()))

    def _why(self) -> str:
        how = self._process.exit
        return "the process of the adapter ended" + (f": {how}" if how is not None else "")

    async def _drop_errors(self) -> None:
        while await self._process.stderr.read(64 * 1024):
            pass


def _prepared(settings: Settings, chosen: AdapterSource) -> tuple[Order, list[str]]:
    """The order for the process, and the texts of the models. Raises SourceError."""
    try:
        secrets = {name: read_secret(path, "theirs") for name, path in chosen.secrets.items()}
    except SettingsError as error:
        raise SourceError(f"its secrets cannot be used: {error}") from None
    order = {
        "adapter": _class_order(chosen, secrets),
        "watcher": None if chosen.watcher is None else _class_order(chosen.watcher, secrets),
        "hidden": list(secrets.values()),
    }
    try:
        folder = settings.policy.models
        paths = sorted(folder.glob("*.conf")) if isinstance(folder, Path) else ()
        models = [read_bounded(path, 4 * MAX_MODEL_CHARS).decode() for path in paths]
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"the models cannot be read: {error}") from None
    return order, models


def _class_order(chosen: PythonClass, secrets: Mapping[str, str]) -> Order:
    return {"class": chosen.name, "arguments": _filled(chosen.arguments, secrets)}


def _filled(value: Any, secrets: Mapping[str, str]) -> Any:
    """The arguments with their secrets filled in."""
    match value:
        case str():
            return SECRET_PLACE.sub(lambda found: secrets[found[1]], value)
        case Mapping():
            return {name: _filled(entry, secrets) for name, entry in value.items()}
        case tuple() | list():
            return [_filled(entry, secrets) for entry in value]
    return value


def _of(chosen: AdapterSource) -> str:
    return f"{chosen.name} {sha256(orjson.dumps(chosen.arguments)).hexdigest()[:16]}"
