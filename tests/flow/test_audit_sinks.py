"""Does a whole sidecar leave its evidence where it was told to, and only there?"""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import orjson

from sidecar.audit.chain import unseal
from tests.flow.causes import GOOD
from tests.flow.forks import sidecar
from tests.flow.talk import Talk
from tests.flow.world import PATIENCE_S, Upstream, World, listening, world, write_folder
from tests.receiver import receiving
from tests.valkey import running_valkey

RULES = "p, nhi:planner, tool:github/search_code, use, -, -, -, allow\n"


async def call(running: World) -> int:
    return (await Talk(running, "stateless").call("search_code", GOOD))[0]


def events_of(lines: list[bytes]) -> list[Any]:
    """What was recorded, of lines that are one chain."""
    sealed = [unseal(line) for line in lines]
    assert all(one is not None and one.intact for one in sealed)
    assert [one.seq for one in sealed if one] == list(range(1, len(lines) + 1))
    return [one.fields["control"]["what"] if one.fields["control"] else one.fields["event"] for one in sealed if one]


WHOLE = ["start", "decision", "outcome", "stop", "checkpoint"]


async def test_on_standard_output_is_the_evidence_and_nothing_else(tmp_path: Path) -> None:
    """The log goes to standard error; and a reader who leaves is 503, not silence."""
    async with listening(Upstream().handle) as base:
        settings = "audit: {sink: stdout}\n"
        write_folder(tmp_path, f"{base}/mcp", RULES, settings=settings, upstream_settings="anonymous: true")
        (tmp_path / "policies" / "agent_to_tool.csv").write_text(RULES.replace("nhi:planner", "anonymous"))
        process = await asyncio.create_subprocess_exec(
            sidecar(), "serve", "-c", str(tmp_path / "sidecar.yaml"),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            async with asyncio.timeout(PATIENCE_S):
                first = await process.stdout.readline()
                said = b""
                while b'"audit":"standard output"' not in said:
                    said += await process.stderr.readline()
            process.send_signal(signal.SIGTERM)
            rest, errors = await asyncio.wait_for(process.communicate(), PATIENCE_S)
        finally:
            if process.returncode is None:
                os.kill(process.pid, signal.SIGKILL)
                await process.wait()
    assert process.returncode == 0
    assert events_of([first.rstrip(b"\n"), *rest.splitlines()]) == ["start", "stop", "checkpoint"]
    assert b"sidecar serves" in said + errors
    assert not (tmp_path / "data" / "audit").exists()


async def test_in_a_stream_a_restart_goes_on_and_an_outage_is_503(tmp_path: Path) -> None:
    with running_valkey() as valkey:
        settings = f'store: {{url: "{valkey.url}"}}\naudit: {{sink: redis, redis: {{stream: evidence}}}}\n'
        for _ in range(2):
            async with world(tmp_path, rules=RULES, settings=settings) as running:
                assert await call(running) == 200
        with valkey.client() as client:
            lines = [fields["line"].encode() for _, fields in client.xrange("evidence")]
        assert events_of(lines) == WHOLE * 2
        async with world(tmp_path, rules=RULES, settings=settings) as running:
            writer: Any = running.app.audit.writer
            writer._deadline_s = 0.2
            with valkey.frozen():
                assert {await call(running) for _ in range(3)} == {503}
                assert running.app.readiness()[1]["status"] == "degraded"
            async with asyncio.timeout(PATIENCE_S):
                while await call(running) != 200:
                    await asyncio.sleep(0.02)
            assert "sidecar_audit_up" in await running.metrics()


async def test_at_a_receiver(tmp_path: Path) -> None:
    with receiving() as receiver:
        otlp = f'otlp: {{url: "{receiver.url}", header_paths: {{X-Key: key}}}}'
        (tmp_path / "key").write_text("of-theirs\n")
        async with world(tmp_path, rules=RULES, settings=f"audit: {{sink: otlp, {otlp}}}\n") as running:
            assert await call(running) == 200
        assert events_of(receiver.lines) == WHOLE and receiver.headers[0]["X-Key"] == "of-theirs"
        (instance,) = {orjson.loads(line)["instance"] for line in receiver.lines}
        attributes = receiver.requests[0].resource_logs[0].resource.attributes
        assert {each.key: each.value.string_value for each in attributes}["service.instance.id"] == instance
