"""Does what is open end when its permission does, and has nobody more of it than their share?"""

import asyncio
from pathlib import Path

import pytest

import sidecar.gateway.forwarder
from sidecar.errors import Reason, Refusal
from sidecar.gateway import reauthorization
from sidecar.http.server.stream_limits import MAX_RETRY_S, MIN_RETRY_S, StreamLimits
from sidecar.settings.server import StreamSettings
from sidecar.vocabulary import Caller, Principal
from tests.flow.guests import ALICE, BOB, GOOD, IDP, emitter, gateway, listening, opened, stream
from tests.flow.idp import ISSUER, bearer
from tests.flow.scripts import after
from tests.flow.streams import event
from tests.flow.talk import Talk, reason_of
from tests.flow.world import PATIENCE_S, Upstream, World, until, world
from tests.tables import tables

HOUR = "p, nhi:planner, tool:github/*, use, -, -, now < timestamp('2030-01-01T00:00:00Z'), allow\n"
FAR = 1_900_000_000.0  # beyond that hour


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sidecar.gateway.forwarder, "LOOK_EVERY_S", 0.05)


def settings(**bounds: object) -> str:
    return "streams: {" + ", ".join(f"{name}: {value}" for name, value in bounds.items()) + "}\n"


async def test_a_condition_that_reads_the_time_is_asked_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reauthorization, "REVIEW_S", 0.2)
    begun, bounds = asyncio.Event(), settings(revoked_calls="cancel")
    upstream = Upstream(script={"tools/call": after(asyncio.Event(), begun=begun)})
    async with world(tmp_path, rules=HOUR, upstream=upstream, settings=bounds) as running:
        calling = asyncio.create_task(running.call("search_code", GOOD))
        await begun.wait()
        running.app.pipeline.live.clock = running.app.live.clock = lambda: FAR
        assert reason_of(await asyncio.wait_for(calling, PATIENCE_S)) == "condition-false"


