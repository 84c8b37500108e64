"""What does a message to an agent cost, compared with a proxy that asks no question?

    python -m bench.agents              four subjects, turn by turn, before one agent
    python -m bench.agents --profile    where the sidecar spends its time, with tasks of the file store

The agent speaks A2A 1.0 by JSON-RPC and begins a new task with every message, or answers with a message alone. The
sidecar has everything on: a token, rows with a condition, limits of each sort, strict audit, and owners of tasks in
its file or in memory.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import click

from bench.call import Post
from bench.folder import CALLER, HEAD, ISSUER, TOKEN_LIFETIME_S
from bench.load import Load, burst, load_from_path
from bench.process import BenchFailed, Running, free_port, running, wait_for_200, wait_for_port
from bench.report import MANY, Turn, profile_from
from sidecar.http.signing_keys import claims_for, generate
from sidecar.settings.shipped_files import shipped

OUT = Path(__file__).parent / "agents.json"
AGENT = "researcher"
YARDSTICK = "passthrough"
_HEADERS = {"Content-Type": "application/json", "A2A-Version": "1.0"}
_SENT = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "SendMessage",
    "params": {
        "message": {
            "messageId": "0199-bench",
            "role": "ROLE_USER",
            "parts": [{"text": "Which handlers answer POST?"}, {"data": {"repo": "acme/site", "limit": 20}}],
            "metadata": {"skill": "search"},
        },
        "configuration": {"acceptedOutputModes": ["text/plain"], "returnImmediately": True},
    },
}
_SETTINGS = """\
audit: {{sink: file, durability: strict}}
tasks: {{store: {tasks}}}
upstreams:
  {agent}: {{a2a: {{url: "{url}", version: "1.0"}}}}
"""
_ROWS = f"""\
#: id=bench-asks
p, {CALLER}, nhi:{AGENT}, message/send, -, 900000000, args.message.parts.size() < 9, allow
p, nhi:*, nhi:{AGENT}, use, 2099-01-01T00:00:00Z, -, -, allow
"""
_BUDGETS = f"""\
version: 1
principals:
  {CALLER}: {{per_hour: 900000000, concurrency: 1000}}
