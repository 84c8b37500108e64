"""Are an adapter's rows taken as it gives them, and does nothing that it does hurt us?"""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from casbin.model import Model
from casbin.persist.adapters import FileAdapter
from hypothesis import given, strategies as st
from psutil import pid_exists

from sidecar.app.policy_sources.adapter import AdapterOrigin
from sidecar.app.policy_sources.stored_revisions import SourceError, StoredRevisions
from sidecar.policy.adapter_rows import UnfitRow, lines_of
from sidecar.settings.load import load_settings
from sidecar.settings.sidecar_file import Settings
from sidecar.settings.stored_policy import StoredPolicy
from sidecar.upstreams.processes.launcher import Processes
from tests.flow.world import until
from tests.unit.policy.stock.setups import BY_ROLE, ROLES, conf

MODEL = conf(BY_ROLE, roles=ROLES)
GIVEN = "p, alice, data1, read\np2,bob,f(a, b)\n# none\ng, alice, admin\nx, of no type\n"


@dataclass
class Origin:
    """An origin, and the settings that it is asked with."""

    folder: Path
    origin: AdapterOrigin
    hints: list[float] = field(default_factory=list)

    def settings(self, **adapter: Any) -> Settings:
        path = self.folder / "sidecar.yaml"
        path.write_text(json.dumps({"version": 1, "policy": {"source": {"adapter": adapter}}}))
        return load_settings(path, {}, check_files=False)

    async def look(self, **adapter: Any) -> StoredPolicy | None:
        return await self.origin.look(self.settings(**adapter))

    async def why(self, **adapter: Any) -> str:
        """Why nothing is taken."""
        with pytest.raises(SourceError) as refused:
            await self.look(**adapter)
        return str(refused.value)

    def keep(self, settings: Settings, taken: StoredPolicy) -> str:
        """What becomes of a policy that is taken into use; its rows."""
        shelf = StoredRevisions(settings)
        shelf.put_in_force(taken, None)
        return (shelf.folder / taken.name / "policies" / "policy.csv").read_text()


@asynccontextmanager
async def asked(folder: Path) -> AsyncIterator[Origin]:
    (folder / "models").mkdir()
    (folder / "models" / "model.conf").write_text(MODEL)
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parent)}
    processes = Processes(environ)
    hints: list[float] = []
    try:
        yield Origin(folder, AdapterOrigin(time.time, processes, lambda: hints.append(0.0)), hints)
    finally:
        await processes.close()


async def test_rows_are_taken_as_they_are_given_and_once(tmp_path: Path) -> None:
    async with asked(tmp_path) as at:
        (tmp_path / "rows").write_text(GIVEN)
        lines = {"class": "adapters.Lines", "arguments": ["rows"]}  # of the folder of sidecar.yaml
        taken = await at.look(**lines)
        assert taken is not None and (taken.kind, taken.size) == ("adapter", 4)
        rows = at.keep(at.settings(**lines), taken)
        assert rows == "p, alice, data1, read\np2, bob, f(a, b)\ng, alice, admin\nx, of no type\n"
        assert await at.look(**lines) is None
        (tmp_path / "rows").write_text(GIVEN + "p, carol, data1, read\n")
        later = await at.look(**lines)
        assert later is not None and later.version > taken.version and later.name != taken.name
        filling = {"class": "adapters:Filling", "arguments": [["bob", "a, (b]", "read"], ["", "x", "y"]]}
        assert "a file cannot contain it" in await at.why(**filling)
        filling["arguments"] = [["bob", "(a, b)", "read"], ["", "x", '"y"']]
        other = await at.look(**filling)
        assert other is not None
        assert at.keep(at.settings(**filling), other) == 'p, bob, (a, b), read\np, , x, "y"\ng, alice, admin\n'


async def test_what_an_adapter_does_wrong_is_told_and_what_comes_next_is_taken(tmp_path: Path) -> None:
    async with asked(tmp_path) as at:
        (tmp_path / "secret").write_text("swordfish")
        (tmp_path / "secret").chmod(0o600)
        numbers = {"class": "adapters.Numbers", "arguments": {"path": "rows"}}
        patient = numbers | {"secrets": {"db": "secret"}}
        for said, settings, why in (
            ("raise", patient, "the adapter failed: ConnectionError: cannot reach db://***@db.example/x, password=***"),
            ("hang", numbers | {"timeout_s": 1.0}, "the adapter took longer than 1 s"),
            ("die", numbers, "the process of the adapter ended: exit code 3"),
            ("exit", numbers, "the adapter failed: SystemExit: 4"),
            ("many", numbers, "the adapter failed: ValueError: invalid literal for int() with base 10: 'many'"),
            ("0", numbers, "it gave no rows"),
        ):
            (tmp_path / "rows").write_text(said)
            assert await at.why(**settings) == why
            (tmp_path / "rows").write_text("2")
            assert await at.look(**numbers) is not None
        for name, why in (
            ("adapters.Waiting", "its load_policy is a coroutine"),
            ("adapters.Missing", "has no attribute 'Missing'"),
            ("nowhere.Adapter", "No module named 'nowhere'"),
            ("adapters.time", "object is not callable"),
        ):
            assert why in await at.why(**{"class": name})


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (["a,b", "x"], "row 2 ('p, a,b, x'): a file cannot contain it"),
        (["a(b", "x"], "a file cannot contain it"),
        (["a]", "x"], "a file cannot contain it"),
        ([" a", "x"], "' a' begins or ends with a blank"),
        (["a\np, root, all", "x"], "contains a line break"),
        (["a\u2028b", "x"], "contains a line break"),
        ([3, "x"], "row 2 ('p, 3, x'): 3 is a int, and rows are texts"),
        (["a", None], "None is a NoneType"),
        ("alice", "row 2 ('alice'): a row is a list of texts"),
    ],
)
def test_a_row_that_no_file_holds_is_named(row: Any, why: str) -> None:
    with pytest.raises(UnfitRow) as unfit:
        list(lines_of([("p", ["alice", "x"]), ("p", row)]))
    assert why in str(unfit.value)


