"""Reads large policies in a separate process, so that calls are not delayed.

Reading a million rows takes seconds of one core, and a thread would take them from the event loop. The process reads,
checks and sorts, and sends back the finished arrays (`serialization`). It ends with its parent, however the parent
ends: Linux ends it with the thread that waits for it; elsewhere it exits when its input is closed, as soon as its
interpreter is free. A small policy is read in this process.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from sidecar.errors import Fault, PolicyError, fault_in
from sidecar.policy.faults import Faults
from sidecar.policy.files import policy_files
from sidecar.policy.serialization import pack, unpack
from sidecar.policy.source import NO_IDS, PolicySource, load_policy
from sidecar.settings.policy import PolicyScope

SMALL_BYTES = 256 * 1024  # some 3,000 rows, a tenth of a second
DEADLINE_S = 120.0
NICENESS = 5  # calls take precedence
_BEGINNING = """\
import ctypes, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL: before anything that takes long
from sidecar.policy import worker_process as aside  # under its own name, as the orders name it
aside._serve(sys.stdin.buffer, sys.stdout.buffer)
"""


class PolicyReading:
    """A load that a thread waits for."""

    def __init__(self) -> None:
        self._turning = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._abandoned = False

    def abandon(self) -> None:
        """Abandon the load. A process that reads it is ended."""
        with self._turning:
            self._abandoned = True
            self._kill()

    def begun_by(self, process: subprocess.Popen[bytes]) -> None:
        """Record the process that reads."""
        with self._turning:
            self._process = process
            if self._abandoned:
                self._kill()

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()


@dataclass(frozen=True, slots=True)
class _Order:
    """What the process is to read."""

    models: Path
    policies: Path
    scopes: tuple[PolicyScope, ...]
    names: frozenset[str] | None
    agent_ids: Mapping[str, str]


def load_policy_aside(
    models: Path,
    policies: Path,
    *,
    scopes: Sequence[PolicyScope] = (),
    names: frozenset[str] | None = None,
    agent_ids: Mapping[str, str] = NO_IDS,
    small_bytes: int = SMALL_BYTES,
    reading: PolicyReading | None = None,
) -> PolicySource:
    """Run `load_policy` in a separate process if there are more than `small_bytes` to read. Blocks: call it in a
    thread; `reading` can abandon the wait.

    Raises PolicyError, also when the process fails or takes longer than two minutes; OSError if none can be started.
    """
    if _size(policies) <= small_bytes:
        return load_policy(models, policies, scopes=scopes, names=names, agent_ids=agent_ids)
    order = _Order(models.absolute(), policies.absolute(), tuple(scopes), names, dict(agent_ids))
    # -P: no module is imported from the working directory. The new session keeps a terminal's signals from the process.
    command = [sys.executable, "-P", "-c", _BEGINNING]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    killer = threading.Timer(DEADLINE_S, process.kill)
    killer.start()
    try:
        if reading is not None:
            reading.begun_by(process)
        return _carried_out(process, order)
    except (EOFError, OSError, pickle.UnpicklingError):
        hint = f"did it run out of memory, or take longer than {DEADLINE_S:.0f} s?"
        raise PolicyError([fault_in(policies, "the process that reads it died", code="P008", hint=hint)]) from None
    finally:
        killer.cancel()
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):  # what the process did not read
                pipe.close()
    process.wait()


def _carried_out(process: subprocess.Popen[bytes], order: _Order) -> PolicySource:
    assert process.stdin is not None
    assert process.stdout is not None
    pickle.dump(order, process.stdin)
    process.stdin.flush()  # left open: the process exits when it is closed
    faults: list[Fault] | None = pickle.load(process.stdout)
    if faults is not None:
        raise PolicyError(faults)
    return unpack(process.stdout)


def _size(policies: Path) -> int:
    total = 0
    for file in policy_files(policies, Faults()):
        with suppress(OSError):
            total += file.path.stat().st_size
    return total


# --- in the process -------------------------------------------------------------------------------------------------


def _serve(orders: IO[bytes], out: IO[bytes]) -> None:
    order: _Order = pickle.load(orders)
    threading.Thread(target=_end_with, args=(orders,), daemon=True).start()
    with suppress(OSError):
        os.nice(NICENESS)
    try:
        folders, ids = (order.models, order.policies), order.agent_ids
        source = load_policy(*folders, scopes=order.scopes, names=order.names, agent_ids=ids)
    except PolicyError as error:
        pickle.dump(list(error.faults), out)
        return
    pickle.dump(None, out)
    pack(source, out)


def _end_with(orders: IO[bytes]) -> None:
    """End the process when its input is closed: the parent no longer waits for the result."""
    orders.read(1)
    os._exit(1)
