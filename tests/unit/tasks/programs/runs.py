"""Runs, as tests of their stores and of what becomes of them begin with."""

from typing import Any

from sidecar.storage import SqliteFile, SqliteRecordStore
from sidecar.tasks.programs.run_record import RUNS, Execution
from sidecar.vocabulary import Caller, Credential, Principal

ALICE = Caller((Principal("user:alice", "https://idp"),), (Credential("jwt", "https://idp"),), 99.5)


def run(**more: Any) -> Execution:
    """One that waits for its turn."""
    made = Execution(
        id="r1",
        owner=ALICE.binding,
        caller=ALICE,
        target="researcher",
        context="c1",
        created_at=1.0,
        expires_at=100.0,
        input="read this",
        task={"id": "r1", "status": {"state": "TASK_STATE_SUBMITTED"}},
    )
    return made._replace(**more)


def in_memory() -> SqliteRecordStore[Execution]:
    return SqliteRecordStore(SqliteFile(None), RUNS)
