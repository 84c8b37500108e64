"""Maps start failures and exit statuses of programs to reasons.

The reasons are the seed's error categories. Only what may succeed on another try is `transient`; unclear cases are not.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Collection
from typing import Final

from sidecar.settings.agents import Resources
from sidecar.tasks.programs.attempt import AttemptEnd, ProgramOrder
from sidecar.tasks.programs.run_record import Failure, Usage
from sidecar.tasks.programs.run_states import Category
from sidecar.upstreams.processes import Exit, StartFailed

FAILED: Final = "TASK_STATE_FAILED"
CANCELED: Final = "TASK_STATE_CANCELED"
NOTHING: Final = Usage()
_MAY_PASS: Final = frozenset(
    {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.ETXTBSY, errno.ETIMEDOUT}
)
_WILL_STAY: Final = frozenset(
    {errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOEXEC, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.E2BIG}
    | {errno.ENAMETOOLONG, errno.EINVAL, errno.ELIBBAD}
)
_TOLD_CHARS: Final = 400


def fell(failure: Failure, how: Exit | None = None, usage: Usage = NOTHING) -> AttemptEnd:
    """Returns the end of a failed attempt."""
    return AttemptEnd(how, usage, failure, state=FAILED)


def withdrawn(why: str, how: Exit | None = None, usage: Usage = NOTHING) -> AttemptEnd:
    """Returns the end of an attempt whose caller lost the permission for it."""
    return AttemptEnd(how, usage, state=CANCELED, message=({"text": why},))


def overdue(order: ProgramOrder, how: Exit | None = None, usage: Usage = NOTHING) -> AttemptEnd:
    """Returns the end of an attempt that timed out."""
    failure = Failure(Category.AGENT, f"it did not answer within {order.deadline_s:g} s")
    return AttemptEnd(how, usage, failure, timed_out=True, state=FAILED)


def failure_of_start(error: StartFailed) -> Failure:
    """Returns why nothing was started, without the program's path, which is for the operator's log."""
    if error.number is None:
        return Failure(Category.SYSTEM, "it cannot be started")
    why = f"it cannot be started: {os.strerror(error.number)}"
    if error.number in _MAY_PASS:
        return Failure(Category.TRANSIENT, why)
    return Failure(Category.PERMANENT if error.number in _WILL_STAY else Category.SYSTEM, why)


def failure_of_exit(
    how: Exit, last_words: str, resources: Resources, usage: Usage, exit_codes: Collection[int] = ()
) -> Failure | None:
    """Returns why a program that ended by itself failed, or None if it succeeded. `exit_codes` are those that mean "try
    again"; `last_words` is the last line of its standard error, safe to show."""
    if how.code == 0:
        return None
    limit = _limit_met(how, resources, usage)
    if limit is not None:
        return Failure(Category.AGENT, limit)
    why = f"{how}: {last_words[:_TOLD_CHARS]}" if last_words else str(how)
    if how.signal is not None or how.code in exit_codes:
        return Failure(Category.TRANSIENT, why)
    return Failure(Category.SYSTEM if how.code is None else Category.AGENT, why)


def _limit_met(how: Exit, resources: Resources, usage: Usage) -> str | None:
    """Returns which of its limits ended it. A program that ignores SIGXCPU is killed a second later."""
    cpu_s = resources.cpu_s
    if how.signal == signal.SIGXCPU or (how.signal == signal.SIGKILL and cpu_s is not None and usage.cpu_s >= cpu_s):
        return "it took all of its CPU time" if cpu_s is None else f"it took all of its {cpu_s} s of CPU time"
    if how.signal == signal.SIGXFSZ:
        return "it wrote a file beyond its size"
    return None
