"""Do the rows of a pycasbin adapter serve as those of a folder do, and does the last good policy serve on?"""

import asyncio
import json
import os
import re
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from casbin_redis_adapter.adapter import Adapter as RedisAdapter
from casbin_sqlalchemy_adapter import Adapter as SqlAdapter

from sidecar.app.loader import check_files
from sidecar.errors import ConfigError
from tests.flow.test_kill import Client, process
from tests.flow.world import PATIENCE_S, Upstream, World, listening, started, until, write_folder
from tests.unit.policy.stock.setups import ROLES, conf
from tests.valkey import running_valkey

MODEL = conf("g(r.sub, p.sub) && keyMatch(r.obj, p.obj) && r.act == p.act", roles=ROLES)
ADAPTERS = Path(__file__).parents[1] / "unit" / "app" / "policy_sources"
ROWS = [
    ("p", ["reader", "search_code", "call"]),
    ("p", ["reader", "get_file", "call"]),
    ("p", ["writer", "delete_repo", "call"]),
    ("g", ["planner", "reader"]),
]
SUITE = """\
suite: ours
tests:
  - {name: nobody deletes, as: nhi:planner, calls: tool:github/delete_repo, action: tools/call, expect: deny}
"""
NAMES = {"subjects": {"nhi:*": "*"}, "objects": {"tool:github/*": "*"}, "actions": {"tools/call": "call"}}


def settings(**adapter: Any) -> str:
    policy = {"models": "casbin", "names": NAMES, "source": {"adapter": {"every": "100ms", **adapter}}}
    return f"policy: {json.dumps(policy)}\n"


def text_of(rows: list[tuple[str, list[str]]]) -> str:
    return "".join(f"{', '.join((key, *row))}\n" for key, row in rows)


@asynccontextmanager
async def world(folder: Path, **adapter: Any) -> AsyncIterator[World]:
    """A sidecar that has its rows from there."""
    stub = Upstream()
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ADAPTERS)}
    async with listening(stub.handle) as base:
        write_folder(folder, f"{base}/mcp", "", {"casbin/model.conf": MODEL}, settings(**adapter))
        app = await started(folder, environ)
        try:
            async with aiohttp.ClientSession() as http:
                ports = [listener.port for listener in app.listeners]
                yield World(folder, stub, app, http, f"http://127.0.0.1:{ports[1]}", f"http://127.0.0.1:{ports[2]}")
        finally:
            await app.stop()


async def allowed(running: World | Client) -> set[str]:
    """The tools that may be called."""
    tools = ("search_code", "get_file", "delete_repo")
    return {tool for tool in tools if (await running.call(tool, {"repo": "a", "path": "a"}))[0] == 200}


