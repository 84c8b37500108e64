"""The three commands of docs/casbin.md, as processes: a Casbin program's files become a running sidecar."""

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from sidecar.cli.free_ports import free_ports
from tests.flow.world import META, PATIENCE_S, STATELESS
from tests.pages import ROOT, blocks_of

SIDECAR = [sys.executable, "-m", "sidecar"]


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def call(port: int, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    params = {"name": tool, "arguments": arguments, "_meta": META}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": STATELESS,
        "Mcp-Method": "tools/call",
        "Mcp-Name": tool,
    }
    request = urllib.request.Request(f"http://127.0.0.1:{port}/mcp/notes", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            found: dict[str, Any] = json.load(answer)
    except HTTPError as refused:
        found = json.load(refused)
    return found


def wait_for(url: str) -> None:
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            urllib.request.urlopen(url, timeout=PATIENCE_S).close()
            return
        except HTTPError as answer:  # of the upstream, which wants a POST
            if answer.code != 503:
                return
        except OSError:
            pass
        assert time.monotonic() < until
        time.sleep(0.05)


def test_three_commands_make_a_running_sidecar_of_a_casbin_program(tmp_path: Path) -> None:
    files = {block.file: block.text for block in blocks_of((ROOT / "docs" / "casbin.md").read_text("utf-8"))}
    (tmp_path / "casbin").mkdir()
    for name in ("casbin/model.conf", "casbin/policy.csv"):
        (tmp_path / name).write_text(files[name])
    run(tmp_path, *SIDECAR, "init", "--casbin", "casbin/model.conf", "casbin/policy.csv", "gateway")
    folder = tmp_path / "gateway"
    ports = dict(zip(("8080", "8070", "9090", "9100"), free_ports(4), strict=True))
    settings = (folder / "sidecar.yaml").read_text()
    (folder / "sidecar.yaml").write_text(re.sub("8080|8070|9090|9100", lambda found: str(ports[found[0]]), settings))
    run(folder, *SIDECAR, "check")
    upstream = [sys.executable, "-m", "sidecar.cli.demo_server", str(ports["9100"])]
    started = [subprocess.Popen(one, cwd=folder, stderr=subprocess.DEVNULL) for one in (upstream, [*SIDECAR, "serve"])]
    try:
        wait_for(f"http://127.0.0.1:{ports['9100']}/mcp")
        wait_for(f"http://127.0.0.1:{ports['9090']}/readyz")
        allowed = call(ports["8070"], "search_notes", {"repo": "acme/site"})
        assert "launch" in json.dumps(allowed["result"])
        refused = call(ports["8070"], "delete_note", {"repo": "acme/site"})
        assert refused["error"]["data"]["reason"] == "no-matching-rule"
    finally:
        for process in reversed(started):
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE_S)
    out = tmp_path / "out"
    run(folder, *SIDECAR, "policy", "export", "--casbin", str(out))
    assert {path.read_text() for path in out.rglob("*.csv")} >= {files["casbin/policy.csv"]}
    assert {path.read_text() for path in out.rglob("*.conf")} >= {files["casbin/model.conf"]}
