"""Is a policy that another process read the same policy, and does that process end with us?"""

import signal
import subprocess
import sys
import time
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from sidecar.errors import PolicyError
from sidecar.policy import Engine, load_policy
from sidecar.policy.worker_process import load_policy_aside, pack, unpack
from tests.tables import tables
from tests.unit.policy.world import MODELS, NOW, chain, scope, source, tool, write

FILES = tables("policy/worker_process")["files"]


def test_what_is_packed_comes_out_the_same(tmp_path: Path) -> None:
    whole, parcel = source(tmp_path, FILES), BytesIO()
    pack(whole, parcel)
    parcel.seek(0)
    there = unpack(parcel)
    assert (there.revision, there.warnings) == (whole.revision, whole.warnings)
    assert list(there.rules) == list(whole.rules)
    assert (there.roles, there.sets, there.indexes) == (whole.roles, whole.sets, whole.indexes)
    for name in ("s/t", "s/get_x", "s/delete_x"):
        one, other = (Engine(one).decide(chain("nhi:a"), tool(name, {"a": 1}), NOW) for one in (whole, there))
        assert one == other


def test_another_process_reads_the_same(tmp_path: Path) -> None:
    write(tmp_path, FILES)
    scopes = [scope("**", ("*",), ("*",), ("*",))]
    there = load_policy_aside(MODELS, tmp_path, scopes=scopes, names=frozenset({"s"}), small_bytes=0)
    here = load_policy(MODELS, tmp_path, scopes=scopes, names=frozenset({"s"}))
    assert (there.revision, list(there.rules), there.warnings) == (here.revision, list(here.rules), here.warnings)


def test_every_fault_comes_back_with_its_place(tmp_path: Path) -> None:
    write(tmp_path, FILES | {"agent_to_tool.csv": "p, nhi:a, tool:s/t, tools/cal, -, -, -, allow\n"})
    with pytest.raises(PolicyError) as found:
        load_policy_aside(MODELS, tmp_path, small_bytes=0)
    assert [(fault.code, fault.line, fault.column) for fault in found.value.faults] == [("P104", 1, 21)]


def test_a_process_that_dies_is_a_fault_and_no_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, FILES)
    monkeypatch.setattr("sidecar.policy.worker_process.DEADLINE_S", 0.0)
    with pytest.raises(PolicyError) as found:
        load_policy_aside(MODELS, tmp_path, small_bytes=0)
    assert [fault.code for fault in found.value.faults] == ["P008"]


def test_a_process_that_cannot_be_watched_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread is left for the timer of the deadline."""
    begun: list[subprocess.Popen[bytes]] = []

    class Noted(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            begun.append(self)

    def fails(_: object) -> None:
        raise RuntimeError("can't start new thread")

    write(tmp_path, FILES)
    monkeypatch.setattr("subprocess.Popen", Noted)
    monkeypatch.setattr("threading.Thread.start", fails)
    with pytest.raises(RuntimeError, match="new thread"):
        load_policy_aside(MODELS, tmp_path, small_bytes=0)
    assert [process.returncode for process in begun] == [-signal.SIGKILL]


def test_the_process_ends_with_the_one_that_asked(tmp_path: Path) -> None:
    """Also after kill -9: it reads a pipe that nobody opens for writing any more."""
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import sys;"
        " from sidecar.policy import worker_process as aside;"
        " import threading; threading.Thread(target=aside._end_with, args=(sys.stdin.buffer,)).start();"
        " import time; time.sleep(60)'], stdin=subprocess.PIPE)\n"
        "print(child.pid, flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
    for _ in range(600):
        state = Path(f"/proc/{pid}/stat")
        if not state.exists() or state.read_text().split()[2] == "Z":
            return
        time.sleep(0.05)
    pytest.fail("it lives on")