"""


class Agent(asyncio.Protocol):
    """One connection. Every message begins a new task; or none, where this agent only answers."""

    made = 0

    def __init__(self, form: str) -> None:
        self._form, self._buffer = form, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].lower()
            _, found, rest = head.partition(b"\r\ncontent-length:")
            size = end + 4 + (int(rest.partition(b"\r\n")[0]) if found else 0)
            if len(self._buffer) < size:
                return
            body, self._buffer = self._buffer[end + 4 : size], self._buffer[size:]
            self._transport.write(self._answer(json.loads(body) if body else {}))

    def _answer(self, message: dict[str, Any]) -> bytes:
        Agent.made += 1
        name = str(Agent.made)
        parts = [{"text": "src/gateway/handlers/part_1.py:17 async def handle(request):"}]
        result: dict[str, Any]
        if self._form == "message":
            result = {"message": {"messageId": f"m{name}", "role": "ROLE_AGENT", "parts": parts}}
        else:
            state = {"state": "TASK_STATE_COMPLETED", "timestamp": "2026-11-28T00:00:00Z"}
            artifacts = [{"artifactId": "a", "parts": parts}]
            result = {"task": {"id": f"t{name}", "contextId": f"c{name}", "status": state, "artifacts": artifacts}}
        body = json.dumps({"jsonrpc": "2.0", "id": message.get("id"), "result": result}, separators=(",", ":"))
        return (
            f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        )


async def _serve(port: int, form: str) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: Agent(form), "127.0.0.1", port)
    await server.serve_forever()


@contextmanager
def _agent(folder: Path, form: str) -> Iterator[tuple[Running, str]]:
    port = free_port()
    with running([sys.executable, "-m", "bench.agents", "serve", str(port), form], folder / f"{form}.log") as process:
        wait_for_port(port, process)
        yield process, f"http://127.0.0.1:{port}/"


@contextmanager
def _bare(folder: Path, url: str) -> Iterator[tuple[Running, Post]]:
    port = free_port()
    command = [sys.executable, "-m", "bench.passthrough", "bare", str(port), url]
    with running(command, folder / "bare.log") as process:
        wait_for_port(port, process)
        yield process, _post(f"http://127.0.0.1:{port}/")


@contextmanager
def _sidecar(folder: Path, url: str, tasks: str, under: Sequence[str] = ()) -> Iterator[tuple[Running, Post]]:
    data, admin = free_port(), free_port()
    audience = f"http://127.0.0.1:{data}/agents/{AGENT}"
    key = generate("ES256")
    token = key.sign(claims_for(ISSUER, CALLER, (audience,), now=time.time(), ttl_s=TOKEN_LIFETIME_S))
    settings = {"data_port": data, "admin_port": admin, "issuer": ISSUER, "audience": audience}
    files = {
        "sidecar.yaml": (HEAD + _SETTINGS).format(**settings, agent=AGENT, url=url, tasks=tasks),
        "jwks.json": key.jwks(),
        "policies/nhi_to_nhi.csv": _ROWS,
        "policies/budgets.yaml": _BUDGETS,
    }
    (folder / "policies").mkdir(parents=True)
    shutil.copytree(shipped("models"), folder / "models")
    for name, content in files.items():
        (folder / name).write_text(content, "utf-8")
    program = [*under, "sidecar"] if under else ["-m", "sidecar"]
    command = [sys.executable, *program, "serve", "-c", str(folder / "sidecar.yaml")]
    with running(command, folder / "sidecar.log", signal.SIGTERM) as process:
        wait_for_200(f"http://127.0.0.1:{admin}/readyz", process)
        yield process, _post(f"{audience}/", {"Authorization": f"Bearer {token}"})


def _post(url: str, more: dict[str, str] | None = None) -> Post:
    return Post(url, {**_HEADERS, **(more or {})}, json.dumps(_SENT, separators=(",", ":")))


# --- turn by turn -----------------------------------------------------------------------------------------------------


@contextmanager
def _everything(folder: Path, form: str) -> Iterator[dict[str, tuple[Running, Post]]]:
    with ExitStack() as stack:
        _, url = stack.enter_context(_agent(folder, form))
        found = {YARDSTICK: stack.enter_context(_bare(folder, url))}
        for tasks in ("memory", "file"):
            name = f"sidecar, tasks in {tasks}"
            found[name] = stack.enter_context(_sidecar(folder / f"{form}-{tasks}", url, tasks))
        yield found


def _measured(folder: Path, load: Load, form: str, seconds: int, rounds: int) -> dict[str, dict[str, float]]:
    """By subject: what a message costs, and its ratios to the yardstick in the same round."""
    with _everything(folder, form) as subjects:
        turns: dict[str, list[Turn]] = {name: [] for name in subjects}
        for post in (post for _, post in subjects.values()):
            burst(load, post, MANY, 1)
        for _ in range(rounds):
            for name, (process, post) in subjects.items():
                turns[name].append(_turn(load, process, post, seconds))
    return {name: _numbers(found, turns[YARDSTICK]) for name, found in turns.items()}


def _turn(load: Load, process: Running, post: Post, seconds: int) -> Turn:
    before_s = process.cpu_s()
    heard = burst(load, post, MANY, seconds)
    return Turn(heard, (process.cpu_s() - before_s) * 1e6 / heard.requests, process.rss_mb())


def _numbers(ours: Sequence[Turn], theirs: Sequence[Turn]) -> dict[str, float]:
    pairs = list(zip(ours, theirs, strict=True))
    return {
        "rps": round(median(turn.heard.rps for turn in ours), 1),
        "p50_ms": round(median(turn.heard.p50_ms for turn in ours), 3),
        "p99_ms": round(median(turn.heard.p99_ms for turn in ours), 3),
        "cpu_us": round(median(turn.cpu_us for turn in ours), 1),
        "ratio": round(median(one.heard.rps / other.heard.rps for one, other in pairs), 3),
        "cpu_ratio": round(median(other.cpu_us / one.cpu_us for one, other in pairs), 3),
    }


def _profile(folder: Path, load: Load, seconds: int) -> None:
    out = folder / "profile.json"
    with (
        _agent(folder, "task") as (_, url),
        _sidecar(folder / "sidecar", url, "file", ("-m", "bench.sampling", str(out))) as (process, post),
    ):
        burst(load, post, MANY, 1)
        process.child.send_signal(signal.SIGUSR1)
        turn = _turn(load, process, post, seconds)
    click.echo(f"{turn.cpu_us:.0f} µs of CPU per message\n")
    click.echo(profile_from(json.loads(out.read_text("utf-8")), turn.cpu_us))


@click.group(invoke_without_command=True)
@click.option("--seconds", type=click.IntRange(1, 60), default=2, show_default=True, help="Of one burst of load.")
@click.option("--rounds", type=click.IntRange(1, 50), default=5, show_default=True, help="Turns of each subject.")
@click.option("--profile", is_flag=True, help="Show where the sidecar spends its time, measure nothing.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), default=OUT, show_default=True)
@click.pass_context
def main(context: click.Context, seconds: int, rounds: int, profile: bool, out: Path) -> None:
    """Compare the sidecar with a bare proxy before an agent, on this machine."""
    if context.invoked_subcommand is not None:
        return
    try:
        with tempfile.TemporaryDirectory(prefix="bench") as name:
            _, load = load_from_path(Path(name))
            if profile:
                _profile(Path(name), load, seconds * rounds)
                return
            found = {form: _measured(Path(name), load, form, seconds, rounds) for form in ("message", "task")}
    except BenchFailed as failed:
        click.echo(f"the benchmark failed: {failed}", err=True)
        raise SystemExit(1) from None
    out.write_text(json.dumps({"seconds": seconds, "rounds": rounds, **found}, indent=2) + "\n", "utf-8")
    for form, subjects in found.items():
        click.echo(f"the agent answers with a {form}, {MANY} connections")
        for name, n in subjects.items():
            quick = f"{n['rps']:>8.0f} req/s {n['p50_ms']:>7.2f} ms p50 {n['p99_ms']:>7.2f} ms p99"
            ratios = f"ratio {n['ratio']:.2f}, by CPU {n['cpu_ratio']:.2f}"
            click.echo(f"  {name:28}{quick} {n['cpu_us']:>6.0f} µs   {ratios}")


@main.command(hidden=True)
@click.argument("port", type=int)
@click.argument("form", type=click.Choice(["message", "task"]))
def serve(port: int, form: str) -> None:
    """The agent, until killed."""
    asyncio.run(_serve(port, form))


if __name__ == "__main__":
    main()
