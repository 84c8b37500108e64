"""Verifies logs in a separate process, because reading gigabytes would delay calls.

The order is one line of JSON on standard input, which stays open: the process ends when it is closed. It answers with
lines of JSON, `{"read": <bytes of all logs>}` periodically, then one `{"worker": …, "report": …}` for each log.
"""

import os
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import monotonic
from typing import IO, Any, Final

import orjson

from sidecar.audit.checkpoints import Keys, load_attesting_key, public_keys_of
from sidecar.audit.digest import load_key
from sidecar.audit.rendering import plain_data
from sidecar.audit.segments import files_of
from sidecar.audit.verify import lies_beside, verify, verify_current
from sidecar.errors import SettingsError

NICENESS: Final = 5  # calls take precedence
TOLD_EVERY_S: Final = 0.2
_BEGINNING: Final = (
    "import sys; from sidecar.audit import verify_process as p; p.serve(sys.stdin.buffer, sys.stdout.buffer)"
)
COMMAND: Final = (sys.executable, "-P", "-c", _BEGINNING)  # -P: no module is imported from the working directory


def order_of(logs: Mapping[int, Path], key_paths: list[Path], checkpoint_key_paths: list[Path]) -> bytes:
    """The order to verify the logs of some workers, with the audit keys, current one first."""
    order = {
        "logs": {str(worker): str(path) for worker, path in logs.items()},
        "keys": list(map(str, key_paths)),
        "checkpoint_keys": list(map(str, checkpoint_key_paths)),
    }
    return orjson.dumps(order) + b"\n"


def serve(orders: IO[bytes], out: IO[bytes]) -> None:
    order = orjson.loads(orders.readline())
    threading.Thread(target=_end_with, args=(orders,), daemon=True).start()
    with suppress(OSError):
        os.nice(NICENESS)
    key_paths = [path for path in map(Path, order["keys"]) if path.exists()]
    keys, public_keys = [load_key(path) for path in key_paths], _public_keys(order["checkpoint_keys"])
    before = 0
    for worker, name in order["logs"].items():
        path = Path(name)
        check = partial(
            verify,
            key=keys[0] if keys else None,
            older=keys[1:],
            public_keys=public_keys,
            progress=_Progress(out, before),
        )
        try:
            files, report = verify_current(partial(files_of, path), check)
        except OSError as error:
            _say(out, {"worker": int(worker), "fault": f"{error.filename or path}: {error.strerror or error}"})
            continue
        if any(lies_beside(key_path, path) for key_path in key_paths):
            report.unproved.append(
                "anything against an attacker who can write both log and key: the key is in the log's folder"
            )
        before += sum(file.stat().st_size for file in files if file.exists())
        _say(out, {"worker": int(worker), "files": len(files), "report": plain_data(report.as_data())})


class _Progress:
    def __init__(self, out: IO[bytes], before: int) -> None:
        self._out, self._before, self._next_s = out, before, 0.0

    def __call__(self, read_bytes: int) -> None:
        if monotonic() >= self._next_s:
            self._next_s = monotonic() + TOLD_EVERY_S
            _say(self._out, {"read": self._before + read_bytes})


def _say(out: IO[bytes], told: Mapping[str, Any]) -> None:
    out.write(orjson.dumps(told) + b"\n")
    out.flush()


def _public_keys(paths: list[str]) -> Keys:
    found: Keys = {}
    for path in map(Path, paths):
        with suppress(OSError, SettingsError):  # of a worker that never served
            found = {**found, **public_keys_of(load_attesting_key(path))}
    return found


def _end_with(orders: IO[bytes]) -> None:
    orders.read(1)
    os._exit(1)
