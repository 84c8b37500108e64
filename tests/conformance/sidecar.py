"""Which sidecar does a suite meet? One of its own, where whoever comes may everything: suites have no credential.

Before agents they need one, because tasks belong to somebody: there it is an API key, which `plugins/bearing.py` shows.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from sidecar.cli.free_ports import free_ports
from tests.flow.idp import Idp
from tests.tables import tables

ROOT = Path(__file__).parents[2]
READY_WITHIN_S = 120.0
ENDS_WITHIN_S = 10.0
RULES = tables("conformance/sidecar")["rules"]


@contextmanager
def before(servers: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """A sidecar before `servers` (name → its `mcp` section); its base URL."""
    upstreams = {name: {"mcp": dict(section), "anonymous": True} for name, section in servers.items()}
    with _before({"upstreams": upstreams}, {}) as url:
        yield url


def before_agent(section: Mapping[str, Any]) -> AbstractContextManager[tuple[str, str]]:
    """A sidecar before one agent (its `a2a` section), which has a gRPC port of its own: what is before the card's path,
    and the API key of nhi:tck."""
    return _for_tck({"upstreams": {"agent": {"a2a": {**section, "grpc_port": free_ports(1)[0]}}}})


def with_program(command: Sequence[str]) -> AbstractContextManager[tuple[str, str]]:
    """As `before_agent`, where the agent is a program that speaks JSON-RPC on its pipes."""
    definition = {
        "executable": command[0],
        "args": [*command[1:]],
        "agent_type": "json-rpc",
        "max_concurrent_executions": 50,
        "a2a": {"grpc_port": free_ports(1)[0]},
    }
    return _for_tck({"agents": {"agent": definition}})


@contextmanager
def _for_tck(behind: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    idp = Idp()
    key = idp.api_key("nhi:tck", ttl_s=3600)
    settings = {
        "identity": {"api_keys_path": "keys.yaml"},
        **behind,
        "callbacks": {
            "allow": ["localhost:*", "127.0.0.1:*", "example.com:*", "*.example.com:*"],
            "schemes": ["http", "https"],
            "networks": ["127.0.0.0/8", "::1/128"],
        },
    }
    with _before(settings, idp.files()) as url:
        yield f"{url}/agents/agent", key


@contextmanager
def _before(settings: Mapping[str, Any], files: Mapping[str, str]) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="sidecar") as name:
        folder = Path(name)
        port, admin = free_ports(1)[0], free_ports(1)[0]
        _write(folder, {**_settings(port, admin), **settings}, files)
        with (folder / "log").open("wb") as log:
            command = (sys.executable, "-m", "tests.conformance.resolving", "serve", "-c", str(folder / "sidecar.yaml"))
            process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            _await_ready(process, admin, folder / "log")
            yield f"http://localhost:{port}"
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(ENDS_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if kept := os.environ.get("CONFORMANCE_LOGS"):
                shutil.copy(folder / "log", Path(kept) / f"sidecar-{process.pid}.log")
                shutil.copy(folder / "data" / "audit" / "audit.jsonl", Path(kept) / f"sidecar-{process.pid}.jsonl")


def _settings(port: int, admin: int) -> dict[str, Any]:
    grpc = f"127.0.0.1:{free_ports(1)[0]}"
    # The kits, as stock gRPC clients, give the address of a card to gRPC as it stands.
    server = {"listen": f"127.0.0.1:{port}", "grpc": grpc, "grpc_url": grpc, "shutdown_grace_s": "1s"}
    return {
        "version": 1,
        "server": server,
        "admin": {"listen": f"127.0.0.1:{admin}"},
        "sessions": {"session_calls_per_minute": 100_000, "max_per_principal": 1000},
    }


def _write(folder: Path, settings: Mapping[str, Any], files: Mapping[str, str]) -> None:
    (folder / "sidecar.yaml").write_text(json.dumps(settings))
    shutil.copytree(ROOT / "models", folder / "models")
    policies = {f"policies/{kind}.csv": rules for kind, rules in RULES.items()}
    for name, content in {**policies, **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        path.chmod(0o600)


def _await_ready(process: subprocess.Popen[bytes], admin: int, log: Path) -> None:
    until = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < until and process.poll() is None:
        try:
            with urlopen(f"http://127.0.0.1:{admin}/readyz", timeout=1):
                return
        except (URLError, OSError):
            time.sleep(0.05)
    raise SystemExit(f"the sidecar did not start:\n{log.read_text()}")