async def until_allowed(running: World | Client, tools: set[str]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await allowed(running) != tools:
            await asyncio.sleep(0.05)


async def test_a_table_of_sqlalchemy_feeds_a_running_process(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/policy.db"
    table = SqlAdapter(url)
    for key, row in ROWS:
        table.add_policy(key[0], key, row)
    adapter = {"class": "casbin_sqlalchemy_adapter.Adapter"}
    adapter |= {"arguments": {"engine": url, "create_all_models": False}}
    async with process(Upstream(), rules="", settings=settings(**adapter), files={"casbin/model.conf": MODEL}) as at:
        assert await allowed(at) == {"search_code", "get_file"}
        table.update_policy("g", "g", ["planner", "reader"], ["planner", "writer"])
        await until_allowed(at, {"delete_repo"})
        table.add_policy("g", "g", ["planner", "reader"])
        await until_allowed(at, {"delete_repo", "search_code", "get_file"})
        with closing(sqlite3.connect(tmp_path / "policy.db")) as database:
            database.execute("DROP TABLE casbin_rule")
        async with asyncio.timeout(PATIENCE_S):
            while "degraded" not in (await at.running.ask("/readyz"))[1]:
                await asyncio.sleep(0.05)
        _, status = await at.running.ask("/status")
        assert "no such table: casbin_rule" in status
        assert "sidecar_policy_source_up 0.0" in (await at.running.ask("/metrics"))[1]
        assert "no such table: casbin_rule" in at.running.log()
        assert await allowed(at) == {"delete_repo", "search_code", "get_file"}


async def test_a_list_of_redis_feeds_a_sidecar_and_its_next_start(tmp_path: Path) -> None:
    with running_valkey() as valkey:
        place = {"host": "localhost", "port": 1, "unix_socket_path": str(valkey.path)}
        table = RedisAdapter(**place)
        for key, row in ROWS:
            table.add_policy(key[0], key, row)
        adapter = {"class": "casbin_redis_adapter.adapter:Adapter", "arguments": place}
        async with world(tmp_path, **adapter) as running:
            assert await allowed(running) == {"search_code", "get_file"}
            table.add_policy("g", "g", ["planner", "writer"])
            await until_allowed(running, {"search_code", "get_file", "delete_repo"})
            reload = [one["control"] for one in running.records() if one["event"] == "control"][-1]
            source = running.app.status()["policy"]["source"]
            assert (reload["what"], reload["by"]) == ("reload", "policy source")
            assert (reload["policy_version"], reload["policy_name"]) == (source["version"], source["name"])
            (told,) = re.findall(r"^sidecar_policy_source_version (.*)$", await running.metrics(), re.MULTILINE)
            assert float(told) == source["version"]
        valkey.restart()  # it has lost them all
        async with world(tmp_path, **adapter) as running:
            assert any("it gave no rows" in one for one in running.app.banners())
            assert await allowed(running) == {"search_code", "get_file", "delete_repo"}
        table.client.close()


async def test_what_may_not_serve_changes_nothing_and_is_told(tmp_path: Path) -> None:
    rows, suite = tmp_path / "rows", tmp_path / "policies" / "tests" / "ours.yaml"
    rows.write_text(text_of(ROWS))
    suite.parent.mkdir(parents=True)
    adapter = {"class": "adapters.Lines", "arguments": ["rows"]}
    async with world(tmp_path, **adapter) as running:
        for text, why in (
            (text_of(ROWS[1:3]), "half of what serves, or less: 2 rows after 4"),
            ("", "it gave no rows"),
            (text_of(ROWS) + "p, a\n", "2 fields, but 4 are needed"),
            (text_of(ROWS) + "p3, a, b, c\n", 'row type "p3" is unknown'),
            (text_of(ROWS) + "p, a, b), c\n", "the adapter failed: IndexError"),
            (text_of(ROWS) + "p, planner, delete_repo, call\n", "nobody deletes"),
        ):
            if why == "nobody deletes":
                suite.write_text(SUITE)
            rows.write_text(text)
            running.app.follower.hint()
            await until(lambda why=why: any(why in one for one in running.app.follower.trouble))  # type: ignore[misc]
            _, told = running.app.readiness()
            assert told["status"] == "degraded" and any(why in one for one in running.app.banners())
            assert await allowed(running) == {"search_code", "get_file"}
        suite.unlink()  # it was meant
        running.app.follower.hint()
        await until_allowed(running, {"search_code", "get_file", "delete_repo"})
        assert running.app.readiness()[1]["status"] == "ready"


async def test_what_else_a_policy_has_stays_in_its_folder_and_is_watched(tmp_path: Path) -> None:
    (tmp_path / "rows").write_text(text_of(ROWS))
    adapter = {"class": "adapters.Lines", "arguments": ["rows"]}
    async with world(tmp_path, **adapter) as running:
        assert await allowed(running) == {"search_code", "get_file"}
        guardrail = "p, *, tool:github/get_*, tools/call, -, -, -, deny\n"
        (tmp_path / "policies" / "guardrails.csv").write_text(guardrail)
        await until_allowed(running, {"search_code"})
        (tmp_path / "rows").write_text(text_of([*ROWS, ("g", ["planner", "writer"])]))
        await until_allowed(running, {"search_code", "delete_repo"})
        (tmp_path / "policies" / "policy.csv").write_text("p, planner, get_file, call\n")
        await until(lambda: any("come from policy.source.adapter" in one for one in running.app.reloader.trouble))


async def test_a_watcher_has_rows_read_before_their_time(tmp_path: Path) -> None:
    (tmp_path / "rows").write_text(text_of(ROWS))
    adapter: dict[str, Any] = {"class": "adapters.Lines", "arguments": ["rows"], "every": "1h"}
    adapter["watcher"] = {"class": "adapters.FileWatcher", "arguments": ["news"]}
    async with world(tmp_path, **adapter) as running:
        (tmp_path / "rows").write_text(text_of([*ROWS, ("g", ["planner", "writer"])]))
        (tmp_path / "news").touch()
        await until_allowed(running, {"search_code", "get_file", "delete_repo"})


async def test_what_was_kept_of_an_adapter_serves_no_other_kind_of_source(tmp_path: Path) -> None:
    (tmp_path / "rows").write_text(text_of(ROWS))
    adapter: dict[str, Any] = {"class": "adapters.Lines", "arguments": ["rows"]}
    async with world(tmp_path, **adapter):
        pass
    git = json.dumps({"source": {"git": {"url": f"file://{tmp_path}/nowhere"}}})
    write_folder(tmp_path, "http://127.0.0.1:1/mcp", "", {}, f"policy: {git}\n")
    with pytest.raises(ConfigError, match=r"S161.*no policy: git fetch failed"):
        await started(tmp_path, {"PATH": os.environ["PATH"]})
    (tmp_path / "rows").unlink()
    async with world(tmp_path, **adapter) as running:
        assert await allowed(running) == {"search_code", "get_file"}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda adapter: adapter | {"class": "adapters.Missing"}, "S161"),
        (lambda adapter: adapter | {"timeout_s": 0.001}, "took longer than 0.001 s"),
        (lambda adapter: adapter | {"arguments": ["nothing"]}, "FileNotFoundError"),
    ],
)
async def test_a_start_that_never_saw_rows_waits_for_them(
    tmp_path: Path, change: Callable[[dict[str, Any]], dict[str, Any]], why: str
) -> None:
    (tmp_path / "rows").write_text(text_of(ROWS))
    adapter: dict[str, Any] = {"class": "adapters.Lines", "arguments": ["rows"]}
    with pytest.raises(ConfigError, match=why):
        async with world(tmp_path, **change(adapter)):
            pass
    with pytest.raises(ConfigError) as refused:
        check_files(tmp_path / "sidecar.yaml", {})
    assert [fault.code for fault in refused.value.faults] == ["S161"]