@given(
    st.lists(st.lists(st.text(max_size=8) | st.text("a,()[]# \t\n\r\"'\x1c\xa0", max_size=6), max_size=4), max_size=4)
)
def test_a_file_of_rows_reads_back_equal_or_is_not_written(tmp_path_factory: Any, rows: list[list[str]]) -> None:
    try:
        text = "".join(f"{line}\n" for line in lines_of([("p", row) for row in rows]))
    except UnfitRow:
        return
    path = tmp_path_factory.getbasetemp() / "policy.csv"
    path.write_bytes(text.encode())
    model = Model()
    model.load_model_from_text(MODEL)
    FileAdapter(str(path)).load_policy(model)
    assert model.model["p"]["p"].policy == rows


async def test_half_of_the_rows_or_fewer_are_refused_but_of_two_and_where_they_are_meant(tmp_path: Path) -> None:
    async with asked(tmp_path) as at:
        numbers: dict[str, Any] = {"class": "adapters.Numbers", "arguments": ["rows"]}

        async def give(count: int, **more: Any) -> StoredPolicy | None:
            (tmp_path / "rows").write_text(str(count))
            taken = await at.look(**numbers, **more)
            if taken is not None:
                at.keep(at.settings(**numbers), taken)
            return taken

        await give(8)
        with pytest.raises(SourceError, match="half of what serves, or less: 4 rows after 8") as refused:
            await give(4)
        assert refused.value.refused
        digest = str(refused.value).rpartition(" ")[2].rstrip(")")
        for count, more in ((5, {}), (8, {}), (4, {"accept": digest}), (3, {}), (2, {}), (1, {})):
            assert await give(count, **more), count


async def test_rows_that_were_refused_are_refused_until_they_change_or_all_is_judged_anew(tmp_path: Path) -> None:
    async with asked(tmp_path) as at:
        numbers: dict[str, Any] = {"class": "adapters.Numbers", "arguments": ["rows"]}
        (tmp_path / "rows").write_text("3")
        first = await at.look(**numbers)
        at.origin.refuse("its test fails")
        assert await at.why(**numbers) == "its test fails"
        at.origin.forget()
        assert await at.look(**numbers) is not None
        at.origin.refuse("its test fails")
        (tmp_path / "rows").write_text("4")
        later = await at.look(**numbers)
        assert first and later and first.name != later.name


async def test_secrets_are_filled_in_and_a_new_one_is_a_new_adapter(tmp_path: Path) -> None:
    async with asked(tmp_path) as at:
        (tmp_path / "one").write_text("p, alice, data1, read\n")
        (tmp_path / "two").write_text("p, alice, data2, read\n")
        secret = tmp_path / "secret"
        lines = {"class": "adapters.Lines", "secrets": {"which": "secret"}}
        lines["arguments"] = {"path": f"{tmp_path}/${{which}}", "more": [{"as": "$which"}]}
        names = []
        for which in ("one", "two"):
            secret.write_text(f"{which}\n")
            secret.chmod(0o600)
            taken = await at.look(**lines)
            assert taken is not None
            names.append(at.keep(at.settings(**lines), taken))
        assert names == ["p, alice, data1, read\n", "p, alice, data2, read\n"]
        secret.chmod(0o644)
        assert "is open to others" in await at.why(**lines)


async def test_a_watcher_tells_of_a_change_once_until_it_was_read(tmp_path: Path) -> None:
    async with asked(tmp_path) as at:
        (tmp_path / "rows").write_text("3")
        settings: dict[str, Any] = {"class": "adapters.Numbers", "arguments": ["rows"]}
        settings["watcher"] = {"class": "adapters.FileWatcher", "arguments": {"path": "news"}}
        assert await at.look(**settings) is not None
        assert not at.hints
        (tmp_path / "news").touch()
        await until(lambda: bool(at.hints))
        await at.look(**settings)
        assert len(at.hints) == 1
        settings["watcher"] = {"class": "adapters.Waiting"}
        assert "no attribute 'set_update_callback'" in await at.why(**settings)


async def test_a_look_that_is_given_up_leaves_no_process(tmp_path: Path) -> None:
    async with asked(tmp_path) as at:
        (tmp_path / "rows").write_text("hang")
        looking = asyncio.create_task(at.look(**{"class": "adapters.Numbers", "arguments": ["rows"]}))
        await until(lambda: at.origin._reader is not None)
        assert at.origin._reader is not None
        pid = at.origin._reader._process.pid
        looking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await looking
        await until(lambda: not pid_exists(pid))
