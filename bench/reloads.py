"""Does a large policy reload under load without anybody noticing, but whom it concerns?

    python -m bench.reloads [--rows 100000] [--reloads 100]

A sidecar runs in this process, its event loop watched every two milliseconds; wrk calls it from outside all the time.
Two versions of a policy take turns, written by rename and taken by the reload that operators use. Streams of an agent
whom both versions allow are open from the first to the last; those of one whom the second does not allow end with each
of its turns, and are opened again in each of the first's. Afterwards the evidence is read: every call was answered, and
each decision's rules are of the version that its revision names. The table goes to `bench/reloads.json`; that of a
thousand reloads (`--rows 2000 --reloads 1000`, a quarter of an hour) is `bench/reloads-1000.json`.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import uvloop

from bench.call import SERVER, TOOL, Post, post_to
from bench.folder import CALLER, environment, write_folder
from bench.load import Heard, Load, burst, load_from_path
from bench.process import free_port, running, wait_for_port
from bench.streams import LAST_CHUNK, Caller
from bench.subjects import upstream
from sidecar.app.application import Application
from sidecar.cli.serve import settle_interpreter
from sidecar.policy_tools import bench as ladder

OUT = Path(__file__).parent / "reloads.json"
LOOK_S = 0.002
CONNECTIONS = 8
BURST_S = 5
STREAMS = 100  # of the agent who stays
COMING = 10  # of the one who goes, and comes again
ENDED_WITHIN_S = 10.0
STAYS, GOES = "nhi:stays", "nhi:goes"
_MORE = """\
  held: {{mcp: {{url: "http://127.0.0.1:{held}/mcp", transport: http}}, probe: {{enabled: false}}}}
policy: {{watch: false}}
local:
  - {{listen: "127.0.0.1:{stays_port}", principal: "{stays}"}}
  - {{listen: "127.0.0.1:{goes_port}", principal: "{goes}"}}
