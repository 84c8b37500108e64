"""Measures what an open console costs calls, and how soon its pages answer over a large policy.

    python -m bench.console                 ten viewers beside calls at a steady rate, turn by turn with none
    python -m bench.console --pages         each page over 10,000 principals, 1,000 tools and a million rows
    python -m bench.console --names         the pages of names over a million principals with one row each
    python -m bench.console --log           the pages of the audit log over half a million records

Viewers log in, hold the live streams of pages, and read a page every few seconds. They run in a process of their own.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import click

from bench import subjects
from bench.call import SERVER, Post, post_to
from bench.folder import write_folder
from bench.process import BenchFailed, Running, free_port, ready, running, wait_for_200
from sidecar.audit.chain import Unsealed
from sidecar.audit.digest import AuditKey, load_or_make_key
from sidecar.audit.file_sink import AuditFile
from sidecar.audit.record import record_of, unsealed
from sidecar.audit.record_ids import timestamp
from sidecar.audit.segments import aside
from sidecar.settings.load import load_settings

OUT = Path(__file__).parent / "console.json"
KEY = "0b7d51c2a94e4f0c8a6d3e5f7b1920c4d6e8fa0b2c4d6e8f"
VIEWERS, READ_EVERY_S = 10, 3.0
CONNECTIONS = 4
LIVE = ("now/live", "decisions/live", "limits/live", "tools/live", "agents/live", "approvals/live", "agents/runs/live")
PRINCIPALS, TOOLS, ROWS = 10_000, 1_000, 1_000_000
# The pages that are timed; `--pages` asks for each of them so often.
PAGES = (
    "now",
    "decisions",
    "limits",
    "audit",
    "audit?event=control",
    "audit/log",
    "access",
    "access?who=*7&page=3",
    "access?who=nhi:p7",
    "access?who=nhi:p8&show=all",
    f"access?what=tool:{SERVER}/t7",
    f"access?what=tool:{SERVER}/t8&show=all",
    f"try?as=nhi:p7&calls=tool:{SERVER}/t7",
    f"try?as=nhi:p7&calls=tool:{SERVER}/t8",
    "limits?principal=nhi:p7",
    "policy",
    f"policy/file?name=agent_to_tool.large.csv&line={ROWS}",
    "tools",
    f"tools/upstreams/{SERVER}",
    "switches",
    "approvals",
    "agents",
    "agents/runs",
    "agents/schedules",
    "agents/tasks",
)
# Those that `--names` asks for. The first one is the first page after the start.
OF_NAMES = (
    "now",
    "access",
    "access?who=*7&page=3",
    "access?who=*7*7*&page=3",
    "access?who=p77&page=3",
    "access?who=NHI:P99&what=t7",
    "access?who=*nothing*",
    "access?who_kind=nhi",
    "access?who=nhi:p7",
    "access?who=nhi:nothing",
    f"access?what=tool:{SERVER}/t7",
    f"access?what=tool:{SERVER}/t8&show=all",
    f"try?as=nhi:p7&calls=tool:{SERVER}/t7",
    "limits?principal=nhi:p7",
    "limits?principal=nhi:nothing",
    "policy",
    "tools",
    "switches",
    "agents",
)
TIMES = 15
RECORDS, PART_BYTES = 500_000, 128 * 2**20
EPOCH_S, BETWEEN_S = 1_795_000_000.0, 0.01
MIDDLE = RECORDS // 2
START_S = 180.0
_LINE = re.compile(r'name="csrf" value="([^"]+)"')


@dataclass(frozen=True, slots=True)
class Console:
    """A sidecar whose console is on. `base` is the address of its admin listener, `call` what its caller sends."""

    base: str
    call: Post
    process: Running


@contextmanager
def console(folder: Path, principals: int = 0, *, with_log: bool = False) -> Iterator[Console]:
    with subjects.upstream(folder) as upstream:
        ports: dict[str, Any] = {"data_port": free_port(), "admin_port": free_port()}
        made = write_folder(folder / "sidecar", **ports, upstream_url=upstream.url, store_url="memory://")
        key = made.config.parent / "op.key"
        key.touch(mode=0o600)
        key.write_text(KEY, "utf-8")
        admin = "credentials: [{role: operator, secret_path: op.key}], console: {enabled: true}"
        text = made.config.read_text("utf-8")
        listen = f'listen: "127.0.0.1:{ports["admin_port"]}"'
        made.config.write_text(text.replace(listen, f"{listen}, {admin}"), "utf-8")
        if principals:
            _write_rows(made.config.parent / "policies" / "agent_to_tool.large.csv", principals)
        if with_log:
            _write_log(made.config)
        command = [sys.executable, "-m", "sidecar", "serve", "-c", str(made.config)]
        with running(command, folder / "sidecar.log") as process:
            began_s = time.monotonic()
            while True:
                try:
                    wait_for_200(made.ready_url, process)
                    break
                except BenchFailed:
                    if process.child.poll() is not None or time.monotonic() - began_s > START_S:
                        raise
            yield Console(f"http://127.0.0.1:{ports['admin_port']}", post_to(made.url, made.token), process)


def _write_rows(path: Path, principals: int) -> None:
    """A million rows: ten thousand principals have a hundred tools each, some with a limit or an end."""
    with path.open("w", encoding="utf-8") as file:
        for number in range(ROWS):
            end = "2099-01-01T00:00:00Z" if number % 50 == 0 else "-"
            limit = "100" if number % 40 == 0 else "-"
            turn, whose = divmod(number, principals)
            tool = (37 * whose + 7 * turn) % TOOLS  # a hundred different ones for each
            file.write(f"p, nhi:p{whose}, tool:{SERVER}/t{tool}, tools/call, {end}, {limit}, -, allow\n")


def _write_log(config: Path) -> None:
    """Half a million calls in several files; each twentieth was denied."""
    settings = load_settings(config, {}, check_files=False)
    key = load_or_make_key(settings.audit_key_path)
    log = AuditFile.open(settings.audit_path, key)
    for first in range(0, RECORDS, 200):
        log.append([_call(number, key) for number in range(first, min(first + 200, RECORDS))])
        if log.size > PART_BYTES:
            log.turn_over(aside(settings.audit_path, EPOCH_S + BETWEEN_S * first, log.end.seq))
    log.close()


def _call(number: int, key: AuditKey) -> Unsealed:
    at_s, denied = EPOCH_S + BETWEEN_S * number, number % 20 == 0
    principal, tool = f"nhi:p{number % PRINCIPALS}", f"tool:{SERVER}/t{number % TOOLS}"
    fields = {
        "id": f"id-{number}",
        "timestamp": timestamp(at_s),
        "decision_id": _decision_id(number),
        "run_id": f"run-{number // 50}",
        "chain": [principal],
        "agent_id": principal,
        "protocol": "mcp",
        "upstream": SERVER,
        "object": tool,
        "action": "tools/call",
        "args_hash": f"{number:064x}",
        "status": "permission_denied" if denied else "success",
        "reason": "no-matching-rule" if denied else None,
        "http_status": 403 if denied else 200,
        "duration_ms": 1.5,
        "latency": {"auth": 0.1, "policy": 0.1, "upstream": 1.2},
        "key_id": key.id,
    }
    return unsealed("refusal" if denied else "outcome", record_of(fields))


def _decision_id(number: int) -> str:
    """A UUID of version 7, by the time of the call."""
    digits = f"{int((EPOCH_S + BETWEEN_S * number) * 1000):012x}"
    return f"{digits[:8]}-{digits[8:]}-7000-8000-{number:012x}"


def pages_of_log() -> Sequence[str]:
    return (
        "decisions",
        "decisions?status=permission_denied",
        f"decisions?object=tool:{SERVER}/t7",
        "decisions?principal=user:nobody",
        f"decisions/{_decision_id(MIDDLE)}",
        "audit",
        "audit?event=control",
        f"audit?until={timestamp(EPOCH_S + BETWEEN_S * MIDDLE)}",
        f"audit?run_id=run-{(RECORDS - 1) // 50}",
        f"audit/0/{MIDDLE}",
        "audit/log",
    )


# --- calls at a steady rate -------------------------------------------------------------------------------------------


async def latencies(call: Post, rate: int, seconds: float) -> list[float]:
    """How long each call took, in ms, from the time at which it was due."""
    found: list[float] = []
    begins_s, every_s = time.perf_counter() + 0.05, 1 / rate

    async def caller(http: aiohttp.ClientSession, first: int) -> None:
        for number in range(first, int(rate * seconds), CONNECTIONS):
            due_s = begins_s + number * every_s
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            async with http.post(call.url, data=call.body, headers=call.headers) as response:
                await response.read()
                if response.status != 200:
                    raise BenchFailed(f"a call was answered {response.status}")
            found.append((time.perf_counter() - due_s) * 1e3)

    async with aiohttp.ClientSession() as http:
        await asyncio.gather(*(caller(http, first) for first in range(CONNECTIONS)))
    return sorted(found)


def at(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


async def look_on(base: str) -> None:
    """Ten viewers, until the process is ended. It gives way to all others, as browsers run on other machines."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    headers = {"Accept": "text/html", "Origin": base}

    async def viewer(number: int) -> None:
        jar = aiohttp.CookieJar(unsafe=True)
        async with aiohttp.ClientSession(cookie_jar=jar, timeout=aiohttp.ClientTimeout(None)) as http:
            await http.post(f"{base}/console/login", data={"key": KEY}, headers=headers)
            live = LIVE[number % len(LIVE)]

            async def read() -> None:
                while True:
                    async with http.get(f"{base}/console/{live.partition('/')[0]}", headers=headers) as page:
                        if page.status != 200 or not _LINE.search(await page.text()):
                            raise BenchFailed(f"{live}: the page was answered {page.status}")
                    await asyncio.sleep(READ_EVERY_S)

            reading = asyncio.create_task(read())
            async with http.get(f"{base}/console/{live}", headers=headers) as stream:
                if stream.status != 200:
                    raise BenchFailed(f"{live} was answered {stream.status}")
                async for _ in stream.content.iter_any():
                    if reading.done():
                        reading.result()

    viewers = [asyncio.create_task(viewer(number)) for number in range(VIEWERS)]
    print("ready", flush=True)
    await asyncio.gather(*viewers)


