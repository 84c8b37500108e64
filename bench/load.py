"""How is a subject put under load, and how quick was it?

By `wrk`, or else `hey`: one process, one thread, connections kept alive, the same request again and again. Both say
what each answer's status was; an answer that is no success ends the benchmark.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.call import Post
from bench.process import BenchFailed

WARM_UP_S = 1
GRACE_S = 20  # for a load that ends late

# `done` runs once, after the load: nothing here is on the way of a request. Latencies are in microseconds.
_SCRIPT = """\
wrk.method = "{method}"
wrk.body = [==[{body}]==]
{headers}
function done(summary, latency, requests)
  local e = summary.errors
  local form = '\\nBENCH {{"requests": %d, "seconds": %f, "p50_ms": %f, "p99_ms": %f, "errors": %d, "late": %d}}\\n'
  io.write(string.format(form,
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
    e.connect + e.read + e.write + e.status + e.timeout, e.timeout))
end
"""


@dataclass(frozen=True, slots=True)
class Heard:
    """What one burst of load came to. `errors` counts failed connections, answers that are no success, and those that
    came `late`: after the load's own two seconds."""

    requests: int
    seconds: float
    p50_ms: float
    p99_ms: float
    errors: int
    late: int = 0

    @property
    def rps(self) -> float:
        return self.requests / self.seconds


Load = Callable[[Post, int, int], Heard]
"""(the call, connections, seconds) → what it came to."""


def load_from_path(folder: Path) -> tuple[str, Load]:
    """The load tool of this machine. `folder` is for its files. Raises BenchFailed where there is none."""
    if tool := shutil.which("wrk"):
        return "wrk", lambda post, connections, seconds: _wrk(tool, folder, post, connections, seconds)
    if tool := shutil.which("hey"):
        return "hey", lambda post, connections, seconds: _hey(tool, folder, post, connections, seconds)
    raise BenchFailed("neither wrk nor hey is on PATH: apt-get install wrk")


def burst(load: Load, post: Post, connections: int, seconds: int) -> Heard:
    """One burst, every answer of which was a success. Raises BenchFailed."""
    heard = load(post, connections, seconds)
    if heard.errors or not heard.requests:
        raise BenchFailed(f"{heard.errors} of {heard.requests} answers of {post.url} were errors")
    return heard


def _wrk(tool: str, folder: Path, post: Post, connections: int, seconds: int) -> Heard:
    script = folder / "wrk.lua"
    headers = "\n".join(f'wrk.headers["{name}"] = "{value}"' for name, value in post.headers.items())
    script.write_text(_SCRIPT.format(method=post.method, body=post.body, headers=headers), "utf-8")
    output = _run([tool, "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(script), post.url], seconds)
    _, found, report = output.partition("\nBENCH ")
    if not found:
        raise BenchFailed(f"wrk said nothing: {output[-2000:]}")
    return Heard(**json.loads(report))


def _hey(tool: str, folder: Path, post: Post, connections: int, seconds: int) -> Heard:
    body = folder / "hey.json"
    body.write_text(post.body, "utf-8")
    headers = [part for name, value in post.headers.items() for part in ("-H", f"{name}: {value}")]
    content = ["-T", post.headers.get("Content-Type", ""), "-D", str(body)]
    most = ["-z", f"{seconds}s", "-c", str(connections), "-o", "csv"]
    output = _run([tool, "-m", post.method, *most, *content, *headers, post.url], seconds)
    rows = list(csv.DictReader(io.StringIO(output)))
    latencies_ms = sorted(float(row["response-time"]) * 1e3 for row in rows)
    errors = sum(row["status-code"] != "200" for row in rows)
    return Heard(len(rows), seconds, _at(latencies_ms, 0.5), _at(latencies_ms, 0.99), errors)


def _at(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def _run(command: Sequence[str], seconds: int) -> str:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds + GRACE_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise BenchFailed(f"{command[0]} did not end") from None
    if done.returncode:
        raise BenchFailed(f"{command[0]} failed: {done.stdout[-1000:]}{done.stderr[-1000:]}")
    return done.stdout
