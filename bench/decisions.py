"""Measures what decisions for other enforcement points cost.

    python -m bench.decisions

Each question is asked of a sidecar with everything on (`bench/folder.py`), and of a bare aiohttp handler that reads the
same body and gives the same answer, turn by turn.

    evaluation     AuthZEN: one tool call with its arguments
    charged        the same, which counts toward the limits too
    evaluations    AuthZEN: a hundred of them in one request
    ext_authz      Envoy in HTTP mode: the caller's MCP message with its token
    auth_request   nginx: the caller's token
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import click
from aiohttp import web

from bench import subjects
from bench.call import ARGUMENTS, SERVER, TOOL, Post, post_to
from bench.folder import CALLER, write_folder
from bench.load import WARM_UP_S, Heard, burst, load_from_path
from bench.process import BenchFailed, Running, free_port, running, wait_for_200, wait_for_port
from bench.report import FEW, MANY, profile_from

OUT = Path(__file__).parent / "decisions.json"
SECRET = "0b7d51c2a94e4f0c8a6d3e5f7b1920c4d6e8fa0b2c4d6e8f"
AT_ONCE = 100
Answer = tuple[str, str]
"""Media type and body."""


@dataclass(frozen=True, slots=True)
class Asker:
    """One question: to the sidecar, and to the bare handler. `decisions` are in one request."""

    name: str
    ours: Post
    bare: Post
    decisions: int = 1


@dataclass(frozen=True, slots=True)
class Burst:
    heard: Heard
    cpu_us: float


def questions(admin: str, token: str) -> Mapping[str, Post]:
    """The requests to a sidecar, by name."""
    key = {"X-PDP-Key": SECRET}
    kind, _, caller = CALLER.partition(":")
    tool = {"type": "tool", "id": f"{SERVER}/{TOOL}", "properties": {"arguments": ARGUMENTS}}
    one: dict[str, Any] = {"subject": {"type": kind, "id": caller}, "action": {"name": "tools/call"}, "resource": tool}
    many = {**one, "evaluations": [{"context": {"number": number}} for number in range(AT_ONCE)]}
    sent = {"Content-Type": "application/json", **key}
    call = post_to(f"{admin}/ext-authz/mcp/{SERVER}", token)
    entry = {"X-Original-URI": f"/mcp/{SERVER}", "X-Original-Method": "POST", "Authorization": f"Bearer {token}", **key}
    return {
        "evaluation": Post(f"{admin}/access/v1/evaluation", sent, json.dumps(one)),
        "charged": Post(f"{admin}/access/v1/evaluation", sent, json.dumps({**one, "context": {"charge": True}})),
        "evaluations": Post(f"{admin}/access/v1/evaluations", sent, json.dumps(many)),
        "ext_authz": replace(call, headers={**call.headers, **key}),
        "auth_request": Post(f"{admin}/auth/nginx", entry, "", "GET"),
    }


def answer_to(post: Post) -> Answer:
    """What one request is answered. Raises BenchFailed unless it is allowed."""
    body = post.body.encode() if post.body else None
    request = urllib.request.Request(post.url, body, dict(post.headers), method=post.method)
    with urllib.request.urlopen(request, timeout=30) as response:
        told: str = response.read().decode()
        if response.status != 200 or '"decision":false' in told:
            raise BenchFailed(f"{post.url} answers {response.status} {told[:500]}")
        return response.headers.get("Content-Type", ""), told


@contextmanager
def sidecar(folder: Path, under: tuple[str, ...] = ()) -> Iterator[tuple[Mapping[str, Post], Running]]:
    """A sidecar that enforcement points may ask, before a server whose tools are known. `under` is what runs it."""
    with subjects.upstream(folder) as behind:
        data, admin = free_port(), free_port()
        made = write_folder(
            folder / "sidecar", data_port=data, admin_port=admin, upstream_url=behind.url, store_url="memory://"
        )
        listen = f'admin: {{listen: "127.0.0.1:{admin}"'
        text = made.config.read_text("utf-8")
        asked = f"{listen}, credentials: [{{role: pdp, secret_path: pdp.secret}}]}}\npdp: {{charges: ask}}\n"
        made.config.write_text(text.replace(f"{listen}}}\n", asked), "utf-8")
        secret = made.config.with_name("pdp.secret")
        secret.touch(0o600)
        secret.write_text(SECRET, "utf-8")
        program = [*under, "sidecar"] if under else ["-m", "sidecar"]
        command = [sys.executable, *program, "serve", "-c", str(made.config)]
        with running(command, folder / "sidecar.log", signal.SIGTERM) as process:
            wait_for_200(made.ready_url, process)
            yield questions(f"http://127.0.0.1:{admin}", made.token), process


@contextmanager
def bare(folder: Path, answers: Mapping[str, Answer]) -> Iterator[tuple[Callable[[str], str], Running]]:
    """The bare handler of these answers; and the URL of each."""
    port, file = free_port(), folder / "answers.json"
    file.write_text(json.dumps(answers), "utf-8")
    command = [sys.executable, "-m", "bench.decisions", "--bare", str(port), str(file)]
    with running(command, folder / "bare.log") as process:
        wait_for_port(port, process)
        yield lambda name: f"http://127.0.0.1:{port}/{name}", process


async def _serve_bare(port: int, answers: Mapping[str, Answer]) -> None:
    app = web.Application()
    for name, answer in answers.items():
        app.router.add_route("*", f"/{name}", _handler(*answer))
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


def _handler(media_type: str, body: str) -> Callable[[web.Request], Any]:
    told = json.loads(body) if body else None

    async def handle(request: web.Request) -> web.Response:
        if request.body_exists:
            await request.json()
        return web.json_response(told) if told is not None else web.Response()

    return handle


def _burst(load: Any, post: Post, process: Running, connections: int, seconds: int) -> Burst:
    before_s = process.cpu_s()
    heard = burst(load, post, connections, seconds)
    return Burst(heard, (process.cpu_s() - before_s) * 1e6 / heard.requests)


def _measured(folder: Path, seconds: int, rounds: int) -> dict[str, dict[str, dict[str, float]]]:
    _, load = load_from_path(folder)
    found: dict[str, dict[str, dict[str, float]]] = {}
    with ExitStack() as stack:
        asked, ours = stack.enter_context(sidecar(folder))
        url_of, theirs = stack.enter_context(bare(folder, {name: answer_to(post) for name, post in asked.items()}))
        askers = [
            Asker(name, post, replace(post, url=url_of(name)), AT_ONCE if name == "evaluations" else 1)
            for name, post in asked.items()
        ]
        for asker in askers:
            for post in (asker.ours, asker.bare):
                burst(load, post, MANY, WARM_UP_S)
        for connections in (MANY, FEW):
            turns: dict[str, list[tuple[Burst, Burst]]] = {asker.name: [] for asker in askers}
            for _ in range(rounds):
                for asker in askers:
                    one = _burst(load, asker.ours, ours, connections, seconds)
                    other = _burst(load, asker.bare, theirs, connections, seconds)
                    turns[asker.name].append((one, other))
            found[str(connections)] = {asker.name: _numbers(turns[asker.name], asker.decisions) for asker in askers}
    return found


def _numbers(turns: list[tuple[Burst, Burst]], decisions: int) -> dict[str, float]:
    """Medians over the rounds. `ratio` is our CPU time to the bare handler's, for one request."""
    return {
        "decisions_s": round(median(one.heard.rps for one, _ in turns) * decisions, 1),
        "p50_ms": round(median(one.heard.p50_ms for one, _ in turns), 3),
        "added_p50_ms": round(median(one.heard.p50_ms - other.heard.p50_ms for one, other in turns), 3),
        "cpu_us": round(median(one.cpu_us for one, _ in turns) / decisions, 1),
        "bare_cpu_us": round(median(other.cpu_us for _, other in turns), 1),
        "ratio": round(median(one.cpu_us / other.cpu_us for one, other in turns), 3),
    }