streams: {{max: 1000, max_per_principal: 1000}}
sessions: {{max: 20000, max_per_principal: 20000, session_calls_per_minute: 10000}}
"""


@dataclass(slots=True)
class Lag:
    """How late the loop came to a timer, in milliseconds."""

    late_ms: list[float] = field(default_factory=list)

    async def watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LOOK_S
            await asyncio.sleep(LOOK_S)
            self.late_ms.append((loop.time() - due) * 1e3)


@dataclass(slots=True)
class Coming:
    """The streams of the agent who may not stay: how many ended before they had to, or did not end."""

    caller: Caller
    early: int = 0
    overstayed: int = 0
    gone_s: list[float] = field(default_factory=list)

    async def come(self) -> None:
        for _ in range(COMING):
            await self.caller.stream()

    def look(self) -> None:
        """While they may be there."""
        self.early += sum(reader.at_eof() or LAST_CHUNK in peeked(reader) for reader, _ in self.caller.held)

    async def go(self) -> None:
        """Once they may not."""
        began = time.perf_counter()
        try:
            await asyncio.wait_for(self.caller.ended(), ENDED_WITHIN_S)
        except TimeoutError:
            self.overstayed += COMING
            self.caller.let_go()
        self.gone_s.append(time.perf_counter() - began)


@click.command()
@click.option("--rows", type=click.IntRange(100, 1_000_000), default=100_000, show_default=True)
@click.option("--reloads", type=click.IntRange(1, 100_000), default=100, show_default=True)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), default=OUT, show_default=True)
def main(rows: int, reloads: int, out: Path) -> None:
    """Reload a large policy again and again under load, on loopback."""
    held = free_port()
    with (
        tempfile.TemporaryDirectory(prefix="reloads") as name,
        upstream(Path(name)) as behind,
        running([sys.executable, "-m", "bench.holding", str(held)], Path(name) / "holding.log") as holding,
    ):
        folder, callers = Path(name), {STAYS: Caller(free_port()), GOES: Caller(free_port())}
        wait_for_port(held, holding)
        made = write_folder(
            folder / "sidecar",
            data_port=free_port(),
            admin_port=free_port(),
            upstream_url=behind.url,
            store_url="memory://",
        )
        more = {"stays": STAYS, "goes": GOES, "stays_port": callers[STAYS].port, "goes_port": callers[GOES].port}
        made.config.write_text(made.config.read_text() + _MORE.format(held=held, **more))
        _, load = load_from_path(folder)
        versions = _versions(folder / "sidecar" / "policies", rows)
        post = post_to(made.url, made.token)
        told = uvloop.run(_reload_under_load(made.config, versions, load, post, reloads, callers))
        told |= {"rows": rows, **_checked(folder / "sidecar" / "data" / "audit" / "audit.jsonl", told)}
    out.write_text(json.dumps(told, indent=1) + "\n")
    click.echo(out.read_text())
    wrong = (
        told["calls_failed"],
        told["streams_lost"],
        told["streams_lost_early"],
        told["streams_overstayed"],
        told["answered_5xx"],
    )
    if any(wrong):
        raise SystemExit(1)


def _versions(policies: Path, rows: int) -> Mapping[str, Iterator[None]]:
    """Two policies that differ in the rules that the load matches; asking for one puts it into place."""
    drawn = ladder.drawn(rows)
    many = "".join(
        f"p, {row.subject}, {row.object}, {row.actions}, -, -, -, {row.effect}\n"
        for row in drawn.rows
        if row.kind == "agent_to_tool"
    )
    (policies / "roles.many.csv").write_text("".join(f"g, {member}, {role}\n" for member, role in drawn.roles))

    def put(version: str) -> Iterator[None]:
        while True:
            for part, text in (("first", ""), ("many", many)):
                rule = f"#: id={version}-{part}\np, {CALLER}, tool:{SERVER}/{TOOL}, tools/call, -, -, -, allow\n"
                if part == "first":
                    whom = (STAYS, GOES) if version == "a" else (STAYS,)
                    rule += "".join(f"p, {who}, tool:held/*, use, -, -, -, allow\n" for who in whom)
                fresh = policies / f".{part}"
                fresh.write_text(rule + text)
                fresh.rename(policies / f"agent_to_tool.{part}.csv")
            yield

    return {version: put(version) for version in ("a", "b")}


async def _reload_under_load(
    config: Path,
    versions: Mapping[str, Iterator[None]],
    load: Load,
    post: Post,
    reloads: int,
    callers: Mapping[str, Caller],
) -> dict[str, Any]:
    next(versions["a"])
    app = await Application.start(config, environment())
    settle_interpreter()
    of_revision = {app.live.current.engine.revision: "a"}
    lag, idle = Lag(), Lag()
    took_s: list[float] = []
    rss_mb: list[int] = []
    heard: list[Heard] = []
    await _quiet(load, post, idle)
    for _ in range(STREAMS):
        await callers[STAYS].stream()
    coming = Coming(callers[GOES])
    await coming.come()
    stop = asyncio.Event()
    watching = asyncio.create_task(lag.watch())
    calling = asyncio.create_task(_call_until(stop, load, post, heard))
    for number in range(reloads):
        version = "ba"[number % 2]
        if version == "b":
            coming.look()
        await asyncio.to_thread(next, versions[version])
        began = time.perf_counter()
        of_revision[await app.reload("bench")] = version
        took_s.append(time.perf_counter() - began)
        await (coming.go() if version == "b" else coming.come())
        rss_mb.append(_rss_mb())
    stop.set()
    await calling
    lost = sum(reader.at_eof() or LAST_CHUNK in peeked(reader) for reader, _ in callers[STAYS].held)
    for caller in callers.values():
        caller.let_go()
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching
    await app.stop()
    return {
        "reloads": reloads,
        "reload_s_median": round(statistics.median(took_s), 2),
        "calls": sum(one.requests for one in heard),
        "calls_failed": sum(one.errors - one.late for one in heard),
        "calls_late": sum(one.late for one in heard),
        "p99_ms": round(statistics.median(one.p99_ms for one in heard), 1),
        "streams": STREAMS,
        "streams_lost": lost,
        "streams_revoked": COMING * len(coming.gone_s),
        "streams_lost_early": coming.early,
        "streams_overstayed": coming.overstayed,
        "streams_revoked_within_s": round(max(coming.gone_s), 2),
        "rss_mb_after_a_tenth": rss_mb[reloads // 10],
        "rss_mb": rss_mb[-1],
        "stall_ms_max": round(max(lag.late_ms), 1),
        "stall_ms_p999": round(sorted(lag.late_ms)[int(len(lag.late_ms) * 0.999)], 1),
        "stall_ms_max_without_reloads": round(max(idle.late_ms), 1),
        "revisions": of_revision,
    }


def peeked(reader: asyncio.StreamReader) -> bytes:
    """What has come and nobody read."""
    return bytes(reader._buffer)  # type: ignore[attr-defined]  # a stream that ended is to be found, not waited for


def _rss_mb() -> int:
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6)


async def _quiet(load: Load, post: Post, lag: Lag) -> None:
    """The same load without a reload: what this machine does to the loop by itself."""
    watching = asyncio.create_task(lag.watch())
    await asyncio.to_thread(burst, load, post, CONNECTIONS, BURST_S)
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching


async def _call_until(stop: asyncio.Event, load: Load, post: Post, heard: list[Heard]) -> None:
    while not stop.is_set():
        heard.append(await asyncio.to_thread(load, post, CONNECTIONS, BURST_S))


def _checked(audit: Path, told: Mapping[str, Any]) -> dict[str, int]:
    """How many decisions there were, and answers of 500 and above. Raises ClickException where one mixes two
    versions."""
    of_revision, decisions, answered_5xx = told["revisions"], 0, 0
    with audit.open(encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            answered_5xx += (record["http_status"] or 0) >= 500
            if record["event"] != "decision" or record["upstream"] != SERVER:
                continue
            decisions += 1
            rules = [rule for link in record["links"] for rule in link["rules"] if rule[:2] in ("a-", "b-")]
            if len(rules) != 2 or {rule[0] for rule in rules} != {of_revision[record["policy_revision"]]}:
                raise click.ClickException(f"a decision mixes two versions: {rules}, {record['policy_revision']}")
    return {"decisions": decisions, "answered_5xx": answered_5xx}


if __name__ == "__main__":
    main()