async def beside(folder: Path, rate: int, seconds: float, rounds: int) -> dict[str, Any]:
    turns: dict[str, list[dict[str, float]]] = {"alone": [], "viewers": []}
    with console(folder) as ours:
        await latencies(ours.call, rate, 2.0)
        for number in range(rounds):
            click.echo(f"round {number + 1} of {rounds}", err=True)
            turns["alone"].append(await _turn(ours, rate, seconds))
            async with ready(1, "bench.console", "--look", ours.base):
                await asyncio.sleep(2.0)  # for their logins, and for templates to be compiled
                turns["viewers"].append(await _turn(ours, rate, seconds))
            await asyncio.sleep(1.0)
    return {name: {key: median(turn[key] for turn in found) for key in found[0]} for name, found in turns.items()}


async def _turn(ours: Console, rate: int, seconds: float) -> dict[str, float]:
    before_s = ours.process.cpu_s()
    ordered = await latencies(ours.call, rate, seconds)
    cpu = (ours.process.cpu_s() - before_s) / seconds
    return {"p50_ms": at(ordered, 0.5), "p99_ms": at(ordered, 0.99), "max_ms": ordered[-1], "cpu": cpu}


async def pages(folder: Path, wanted: Sequence[str], principals: int = 0, *, with_log: bool = False) -> dict[str, Any]:
    """How long each page takes, in ms: the first time, at the median, and at most of the later ones."""
    found: dict[str, Any] = {}
    headers = {"Accept": "text/html", "Authorization": f"Bearer {KEY}"}
    with console(folder, principals, with_log=with_log) as ours:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)) as http:
            for page in wanted:
                took_ms = []
                for _ in range(TIMES):
                    began_s = time.perf_counter()
                    async with http.get(f"{ours.base}/console/{page}", headers=headers) as response:
                        size = len(await response.read())
                        if response.status != 200:
                            raise BenchFailed(f"{page} was answered {response.status}")
                    took_ms.append((time.perf_counter() - began_s) * 1e3)
                later = sorted(took_ms[1:])
                found[page] = {"first_ms": took_ms[0], "p50_ms": median(later), "max_ms": later[-1], "bytes": size}
    return found