def _profile(folder: Path, name: str, seconds: int) -> None:
    out = folder / "profile.json"
    _, load = load_from_path(folder)
    with sidecar(folder, ("-m", "bench.sampling", str(out))) as (asked, process):
        answer_to(asked[name])
        burst(load, asked[name], MANY, WARM_UP_S)
        process.child.send_signal(signal.SIGUSR1)
        turn = _burst(load, asked[name], process, MANY, seconds)
    click.echo(f"{name}: {turn.cpu_us:.0f} µs of CPU per request\n")
    click.echo(profile_from(json.loads(out.read_text("utf-8")), turn.cpu_us))


@click.command()
@click.option("--seconds", type=click.IntRange(1, 60), default=2, show_default=True, help="Of one burst of load.")
@click.option("--rounds", type=click.IntRange(1, 50), default=6, show_default=True, help="Turns of each question.")
@click.option("--profile", metavar="QUESTION", help="Show where the sidecar spends its time, measure nothing.")
@click.option("--bare", "served", nargs=2, hidden=True, type=(int, click.Path(path_type=Path)))
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), default=OUT, show_default=True)
def main(seconds: int, rounds: int, profile: str | None, served: tuple[int, Path] | None, out: Path) -> None:
    """Compare decisions with a bare handler that gives the same answers, on this machine."""
    if served is not None:
        asyncio.run(_serve_bare(served[0], json.loads(served[1].read_text("utf-8"))))
    try:
        with tempfile.TemporaryDirectory(prefix="bench") as name:
            if profile is not None:
                _profile(Path(name), profile, seconds * rounds)
                return
            measured = _measured(Path(name), seconds, rounds)
    except BenchFailed as failed:
        click.echo(f"the benchmark failed: {failed}", err=True)
        raise SystemExit(1) from None
    out.write_text(json.dumps(measured, indent=2) + "\n", "utf-8")
    for connections, questions_ in measured.items():
        click.echo(f"{connections} connection{'s' if int(connections) > 1 else ''}")
        for question, n in questions_.items():
            click.echo(
                f"  {question:14}{n['decisions_s']:>8.0f} decisions/s {n['p50_ms']:>7.2f} ms p50 "
                f"{n['added_p50_ms']:>+7.3f} ms added {n['cpu_us']:>6.0f} µs each   "
                f"{n['ratio']:.2f} × the bare handler's {n['bare_cpu_us']:.0f} µs"
            )


if __name__ == "__main__":
    main()