async def test_a_silent_stream_is_kept_alive_and_a_talking_one_is_not(tmp_path: Path) -> None:
    async with world(tmp_path, upstream=listening(), settings=settings(keep_alive_s=0.3)) as running:
        talk = Talk(running, "session")
        await talk.open()
        async with stream(talk) as ear:
            assert await ear.block(2) == b": keep-alive\n\n"
            told = event({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
            for _ in range(8):
                await emitter(running).emit("upstream-1", told)
                assert (await ear.block()).startswith(b"event: message")
                await asyncio.sleep(0.1)


async def test_nobody_has_more_streams_than_their_share_and_who_has_knows_when_to_come_back(tmp_path: Path) -> None:
    bounds = settings(max_per_principal=2, max=3)
    async with gateway(tmp_path, upstream=listening(), settings=bounds) as running:
        mine = [await opened(running) for _ in range(3)]
        async with stream(mine[0]), stream(mine[1]):
            await until(lambda: emitter(running).count == 2)
            for _ in range(20):  # a storm of them costs no quota, and nobody else anything
                status, body, headers = await mine[2].verb("GET", {"Accept": "text/event-stream"})
                assert (status, b"too-many-concurrent" in body) == (429, True)
                assert MIN_RETRY_S <= int(headers["Retry-After"]) <= MAX_RETRY_S
            assert (await mine[2].call("search_code", GOOD))[0] == 200
            other = await opened(running, BOB)
            async with stream(other) as ear:
                assert ear.status == 200
                await until(lambda: emitter(running).count == 3)
        await until(lambda: emitter(running).count == 0)
        async with stream(mine[2]) as ear:
            assert ear.status == 200
        await until(lambda: running.app.pipeline.forwarder.places.count == 0)


def test_no_two_are_told_the_same_moment_to_come_back() -> None:
    numbers = iter((0.0, 0.25, 1.0))
    places, caller = StreamLimits(lambda: next(numbers)), Caller((Principal("nhi:a"),), ())
    one, waits = StreamSettings(max_per_principal=1), []
    with places.place(caller, one):
        for _ in range(3):
            with pytest.raises(Refusal) as caught, places.place(caller, one):
                pass
            assert caught.value.reason is Reason.TOO_MANY_CONCURRENT
            waits.append(caught.value.retry_after_s)
    assert waits == [1.0, 3.25, 10.0]
    assert (places.count, places.taken) == (0, {})


@pytest.mark.parametrize(("bounds", "grace_s", "change", "reason"), tables("flow/oversight")["under_way"])
async def test_a_call_under_way_when_its_permission_ends(
    tmp_path: Path, bounds: dict[str, str], grace_s: float, change: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reauthorization, "REVOKED_GRACE_S", grace_s)
    answered, begun = asyncio.Event(), asyncio.Event()
    upstream = Upstream(script={"tools/call": after(answered, begun=begun)})
    async with world(tmp_path, upstream=upstream, settings=settings(**bounds)) as running:
        calling = asyncio.create_task(running.call("search_code", GOOD))
        await begun.wait()
        await revoke(running, "nhi:planner", change)
        if not reason:
            await asyncio.sleep(0.3)
            answered.set()
        assert reason_of(await asyncio.wait_for(calling, PATIENCE_S)) == reason
        assert [record["reason"] for record in running.ends()][-1] == (reason or None)
        assert not running.app.pipeline.forwarder.oversight.open.calls


async def revoke(running: World, who: str, how: str) -> None:
    """Nothing is permitted to them any more."""
    if how == "kill switch":
        await running.app.disable(who, reason="", until=None, by="test")
    else:
        rules = running.folder / "policies" / "agent_to_tool.csv"
        rules.write_text(rules.read_text().replace(who, "nhi:other"))
        await running.app.reload("test")


@pytest.mark.parametrize("how", ["rules", "kill switch"])
async def test_revocation_reaches_new_calls_at_once_and_open_streams_soon(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BL-091: at most five seconds for streams, one for calls; with the house's own intervals."""
    monkeypatch.undo()
    assert sidecar.gateway.forwarder.LOOK_EVERY_S <= 1
    async with gateway(tmp_path, upstream=listening()) as running:
        talk = await opened(running)
        async with stream(talk) as ear:
            await until(lambda: emitter(running).count == 1)
            await revoke(running, "user:alice", how)
            assert reason_of(await Talk(running, "stateless", dict(ALICE)).call("search_code", GOOD))
            assert (await ear.block(PATIENCE_S)).startswith(b": closed, ")


@pytest.mark.parametrize("what", ["its key", "its issuer", "another scope", "another's key"])
async def test_a_stream_ends_with_the_credential_that_opened_it(what: str, tmp_path: Path) -> None:
    """Nobody takes a credential back and means: from the next call on."""
    async with gateway(tmp_path, upstream=listening()) as running:
        token = bearer(IDP.token("user:alice", f"{running.url}/mcp/github"))
        talk = await opened(running, token if what == "its issuer" else ALICE)
        async with stream(talk) as ear:
            await until(lambda: emitter(running).count == 1)
            file, keys = tmp_path / "sidecar.yaml", tmp_path / "keys.yaml"
            if what == "its issuer":
                file.write_text(file.read_text().replace(ISSUER, "https://other.example"))
            elif what == "another scope":
                file.write_text(file.read_text().replace("github: {", "github: {scopes: [more], "))
            else:
                gone_by = "user:alice" if what == "its key" else "user:bob"
                lines = keys.read_text().splitlines(keepends=True)
                keys.write_text("".join(line for line in lines if gone_by not in line))
            await running.app.reload("test")
            if what == "another's key":
                await asyncio.sleep(0.3)
                assert emitter(running).count == 1
                return
            reason = "insufficient-scope" if what == "another scope" else "bad-credential"
            assert await ear.block() == f": closed, {reason}\n\n".encode()
        assert running.ends()[-1]["reason"] == reason


async def test_a_credential_that_a_reload_removes_during_a_pass_ends_every_stream_in_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sidecar.gateway.forwarder, "LOOK_EVERY_S", 3600.0)  # the test looks itself
    async with gateway(tmp_path, upstream=listening()) as running:
        oversight = running.app.pipeline.forwarder.oversight
        async with stream(await opened(running)) as one, stream(await opened(running)) as other:
            await until(lambda: emitter(running).count == 2)
            rules, keys = tmp_path / "policies" / "agent_to_tool.csv", tmp_path / "keys.yaml"
            rules.write_text(rules.read_text() + "p, user:carol, tool:github/*, use, -, -, -, allow\n")
            await running.app.reload("test")
            reviewed = oversight.reviewed(asyncio.get_running_loop().time())
            next(reviewed)
            lines = keys.read_text().splitlines(keepends=True)
            keys.write_text("".join(line for line in lines if "user:alice" not in line))
            await running.app.reload("test")
            assert len(list(reviewed)) == 1
            await oversight.look()
            for ear in (one, other):
                assert await ear.block() == b": closed, bad-credential\n\n"
