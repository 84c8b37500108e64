"""Does a running sidecar attest where its log ended, to others too, and go on in new files while it serves?"""

import asyncio
import json
import os
import shutil
import signal
from asyncio.subprocess import PIPE
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner, Result

from sidecar.app import control_records
from sidecar.audit.checkpoint_publisher import KEY
from sidecar.audit.segments import given
from sidecar.cli import main
from sidecar.limits.topology import PREFIX
from tests.flow.forks import sidecar
from tests.flow.test_audit_sinks import RULES, call
from tests.flow.world import PATIENCE_S, world, write_folder
from tests.valkey import running_valkey


def verify(folder: Path, *more: object) -> Result:
    arguments = ["verify", folder / "data" / "audit", "--key", folder / "data" / "keys" / "audit.key", *more]
    return CliRunner().invoke(main, ["audit", *map(str, arguments)])


async def test_what_the_store_heard_no_log_can_take_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_records, "CHECKPOINT_RECORDS", 5)
    with running_valkey() as valkey:
        settings = (
            f'store: {{url: "{valkey.url}"}}\naudit: {{checkpoints: {{to: [store]}}, rotate: {{max_bytes: 8KiB}}}}\n'
        )
        async with world(tmp_path, rules=RULES, settings=settings) as running:
            for _ in range(10):
                assert await call(running) == 200
            (jwks := tmp_path / "jwks.json").write_bytes(running.app.live.current.signer.key_set)
            with valkey.frozen():
                assert await call(running) == 200, "nobody waits for who is to hear it"
        (key,) = json.loads(jwks.read_bytes())["keys"]
        with valkey.client() as client:
            heard = client.lrange(PREFIX + KEY + key["kid"], 0, -1)
    (tmp_path / "published").write_text("\n".join(heard))
    files = given(tmp_path / "data" / "audit")
    assert len(files) > 3
    more = ("--checkpoints", tmp_path / "published", "--jwks", jwks)
    result = verify(tmp_path, *more, "--json")
    data = orjson.loads(result.output)
    assert result.exit_code == 0 and data["end"] == "sealed" and data["checkpoints"] > 4, data
    stop = orjson.loads(heard[-1])["sidecar-checkpoint"]
    assert stop["seq"] == data["last_seq"] - 1, "the last that is heard is of the stop"
    files[-1].write_bytes(b"")
    Path(f"{files[-1]}.head").unlink()
    problems = orjson.loads(verify(tmp_path, *more, "--part", "--json").output)["problems"]
    assert [problem["kind"] for problem in problems] == ["cut-end"]


async def test_a_start_knows_a_log_that_was_put_back_by_what_the_store_was_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.app.control_records.EVERY_S", 0.02)
    log, copy = tmp_path / "data" / "audit", tmp_path / "copy"

    async def run(url: str, calls: int, to: str = "to: [store]") -> tuple[list[str], list[str]]:
        settings = f'store: {{url: "{url}"}}\naudit: {{checkpoints: {{{to}}}}}\n'
        async with world(tmp_path, rules=RULES, settings=settings) as running:
            for _ in range(calls):
                assert await call(running) == 200
            status = running.app.status()
            return status["evidence"]["found_at_start"], status["banners"]

    def put_back() -> None:
        shutil.rmtree(log)
        shutil.copytree(copy, log)

    with running_valkey() as valkey, valkey.client() as client:
        assert await run(valkey.url, 3) == ([], [])
        shutil.copytree(log, copy)
        assert await run(valkey.url, 3) == ([], [])
        (listed,) = client.keys(f"{PREFIX}{KEY}*")
        heard = client.lrange(listed, 0, -1)
        signed = orjson.loads(heard[-1])["sidecar-checkpoint"]
        for forged in (signed | {"seq": 10**6}, signed | {"seq": 10**6, "kid": "another"}, signed | {"time": "9"}):
            client.rpush(listed, orjson.dumps({"sidecar-checkpoint": forged}), "garbage")
        assert await run(valkey.url, 0) == ([], []), "whoever writes there, and has not the key, raises no alarm"
        assert "published checkpoints were skipped: the key of this sidecar did not sign them" in caplog.messages

        put_back()
        assert await run("unix:///nowhere", 0) == ([], []), "a store that is out stops no start"
        put_back()
        found, banners = await run(valkey.url, 2)
        assert found == ["rolled-back"] and banners == ["THE EVIDENCE is broken, a start found: rolled-back"]
        assert await run(valkey.url, 2) == ([], []), "it is on record"
        result = verify(tmp_path)
        assert result.exit_code == 5 and "at-start: a start of the sidecar found: rolled-back" in result.output

        (tmp_path / "known").write_text("\n".join(client.lrange(listed, 0, -1)))
        put_back()
        assert (await run("memory://", 0, "known_path: known"))[0] == ["rolled-back"]
        shutil.rmtree(log)
        assert (await run(valkey.url, 0))[0] == ["rolled-back"], "log and anchor were deleted"
        put_back()
        valkey.freeze()
        try:
            settings = f'store: {{url: "{valkey.url}"}}\naudit: {{checkpoints: {{to: [store]}}}}\n'
            async with world(tmp_path, rules=RULES, settings=settings) as running:
                assert not running.app.audit.found
                valkey.thaw()
                async with asyncio.timeout(PATIENCE_S):
                    while not running.app.audit.found:
                        await asyncio.sleep(0.01)
        finally:
            valkey.thaw()
        assert "rolled-back" in verify(tmp_path).output, "the store is asked when it is back, before it is told"


async def test_a_sidecar_that_rotates_under_load_loses_nothing(tmp_path: Path) -> None:
    settings = "audit: {rotate: {max_bytes: 20KiB, keep: 2}}\n"
    async with world(tmp_path, rules=RULES, settings=settings) as running:
        for _ in range(5):
            assert set(await asyncio.gather(*(call(running) for _ in range(20)))) == {200}
    result = verify(tmp_path)
    assert result.exit_code == 0 and "deleted as configured (keep)" in result.output, result.output
    assert len(given(tmp_path / "data" / "audit")) == 3


async def test_standard_output_says_where_the_log_ended(tmp_path: Path) -> None:
    settings = "audit: {checkpoints: {to: [stdout]}}\n"
    write_folder(tmp_path, "http://127.0.0.1:9/mcp", RULES, settings=settings)
    command_ = [sidecar(), "serve", "-c", str(tmp_path / "sidecar.yaml")]
    process = await asyncio.create_subprocess_exec(*command_, stdout=PIPE, stderr=PIPE)
    try:
        async with asyncio.timeout(PATIENCE_S):
            while b"sidecar serves" not in await process.stderr.readline():
                pass
        process.send_signal(signal.SIGTERM)
        said, _ = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    finally:
        if process.returncode is None:
            os.kill(process.pid, signal.SIGKILL)
            await process.wait()
    (tmp_path / "collected").write_bytes(said)
    key = tmp_path / "data" / "keys" / "checkpoints.pem"
    result = verify(tmp_path, "--checkpoints", tmp_path / "collected", "--public-key", key)
    assert result.exit_code == 0 and "published checkpoints that match the log: 1; up to record 2 " in result.output
