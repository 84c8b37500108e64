"""Is one verification of the log run at a time, by a process that ends, and is what it found kept?"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sidecar.admin.console import verification
from sidecar.admin.console.verification import FILE, LogVerifier
from sidecar.audit.verify_process import order_of
from sidecar.errors import Reason, Refusal
from sidecar.settings.load import load_settings
from sidecar.settings.sidecar_file import Settings
from tests.flow.world import PATIENCE_S
from tests.unit.audit.scenes import KEY, head_of, write_log

SETTINGS = 'version: 1\nadmin: {listen: "127.0.0.1:0"}\nupstreams: {}\n'


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "sidecar.yaml").write_text(SETTINGS)
    settings = load_settings(tmp_path / "sidecar.yaml", {}, check_files=False)
    settings.audit_key_path.parent.mkdir(parents=True)
    settings.audit_key_path.write_bytes(bytes(range(32)).hex().encode())
    settings.audit_key_path.chmod(0o600)
    settings.audit_path.parent.mkdir(parents=True)
    write_log(settings.audit_path)
    return settings


class Witness:
    """What is recorded; with `fails` nothing can be."""

    def __init__(self, *, fails: bool = False) -> None:
        self.told: list[tuple[str, str, dict[str, Any]]] = []
        self.fails = fails

    async def __call__(self, what: str, by: str, **facts: Any) -> None:
        if self.fails:
            raise Refusal(Reason.AUDIT_UNAVAILABLE)
        self.told.append((what, by, facts))


async def ended(verifier: LogVerifier) -> Any:
    async with asyncio.timeout(PATIENCE_S):
        assert verifier._task is not None
        await verifier._task
    return await verifier.last()


async def test_one_runs_at_a_time_and_its_result_is_kept_and_recorded(settings: Settings) -> None:
    witness = Witness()
    verifier = LogVerifier(lambda: settings, witness)
    assert await verifier.last() is None and verifier.running is None
    assert await verifier.begin("admin:olga") and not await verifier.begin("admin:oskar")
    assert verifier.running is not None and verifier.running["total_bytes"] == settings.audit_path.stat().st_size
    found = await ended(verifier)
    assert found["holds"] and verifier.running is None
    report = found["logs"][0]["report"]
    assert report["records"] == 10 and any(KEY.id in proved for proved in report["proved"])
    assert [(what, by) for what, by, _ in witness.told] == [
        ("audit-verification", "admin:olga"),
        ("audit-verified", "admin:olga"),
    ]
    assert (settings.data / FILE).stat().st_mode & 0o777 == 0o600


async def test_a_log_without_its_anchor_does_not_hold(settings: Settings) -> None:
    head_of(settings.audit_path).unlink()
    verifier = LogVerifier(lambda: settings, Witness())
    await verifier.begin("admin:olga")
    found = await ended(verifier)
    assert found["holds"] is False and found["fault"] is None
    assert [one["kind"] for one in found["logs"][0]["report"]["problems"]] == ["no-anchor"]


async def test_a_process_that_dies_or_takes_too_long_is_a_fault(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "COMMAND", ("/bin/true",))
    verifier = LogVerifier(lambda: settings, Witness())
    await verifier.begin("admin:olga")
    found = await ended(verifier)
    assert verification.DIED in found["fault"] and found["holds"] is False
    monkeypatch.setattr(verification, "COMMAND", ("/bin/sh", "-c", "exec sleep 60"))
    monkeypatch.setattr(verification, "DEADLINE_S", 0.1)
    await verifier.begin("admin:olga")
    assert "it took longer than" in (await ended(verifier))["fault"]


async def test_the_process_ends_with_the_one_that_began_it(settings: Settings) -> None:
    settings.audit_path.write_bytes(settings.audit_path.read_bytes() * 3_000)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*verification.COMMAND, stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(order_of(settings.audit_logs, [], []))
    async with asyncio.timeout(PATIENCE_S):
        assert b'"read"' in await process.stdout.readline()
        process.stdin.close()
        assert await process.wait() == 1


async def test_what_cannot_be_recorded_is_not_begun(settings: Settings) -> None:
    verifier = LogVerifier(lambda: settings, Witness(fails=True))
    with pytest.raises(Refusal):
        await verifier.begin("admin:olga")
    assert verifier.running is None


async def test_a_result_that_cannot_be_read_is_none(settings: Settings) -> None:
    (settings.data / FILE).write_text("{")
    assert await LogVerifier(lambda: settings, Witness()).last() is None
