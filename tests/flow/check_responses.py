"""Every result that was answered is kept and named after a kill."""

import asyncio
import signal

import orjson

from tests.flow.scripts import giving
from tests.flow.test_kill import process
from tests.flow.test_responses import cli, text
from tests.flow.world import Upstream, until


async def test_every_result_that_was_answered_is_kept_and_named_after_a_kill() -> None:
    """kill -9 under load, with lines of a size that a kill can tear."""
    upstream = Upstream(script={"tools/call": giving(text("x" * 20_000))})
    async with process(upstream, upstream_settings="responses: {evidence: ['*']}") as client:
        running = client.running
        loaded = asyncio.create_task(client.load(asyncio.Event()))
        await until(lambda: len(client.answers) >= 100, 20)
        await running.kill()
        await loaded
        await running.start()
        assert (await client.call())[0] == 200
        running.signal(signal.SIGTERM)
        assert await running.ended() == 0
        file = running.audit_path.parent.parent / "evidence" / "evidence.jsonl"
        held = cli("verify", running.audit_path, "--key", running.key_path, "--evidence", file)
        assert held.exit_code == 0, held.output
        kept = {orjson.loads(line)["run_id"] for line in file.read_bytes().splitlines()}
        assert {status for status, _ in client.answers.values()} == {200}
        assert client.answers.keys() <= kept