@click.command()
@click.option("--pages", "of_pages", is_flag=True, help="Time each page over a large policy.")
@click.option("--names", "of_names", is_flag=True, help="Time the pages that show names over a million of them.")
@click.option("--log", "of_log", is_flag=True, help="Time the pages of the audit log over many records.")
@click.option("--rate", default=200, show_default=True, help="Calls a second.")
@click.option("--seconds", default=10.0, show_default=True, help="Of one turn.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--look", default="", hidden=True, help="Be the viewers of a console.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), default=OUT, show_default=True)
def main(
    of_pages: bool, of_names: bool, of_log: bool, rate: int, seconds: float, rounds: int, look: str, out: Path
) -> None:
    """Measure the console beside calls, or its pages."""
    if look:
        asyncio.run(look_on(look))
        return
    known = json.loads(out.read_text("utf-8")) if out.is_file() else {}
    with tempfile.TemporaryDirectory(prefix="bench") as name:
        if of_pages:
            known["pages"] = asyncio.run(pages(Path(name), PAGES, PRINCIPALS))
        elif of_names:
            known["names"] = asyncio.run(pages(Path(name), OF_NAMES, ROWS))
        elif of_log:
            known["log"] = asyncio.run(pages(Path(name), pages_of_log(), with_log=True))
        else:
            known["beside"] = asyncio.run(beside(Path(name), rate, seconds, rounds)) | {"rate": rate}
    known["cores"] = os.cpu_count()
    out.write_text(json.dumps(known, indent=2) + "\n", "utf-8")
    _tell(known["pages" if of_pages else "names" if of_names else "log" if of_log else "beside"])


def _tell(found: dict[str, Any]) -> None:
    for name, one in found.items():
        if isinstance(one, dict):
            click.echo(f"{name:26} " + "  ".join(f"{key} {value:8.2f}" for key, value in one.items()))
    if "viewers" in found:
        click.echo(f"p99 with viewers / alone: {found['viewers']['p99_ms'] / found['alone']['p99_ms']:.2f}")


if __name__ == "__main__":
    main()
