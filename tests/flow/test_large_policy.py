"""Does a large policy come into force without a call noticing? `python -m bench.reloads` is the long run of this."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from sidecar.policy.worker_process import SMALL_BYTES
from tests.flow.world import World, world

MANY = "".join(
    f"p, nhi:agent-{number}, tool:github/get_{number % 997}, use, -, -, -, allow\n" for number in range(10_000)
)


def version(name: str) -> str:
    return f"#: id={name}-first\np, nhi:planner, tool:github/search_code, use, -, -, -, allow\n"


def second(name: str) -> Mapping[str, str]:
    rule = f"#: id={name}-second\np, nhi:planner, tool:github/search_*, use, -, -, -, allow\n"
    return {"agent_to_tool.many.csv": rule + MANY}


def put(running: World, name: str) -> None:
    """Two files; whatever is read between them is a policy that nobody wrote, so the watcher is off."""
    folder = running.folder / "policies"
    for file, text in {"agent_to_tool.csv": version(name), **second(name)}.items():
        (folder / f".{file}").write_text(text)
        (folder / f".{file}").rename(folder / file)


async def test_no_call_fails_and_no_decision_mixes_two_revisions(tmp_path: Path) -> None:
    """BL-081, with ten thousand rows."""
    assert len(MANY) > SMALL_BYTES  # read in a process of its own
    settings = "policy: {watch: false}\n"
    files = {f"policies/{name}": text for name, text in second("a").items()}
    async with world(tmp_path, rules=version("a"), files=files, settings=settings) as running:
        of_revision = {running.app.live.current.engine.revision: "a"}
        stop = asyncio.Event()

        async def calls() -> set[int]:
            statuses = set()
            while not stop.is_set():
                statuses.add((await running.call("search_code", {"repo": "acme/site"}))[0])
            return statuses

        callers = [asyncio.create_task(calls()) for _ in range(4)]
        for name in "bab":
            await asyncio.to_thread(put, running, name)
            of_revision[await running.app.reload("test")] = name
        stop.set()
        assert set().union(*await asyncio.gather(*callers)) == {200}
    decisions = [record for record in running.records() if record["event"] == "decision"]
    assert {of_revision[record["policy_revision"]] for record in decisions} == {"a", "b"}
    for record in decisions:
        (link,) = record["links"]
        name = of_revision[record["policy_revision"]]
        assert link["rules"] == [f"{name}-first", f"{name}-second"]
