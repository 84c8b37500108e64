"""The code of the page process, which carries out orders of `page_process`. It imports few modules."""

from __future__ import annotations

import os
import pickle
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from struct import Struct
from threading import Lock
from typing import IO, Any, Final, NamedTuple

THREADS: Final = 4
NICENESS: Final = 10
MAX_RESULT_BYTES: Final = 64 * 2**20
HEAD: Final = Struct(">IQ")
"""The head of each pickle: its length in bytes, and the number of the order."""
OFTEN: Final = ("sidecar.admin.console.rendering", "sidecar.admin.console.log_rows")
"""Modules that most orders need."""


class PageProcessFailed(RuntimeError):
    """A function failed in the page process. The text is its traceback, or says that its result is too large."""


class PageResult(NamedTuple):
    value: Any = None
    error: BaseException | None = None


def serve_order(orders: IO[bytes], out: IO[bytes]) -> None:
    """Carries out orders until the input is closed. `BEGINNING` calls it."""
    with suppress(OSError, AttributeError):  # the latter on systems without scheduling classes
        os.nice(NICENESS)
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # it does not preempt calls when it wakes up
    writing = Lock()
    with ThreadPoolExecutor(THREADS) as threads:
        while head := orders.read(HEAD.size):
            length, number = HEAD.unpack(head)
            threads.submit(_carry_out, orders.read(length), number, out, writing)
        os._exit(0)  # the parent has ended, so no result is needed


def prepare() -> None:
    """Imports the modules that most orders need. It is an order itself."""
    for name in OFTEN:
        import_module(name)


def _carry_out(order: bytes, number: int, out: IO[bytes], writing: Lock) -> None:
    raw = _result_of(order)
    with writing:
        out.write(HEAD.pack(len(raw), number))
        out.write(raw)
        out.flush()


def _result_of(order: bytes) -> bytes:
    try:
        raw = _pickled(PageResult(pickle.loads(order)()))
    except OSError as error:
        return _pickled(PageResult(error=error))
    except Exception:
        return _pickled(PageResult(error=PageProcessFailed(traceback.format_exc())))
    if len(raw) > MAX_RESULT_BYTES:
        return _pickled(PageResult(error=PageProcessFailed(f"a result of {len(raw)} bytes is too large")))
    return raw


def _pickled(result: PageResult) -> bytes:
    return pickle.dumps(result, pickle.HIGHEST_PROTOCOL)
