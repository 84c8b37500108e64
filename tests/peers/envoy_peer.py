"""Envoy as a peer: a client of its published protos, and the program itself."""

import base64
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.flow.enforcement import SECRET

ROOT = Path(__file__).parents[2]
HOME = Path(os.environ.get("SIDECAR_ENVOY_HOME") or ROOT / ".venv-envoy")
PYTHON, ENVOY = HOME / "bin" / "python", HOME / "bin" / "envoy"
CLIENT = Path(__file__).with_name("envoy_client.py")
MISSING = "no Envoy on this machine: make builds .venv-envoy, or set SIDECAR_ENVOY_HOME"


def is_here() -> bool:
    return PYTHON.exists() and ENVOY.exists()


@dataclass(frozen=True)
class Told:
    """What Envoy is told. `status` is that of the answer to the caller, `removed` and `upstream` are the headers that
    the upstream does not get, and gets. `error` is gRPC's, if there was no decision."""

    allowed: bool
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    removed: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    error: str = ""

    @property
    def reason(self) -> str:
        """Our reason, in whatever protocol the answer is."""
        body = self.body or {}
        data = body.get("error", {}).get("data", body) if isinstance(body.get("error"), dict) else body
        data = data[0].get("metadata", {}) if isinstance(data, list) else data
        found = data.get("result", {}).get("_meta", {}).get("sidecar/refusal", data)
        return str(found.get("reason", ""))


@dataclass
class EnvoyClient:
    """The client, as a process of its own. `grpc` and `http` are the addresses of the decision point."""

    process: subprocess.Popen[str]
    grpc: str = ""
    http: str = ""

    def check(
        self,
        mode: str,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes = b"",
        *,
        key: str = SECRET,
        **more: Any,
    ) -> Told:
        """Asks in one mode. `more` are further attributes of a CheckRequest, for gRPC alone."""
        if mode == "http":
            return self._over_http(method, path, headers, body, key)
        http = {"method": method, "path": path, "headers": {**headers, ":path": path}, "host": "edge.acme.example"}
        http |= {"rawBody": base64.b64encode(body).decode()} if body else {}
        check = {"attributes": {"request": {"http": {**http, **more.pop("request", {})}}, **more}}
        return self.grpc_check(check, [("x-pdp-key", key)])

    def grpc_check(self, check: Mapping[str, Any], metadata: list[tuple[str, str]]) -> Told:
        told = self._ask({"grpc": self.grpc, "check": check, "metadata": metadata})
        if "code" in told:
            return Told(False, error=told["code"], body=told["words"])
        facts = {"metadata": told["dynamicMetadata"]}
        if (ok := told.get("okResponse")) is not None:
            assert told["status"].get("code", 0) == 0
            return Told(True, 200, _options(ok["headers"]), None, tuple(ok["headersToRemove"]), **facts)
        denied = told["deniedResponse"]
        assert told["status"]["code"] in (7, 16) and told["status"]["message"] == told["dynamicMetadata"]["reason"]
        return Told(False, denied["status"]["code"], _options(denied["headers"]), json.loads(denied["body"]), **facts)

    def _over_http(self, method: str, path: str, headers: Mapping[str, str], body: bytes, key: str) -> Told:
        sent = [("host", "edge.acme.example"), *headers.items(), ("x-pdp-key", key)]
        content = base64.b64encode(body).decode()
        asked = {"http": self.http, "method": method, "path": f"/ext-authz{path}", "headers": sent, "body": content}
        told = self._ask(asked)
        found = {name.lower(): value for name, value in told["headers"]}
        removed = tuple(filter(None, found.pop("x-envoy-auth-headers-to-remove", "").split(",")))
        parsed = json.loads(told["body"]) if told["body"] else None
        return Told(told["status"] == 200, told["status"], found, parsed, removed)

    def _ask(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        told: dict[str, Any] = json.loads(self.process.stdout.readline())
        return told


def _options(options: list[dict[str, Any]]) -> dict[str, str]:
    """The headers, each of which overwrites one that is there."""
    assert all(one["appendAction"] == 2 for one in options)
    return {one["header"]["key"].lower(): one["header"]["value"] for one in options}


@contextmanager
def envoy_client() -> Iterator[EnvoyClient]:
    pipe = subprocess.PIPE
    with subprocess.Popen([str(PYTHON), str(CLIENT)], stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield EnvoyClient(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
