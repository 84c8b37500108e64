"""Does a reload that dies, hangs or is not wanted any more leave anything behind: a process, a snapshot, a deaf ear?"""

import gc
import weakref
from pathlib import Path

import pytest

import sidecar.app.file_watcher
import sidecar.app.loader
import sidecar.gateway.forwarder
from sidecar.app.loader import NEEDS_RESTART
from sidecar.errors import ConfigError
from sidecar.settings.sidecar_file import Settings
from tests.flow.guests import emitter, gateway, listening, opened, stream
from tests.flow.test_admin import get
from tests.flow.test_hot_reload import FILE, WIDER, controls, deletes, plain, taken
from tests.flow.world import RULES, until, world

MORE = "p, nhi:late, tool:github/get_file, use, -, -, -, allow\n"


@pytest.mark.parametrize("error", [OSError(11, "Resource temporarily unavailable"), RuntimeError("a bug")])
async def test_what_nobody_foresaw_is_told_and_tried_again(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*given: object) -> None:
        raise error

    monkeypatch.setattr(sidecar.app.file_watcher, "RETRY_S", 0.2)
    async with world(tmp_path) as running:
        with monkeypatch.context() as patch:
            patch.setattr(sidecar.app.loader, "read_policy", failing)
            plain(tmp_path / "policies", WIDER)
            await until(lambda: bool(running.app.reloader.trouble))
            with pytest.raises(ConfigError, match="R101"):
                await running.app.reload("test")
            assert "R101" in (await get(running, "/readyz"))[1] and await deletes(running) == 403
        await taken(running)
        assert await deletes(running) == 200 and not running.app.reloader.trouble


async def test_a_file_system_in_trouble_makes_no_watcher_deaf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_dir = Path.is_dir
    monkeypatch.setattr(sidecar.app.file_watcher, "RETRY_S", 0.2)

    def failing(path: Path) -> bool:
        if "policies" in path.parts:
            raise OSError(116, "Stale file handle")
        return is_dir(path)

    async with world(tmp_path) as running:
        with monkeypatch.context() as patch:
            patch.setattr(Path, "is_dir", failing)
            (tmp_path / "policies" / FILE).write_text(WIDER)
            await until(lambda: any("Stale" in line for line in running.app.reloader.trouble))
        await taken(running)
        assert await deletes(running) == 200


async def test_an_old_policy_is_let_go_while_a_stream_of_its_time_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sidecar.gateway.forwarder, "LOOK_EVERY_S", 0.05)
    async with gateway(tmp_path, upstream=listening()) as running:
        alice = await opened(running)
        async with stream(alice):
            await until(lambda: emitter(running).count == 1)
            old = weakref.ref(running.app.live.current.engine)
            rules = tmp_path / "policies" / FILE
            rules.write_text(rules.read_text() + MORE)
            await running.app.reload("test")
            running.app.live.past = ()  # small earlier policies, which the console compares with
            await until(lambda: gc.collect() >= 0 and old() is None)
            assert emitter(running).count == 1


async def test_hundreds_of_faults_make_no_long_answer_to_a_probe(tmp_path: Path) -> None:
    async with world(tmp_path) as running:
        (tmp_path / "policies" / FILE).write_text(RULES + "p, nhi:x, tool:github/x, tool/call, -, -, -, allow\n" * 300)
        await until(lambda: len(controls(running, "reload-failed")) == 1)  # it is trouble before it is on record
        told = str(running.app.status()["reasons"])
        assert told.count("P104") == 50 and "and 150 more" in told  # of the 200 that a load tells
        assert running.app.readiness()[1]["faults"] == {"P104": 200}


# --- what is taken, and what waits for a restart ----------------------------------------------------------------------


RELOADED = (
    "version admin identity pdp policy signing upstreams egress agents approvals streams refusals answers callbacks "
    "schedules log"
)


def test_every_section_is_taken_or_waits() -> None:
    assert sorted(Settings.model_fields) == sorted([*NEEDS_RESTART, *RELOADED.split()])


async def test_credentials_of_the_admin_listener_are_reloaded_and_its_address_is_not(tmp_path: Path) -> None:
    first, second = "4f1c9f0b7a6d4e52b8c3d1a09e7f6b5c", "b2d64c1e8f0a4739a5c7e91d3f6b8a20"
    settings = 'admin: {listen: "127.0.0.1:0", credentials: [{role: viewer, secret_path: view.key}]}\n'
    async with world(tmp_path, settings=settings, files={"view.key": first}) as running:
        assert [(await get(running, "/status", key))[0] for key in (first, second)] == [200, 401]
        (tmp_path / "view.key").write_text(second)
        await until(lambda: bool(controls(running, "reload")))
        assert [(await get(running, "/status", key))[0] for key in (first, second)] == [401, 200]
        file = tmp_path / "sidecar.yaml"
        file.write_text(file.read_text().replace('admin: {listen: "127.0.0.1:0"', 'admin: {listen: "127.0.0.1:1"'))
        await running.app.reload("test")
        assert running.app.live.current.waiting == ("admin.listen",)
        (tmp_path / "view.key").write_text("0" * 32)
        with pytest.raises(ConfigError, match="repeats itself"):
            await running.app.reload("test")
        assert (await get(running, "/status", second))[0] == 200


async def test_what_needs_a_restart_is_told_and_not_half_applied(tmp_path: Path) -> None:
    async with world(tmp_path) as running:
        file, before = tmp_path / "sidecar.yaml", running.app.live.current.settings
        written = file.read_text()
        file.write_text(written + "tasks: {max: 7}\nsessions: {question_timeout_s: 1s}\nstreams: {max: 9}\n")
        await running.app.reload("test")
        settings = running.app.live.current.settings
        assert (settings.tasks, settings.sessions, settings.streams.max) == (before.tasks, before.sessions, 9)
        said = (await get(running, "/readyz"))[1]
        assert "degraded" in said and "restart-needed" in said
        told = "{} changed in the configuration and needs a restart".format
        assert running.app.reloader.trouble == tuple(map(told, ("sessions", "tasks")))
        file.write_text(written)
        await running.app.reload("test")
        assert "degraded" not in (await get(running, "/readyz"))[1]
