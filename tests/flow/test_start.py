"""What does a start load?"""

import re

import pytest

from tests.flow.test_kill import process
from tests.flow.world import Upstream

# Each package, and when it is loaded.
NOT_LOADED = {
    "cel_expr_python": "a condition that is not plain",
    "casbin": "a model that is not compiled",
    "google.protobuf": "gRPC, audit.otlp, CEL",
    "grpc": "server.grpc, or an agent behind gRPC",
    "hiredis": "store.url, audit.redis",
    "jsonschema": "a schema that its dialect refuses",
    "jsonschema_rs": "the first schema of a tool",
    "opentelemetry": "audit.otlp",
    "prometheus_client": "the first scrape",
    "psutil": "the first run of a program",
    "redis": "store.url, audit.redis",
    "rich": "commands",
    "sqlite3": "the first record, or a file of records",
    "tarfile": "policy.source",
    "watchfiles": "sidecar policy test --watch",
    "sidecar.admin.operator_api": "the first operator",
    "sidecar.policy_tools": "tests of the policy",
    "sidecar.tasks.programs.program_agent": "agents",
}


async def test_a_start_loads_nothing_that_its_settings_do_not_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    async with process(Upstream()) as client:
        loaded = set(re.findall(r"^import time: .*\| +(\S+)$", client.running.log(), re.MULTILINE))
    assert {"sidecar.gateway.pipeline", "aiohttp.web", "jwt"} <= loaded
    assert loaded & NOT_LOADED.keys() == set()
