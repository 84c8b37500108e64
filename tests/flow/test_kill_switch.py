"""Does a disabled principal stay disabled: everywhere in a chain, at every replica, store or no store?"""

import asyncio
import json
import os
import secrets
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from click.testing import CliRunner

import sidecar.gateway.kill_switch.switch
from sidecar.app.loader import check_files
from sidecar.cli import main
from sidecar.cli.operator_socket import ask_control
from sidecar.errors import SettingsError
from sidecar.gateway.kill_switch import SwitchError, SwitchLedger, known_names
from sidecar.gateway.kill_switch.ledger import MAX_FLIPS
from sidecar.gateway.kill_switch.switch_versions import FORGOTTEN_AFTER_S, SwitchVersion, encode
from sidecar.settings.timestamps import rfc3339
from sidecar.upstreams.mcp.session_store import SessionStore
from tests.flow.causes import full_disk
from tests.flow.guests import ALICE, BOB, emitter, gateway, gone, opened, stream
from tests.flow.idp import SETTINGS as WITH_IDP, Idp, bearer
from tests.flow.streams import Emitter, event, hearing, streamed
from tests.flow.talk import Talk, reason_of
from tests.flow.test_admin import SECRET, SETTINGS, VIEW, files
from tests.flow.test_kill import process
from tests.flow.test_shadow import shadow
from tests.flow.world import PATIENCE_S, STATELESS, Upstream, World, started, stateless, until, world
from tests.tables import tables
from tests.valkey import Valkey

TABLES = tables("flow/kill_switch")

GOOD = {"repo": "acme/site"}
FLIPS = ("principal-disabled", "principal-enabled", "principal-enable-failed")


def turned(running: World) -> list[tuple[str, str]]:
    """What was done to whom, by the evidence."""
    controls = [record["control"] for record in running.records() if record["event"] == "control"]
    return [(control["what"], control["principal"]) for control in controls if control["what"] in FLIPS]


async def disable(running: World, name: str, **order: Any) -> None:
    await running.app.disable(name, reason=order.get("reason", ""), until=order.get("until"), by="test")


def reads(running: World) -> Any:
    return running.call("get_file", {"path": "a"})


async def test_what_an_operator_who_disconnects_has_disabled_is_stored_and_recorded(tmp_path: Path) -> None:
    async with world(tmp_path) as running:
        async with running.app.switch._turning:  # as while other replicas or the disk are awaited
            _, writer = await asyncio.open_unix_connection(running.app.settings.control_path)
            writer.write(b"POST /api/principals/nhi%3Aplanner/disable HTTP/1.1\r\n")
            writer.write(b"Host: localhost\r\nContent-Length: 2\r\n\r\n{}")
            await until(lambda: bool(running.app.disabled_principals()))
            writer.transport.abort()
            await asyncio.sleep(0.05)
        await until(lambda: turned(running) == [("principal-disabled", "nhi:planner")])
        stored = SwitchLedger.open_all(running.app.settings.own, running.app.settings.parts)
        assert [*stored.flips] == ["nhi:planner"]


# --- who is meant ---------------------------------------------------------------------------------------------------

RULES = """\
p, nhi:researcher, tool:github/*, use, -, -, -, allow
p, user:corp/alice, tool:github/*, use, -, -, -, allow
"""
LINKS = {
    "policies/user_to_nhi.csv": "p, user:alice, nhi:planner, delegate, -, -, -, allow\n",
    "policies/nhi_to_nhi.csv": "p, nhi:planner, nhi:researcher, delegate, -, -, -, allow\n",
}


MEANT = {
    **dict.fromkeys(("user:alice", "nhi:planner", "nhi:researcher", "nhi:github"), "principal-disabled"),
    **dict.fromkeys(("nhi:alice", "user:alic", "nhi:jira"), ""),
}


async def test_any_place_in_a_chain_counts_and_the_target(tmp_path: Path) -> None:
    idp = Idp()
    async with world(tmp_path, rules=RULES, settings=WITH_IDP, files=idp.files() | LINKS, principal="") as running:
        audience = f"{running.app.base_url}/mcp/github"
        chain = bearer(idp.token("user:alice", audience, actors=["nhi:planner", "nhi:researcher"]))
        talk = Talk(running, "stateless", chain)
        for disabled, reason in MEANT.items():
            assert (await talk.call("search_code", GOOD))[0] == 200
            await disable(running, disabled)
            answer = await talk.call("search_code", GOOD)
            assert (answer[0], reason_of(answer)) == (403 if reason else 200, reason), disabled
            assert reason_of(await talk.ask("tools/list")) == reason
            assert await running.app.enable(disabled, by="test")


async def test_no_mode_of_policy_changes_the_answer_and_the_stronger_reason_is_told(tmp_path: Path) -> None:
    """The order is: authenticate, disabled, policy."""
    async with world(tmp_path, settings=shadow()) as running:
        assert (await running.call("delete_repo", {}))[0] == 200
        await disable(running, "nhi:planner")
        assert reason_of(await running.call("delete_repo", {})) == "principal-disabled"
        assert reason_of(await running.call("delete_repo", {}, server="nowhere")) == "principal-disabled"
        refused = await running.call("delete_repo", {}, headers=bearer("nobody.knows.it"))
        assert reason_of(refused) in ("bad-credential", "credential-conflict")


async def test_it_ends_by_the_clock(planner: World) -> None:
    await disable(planner, "nhi:planner", until=time.time() + 3600)
    assert (await reads(planner))[0] == 403
    planner.app.pipeline.stages.clock = planner.app.pipeline.live.clock = lambda: time.time() + 3601
    assert (await reads(planner))[0] == 200
    assert planner.app.disabled_principals() == ()
    assert "disabled_principals" in planner.app.status() and planner.app.status()["disabled_principals"] == 0


# --- what is under way ----------------------------------------------------------------------------------------------


async def test_an_open_stream_of_a_disabled_principal_is_cut(tmp_path: Path) -> None:
    upstream = Upstream(script={"GET": Emitter().listen, "DELETE": gone})
    async with gateway(tmp_path, upstream=upstream) as running:
        alice, bob = await opened(running, ALICE), await opened(running, BOB)
        async with stream(alice) as hers, stream(bob) as his:
            await until(lambda: emitter(running).count == 2)
            await disable(running, "user:alice")
            assert await hers.block(PATIENCE_S) == b": closed, principal-disabled\n\n"
            note = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": 1}}
            theirs = {s.id: s.upstream_id or "" for s in running.app.sessions}
            await emitter(running).emit(theirs[bob.session], event(note))
            assert (await his.message())["params"] == {"data": 1}
        ends = [end["agent_id"] for end in running.ends() if end["reason"] == "principal-disabled"]
        assert ends == ["user:alice"]


async def test_a_stream_is_cut_while_the_store_of_sessions_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()

    async def never(_: SessionStore) -> None:
        asked.set()
        await asyncio.Event().wait()

    upstream = Upstream(script={"GET": Emitter().listen, "DELETE": gone})
    async with gateway(tmp_path, upstream=upstream) as running:
        alice = await opened(running, ALICE)
        async with stream(alice) as hers:
            await until(lambda: emitter(running).count == 1)
            monkeypatch.setattr(SessionStore, "look", never)
            await asked.wait()
            await disable(running, "user:alice")
            assert await hers.block(PATIENCE_S) == b": closed, principal-disabled\n\n"


async def test_an_answer_that_is_being_streamed_is_cut_too(tmp_path: Path) -> None:
    async def slowly(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        note = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "so far"}}
        return await streamed(request, *[event(note)] * 200, pause_s=0.05)

    upstream = Upstream(script={"tools/call": slowly})
    async with world(tmp_path, upstream=upstream) as running:
        routing = {"Mcp-Method": "tools/call", "Mcp-Name": "get_file", "MCP-Protocol-Version": STATELESS}
        body = stateless("tools/call", {"name": "get_file", "arguments": {"path": "a"}})
        async with hearing(running.http, f"{running.url}/mcp/github", routing, body) as ear:
            assert (await ear.message())["params"] == {"data": "so far"}
            await disable(running, "nhi:planner")
            last = (await ear.rest(PATIENCE_S))[-1]
            assert last["error"]["data"]["reason"] == "principal-disabled"
        assert running.ends()[-1]["reason"] == "principal-disabled"


# --- the file -------------------------------------------------------------------------------------------------------


def disabling(*entries: str) -> str:
    return "version: 1\ndisabled:\n" + "".join(f"  - {entry}\n" for entry in entries)


async def test_a_file_disables_by_name_and_by_pattern_is_watched_and_outranks_a_hand(tmp_path: Path) -> None:
    path = tmp_path / "policies" / "disabled.yaml"
    async with world(tmp_path, settings=SETTINGS, files=files()) as running:
        for entry, status in TABLES["entries"]:
            path.write_text(disabling(entry))
            await running.app.reload("test")
            assert (await reads(running))[0] == status, entry
        path.write_text(disabling("nhi:planner"))
        await until(lambda: bool(running.app.disabled_principals()))
        assert running.app.banners() == ("1 principal is disabled",)
        code, body = await turn(running, "nhi:planner", "enable")
        assert code == 409 and body["changed"] is False and body["disabled"] is True
        assert body["error"].endswith("disabled.yaml:3 disables it") and (await reads(running))[0] == 403
        path.unlink()
        await until(lambda: not running.app.disabled_principals())
        assert (await reads(running))[0] == 200


# --- who may, and what they hear ------------------------------------------------------------------------------------


async def turn(running: World, name: str, verb: str, order: Any = None, secret: str = SECRET) -> tuple[int, Any]:
    return await ask(running, f"/api/principals/{name}/{verb}", "POST", order, secret)


async def ask(running: World, path: str, verb: str, order: Any = None, secret: str = SECRET) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {secret}"}
    body = order if isinstance(order, bytes) else None if order is None else json.dumps(order).encode()
    async with running.http.request(verb, running.admin_url + path, data=body, headers=headers) as response:
        return response.status, json.loads(await response.read())


async def test_an_operator_disables_a_viewer_looks(tmp_path: Path) -> None:
    async with world(tmp_path, settings=SETTINGS, files=files()) as running:
        ends = rfc3339(time.time() + 3600)
        status, body = await turn(running, "nhi:planner", "disable", {"reason": "Incident 12", "until": ends})
        assert status == 200 and body["disabled"] is True
        assert (await turn(running, "user:corp%2Falice", "disable"))[0] == 200
        assert (await turn(running, "user:corp/bob", "disable"))[0] == 200
        status, body = await ask(running, "/api/principals", "GET", secret=VIEW)
        assert [entry["principal"] for entry in body["disabled"]] == ["nhi:planner", "user:corp/alice", "user:corp/bob"]
        first = body["disabled"][0]
        assert (first["reason"], first["until"], first["source"]) == ("Incident 12", ends, "switch")
        assert first["by"] == "admin:operator"
        assert (await turn(running, "nhi:planner", "enable", secret=VIEW))[0] == 403
        assert (await ask(running, "/api/principals", "POST"))[0] == 405
        assert (await reads(running))[0] == 403
        told = [(await turn(running, "nhi:planner", "enable"))[1] for _ in range(2)]
        assert told[0] == {"principal": "nhi:planner", "disabled": False, "changed": True} and not told[1]["changed"]
        assert turned(running)[-1] == ("principal-enabled", "nhi:planner")
        acts = [record["control"]["by"] for record in running.records() if record["control"]]
        assert {*acts} == {"sidecar", "admin:operator"}


NAMELESS = ("planner", "role:oncall", "nhi:*", "nhi:a%20b", "nhi:", "", "nhi:" + "x" * 2000)
INVALID: list[tuple[str, Any, str]] = [
    *TABLES["invalid"],
    *((name, {}, "names no principal") for name in NAMELESS),
    ("nhi:planner", {"reason": "x" * 501}, "one line"),
    ("nhi:planner", b"{", "not one JSON value"),
    ("nhi:planner", b" " * 20_000, "too large"),
]


async def test_an_order_that_says_nothing_valid_does_nothing(tmp_path: Path) -> None:
    async with world(tmp_path, settings=SETTINGS, files=files()) as running:
        for name, order, said in INVALID:
            status, body = await turn(running, name, "disable", order)
            assert status == (413 if said == "too large" else 400) and said in body["error"], (name, order)
        assert running.app.disabled_principals() == () and turned(running) == []


async def test_the_command_lists_as_many_as_there_can_be(planner: World) -> None:
    flips = [SwitchVersion(f"nhi:{number}", True, 1, "x" * 500, None, "test", 1.0) for number in range(MAX_FLIPS)]
    planner.app.switch.ledger.take(flips)
    status, body = await asyncio.to_thread(ask_control, planner.app.settings.control_path, "/api/principals")
    assert status == 200 and len(json.loads(body)["disabled"]) == MAX_FLIPS


async def test_who_answers_and_is_no_sidecar_is_told_as_nobody() -> None:
    async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"220 mail.example ESMTP\r\n")
        writer.close()

    with tempfile.TemporaryDirectory(prefix="sidecar") as name:  # a socket's path holds 107 bytes: not tmp_path
        async with await asyncio.start_unix_server(garbage, Path(name) / "control.sock"):
            with pytest.raises(OSError, match="no whole answer: BadStatusLine"):
                await asyncio.to_thread(ask_control, Path(name) / "control.sock", "/readyz")


async def test_without_evidence_it_disables_all_the_same_and_enables_nobody(planner: World) -> None:
    talk = Talk(planner, "stateless")
    with full_disk(talk.world), pytest.raises(Exception, match="is disabled here, but it cannot be recorded"):
        await disable(planner, "nhi:planner")
    assert (await reads(planner))[0] == 403
    with full_disk(talk.world), pytest.raises(Exception, match="stays disabled"):
        await planner.app.enable("nhi:planner", by="test")
    assert (await reads(planner))[0] == 403
    assert await planner.app.enable("nhi:planner", by="test")
    assert (await reads(planner))[0] == 200


async def test_what_no_disk_took_is_in_force_and_saved_later(planner: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sidecar.gateway.kill_switch.switch, "EVERY_S", 0.05)
    ledger = planner.folder / "data" / "disabled.json"
    ledger.mkdir()  # nothing can be renamed over it
    with pytest.raises(Exception, match=r"is disabled here, but .*cannot be written"):
        await disable(planner, "nhi:planner")
    assert planner.app.readiness()[1]["reasons"] == {"disabled-unsaved": 1}
    assert "a restart would not know all of them" in str(planner.app.status()["reasons"])
    with pytest.raises(Exception, match=r"stays disabled: .*cannot be written"):
        await planner.app.enable("nhi:planner", by="test")
    assert (await reads(planner))[0] == 403
    assert [what for what, _ in turned(planner)] == [*FLIPS]
    ledger.rmdir()
    await until(lambda: planner.app.switch.saved)
    assert [entry.principal for entry in SwitchLedger.open(ledger).disabled.entries] == ["nhi:planner"]
    assert planner.app.readiness()[1] == {"status": "ready"}
    assert await planner.app.enable("nhi:planner", by="test")
    assert (await reads(planner))[0] == 200


async def test_a_listing_that_changed_in_one_place_is_read_there(tmp_path: Path, shared: Valkey) -> None:
    def told(running: World) -> dict[str, str]:
        return {entry.principal: entry.reason for entry in running.app.disabled_principals()}

    async with replica(tmp_path / "a", shared) as a, replica(tmp_path / "b", shared) as b:
        for name in ("nhi:0", "nhi:1", "nhi:2", "nhi:3"):
            await disable(a, name)
        await until(lambda: len(told(b)) == 4)
        await asyncio.gather(a.app.enable("nhi:1", by="test"), disable(b, "nhi:2", reason="again"))
        await until(lambda: told(a) == told(b) == {"nhi:0": "", "nhi:2": "again", "nhi:3": ""})


async def test_a_disk_that_hangs_holds_up_nobody(planner: World, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs, go, fsync = threading.Event(), threading.Event(), os.fsync

    def slow(descriptor: int) -> None:
        if "disabled.json" in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            hangs.set()
            assert go.wait(PATIENCE_S)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    first = asyncio.create_task(disable(planner, "nhi:other"))
    await until(hangs.is_set)
    second = asyncio.create_task(disable(planner, "nhi:planner"))
    await asyncio.sleep(0)
    assert (await reads(planner))[0] == 403
    go.set()
    await asyncio.gather(first, second)
    assert turned(planner) == [("principal-disabled", "nhi:other"), ("principal-disabled", "nhi:planner")]


async def test_a_disk_that_hangs_does_not_stop_the_exchange(
    tmp_path: Path, shared: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung, go, fsync = str(tmp_path / "a"), threading.Event(), os.fsync

    def slow(descriptor: int) -> None:
        written = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        if written.startswith(hung) and "disabled.json" in written:
            assert go.wait(PATIENCE_S)
        fsync(descriptor)

    async with replica(tmp_path / "a", shared) as a, replica(tmp_path / "b", shared) as b:
        await disable(a, "nhi:again")
        await until(knows(b, "nhi:again"))
        monkeypatch.setattr(os, "fsync", slow)
        turning = asyncio.create_task(a.app.enable("nhi:again", by="test"))
        saving = asyncio.create_task(disable(a, "nhi:here"))
        try:
            await until(knows(b, "nhi:again", "nhi:here"))
            await disable(b, "nhi:there")
            await until(knows(a, "nhi:again", "nhi:here", "nhi:there"))
            await disable(b, "nhi:again", reason="once more")
            await disable(b, "nhi:again", reason="and again")
            await until(lambda: "and again" in {one.reason for one in a.app.disabled_principals()})
        finally:
            go.set()
        await saving
        with pytest.raises(SwitchError, match="stays disabled: it was disabled again in the meantime"):
            await turning
        saved = SwitchLedger.open(a.folder / "data" / "disabled.json")
        await until(lambda: {*SwitchLedger.open(saved.path).flips} == {"nhi:again", "nhi:here", "nhi:there"})
        assert SwitchLedger.open(saved.path).flips["nhi:again"].reason == "and again"


# --- a process of its own -------------------------------------------------------------------------------------------


async def command(folder: Path, *arguments: str) -> tuple[int, str, str]:
    """What `sidecar principal` says and ends with."""
    line = ["principal", *arguments, "-c", str(folder / "sidecar.yaml")]
    done = await asyncio.to_thread(CliRunner().invoke, main, line)
    return done.exit_code, done.stdout, done.stderr


async def test_a_command_reaches_the_sidecar_that_runs(planner: World) -> None:
    folder, ends = planner.folder, rfc3339(time.time() + 3600)
    assert await command(folder, "list") == (0, "no principal is disabled\n", "")
    assert await command(folder, "enable", "nhi:planner") == (0, "nhi:planner was not disabled\n", "")
    given = ("--reason", "Incident 12", "--until", ends)
    assert await command(folder, "disable", "nhi:planner", *given) == (0, f"nhi:planner is disabled until {ends}\n", "")
    assert (await reads(planner))[0] == 403
    code, listed, _ = await command(folder, "list")
    assert (code, listed.split("  ")[:3]) == (0, ["nhi:planner", "switch", f"until {ends}"])
    assert "by local:uid=" in listed and "Incident 12" in listed
    code, printed, _ = await command(folder, "disable", "user:corp/alice", "--force", "--json")
    assert (code, json.loads(printed)["entry"]["principal"]) == (0, "user:corp/alice")
    for wrong in (("disable", "planner"), ("disable", "nhi:x", "--until", "soon"), ("enable", "role:x")):
        code, printed, said = await command(folder, *wrong)
        assert (code, printed) == (2, "") and said
    code, printed, said = await command(folder / "elsewhere", "list")
    assert (code, printed) == (3, "") and "sidecar.yaml" in said


KEYS = f'version: 1\nkeys: [{{id: AAAAAAAAAAAA, principal: "nhi:ci", hash: "hmac-sha256:{"ab" * 32}"}}]\n'
KNOWN = ("nhi:planner", "nhi:github", "user:corp/alice", "nhi:ci", "user:dora", "nhi:batch-7")
UNKNOWN = TABLES["unknown"]


async def test_a_name_that_nobody_has_is_asked_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = RULES + "p, nhi:batch-*, tool:github/*, use, -, -, -, allow\np, nhi:*, tool:x/*, use, -, -, -, deny\n"
    given = {
        "policies/roles.csv": "g, user:dora, role:oncall\n",
        "keys.yaml": KEYS,
        "data/keys/api-keys.pepper": secrets.token_hex(32),
    }
    settings = SETTINGS + "identity: {api_keys_path: keys.yaml}\n"
    async with world(tmp_path, rules=rules, settings=settings, files=files() | given) as running:
        for name in KNOWN:
            assert await command(tmp_path, "disable", name) == (0, f"{name} is disabled\n", "")
        for name, meant in UNKNOWN.items():
            code, printed, said = await command(tmp_path, "disable", name)
            assert (code, printed) == (1, "") and "nothing is disabled" in said and "--force" in said
            assert (f'did you mean "{meant}"?' in said) is bool(meant)
        monkeypatch.setattr(known_names, "COMPARED", 2)  # as in a policy of very many names
        assert [running.app.known_principal(name).nearest for name in UNKNOWN] == list(UNKNOWN.values())
        assert knows(running, *KNOWN)()
        assert (await command(tmp_path, "disable", "nhi:plannner", "--force"))[0] == 0
        status, body = await turn(running, "user:zoe", "disable")  # programs say the name as an alert has it
        assert (status, body["disabled"], body["known"]) == (200, True, False)
        assert (await turn(running, "user:zoe", "disable", {"if_known": "yes"}))[0] == 400


async def test_it_survives_a_kill() -> None:
    async with process(Upstream()) as client:
        running = client.running
        assert (await client.call())[0] == 200
        given = ("--reason", "Incident 12")
        assert await command(running.folder, "disable", "nhi:github", *given) == (0, "nhi:github is disabled\n", "")
        assert (await client.call())[0] == 403
        assert (running.folder / "data" / "disabled.json").stat().st_mode & 0o777 == 0o600
        await running.kill()
        code, _, said = await command(running.folder, "list")
        assert code == 1 and "no sidecar answers here" in said
        await running.start()
        assert (await client.call())[0] == 403
        assert await command(running.folder, "enable", "nhi:github") == (0, "nhi:github is enabled\n", "")
        assert (await client.call())[0] == 200
        control = next(r["control"] for r in running.records() if (r["control"] or {}).get("what") == FLIPS[0])
        assert (control["principal"], control["reason"]) == ("nhi:github", "Incident 12")


async def test_a_damaged_memory_stops_the_start(tmp_path: Path) -> None:
    async with world(tmp_path) as running:
        await disable(running, "nhi:planner")
        ledger = tmp_path / "data" / "disabled.json"
        ledger.write_text(ledger.read_text().replace('"disabled": true', '"disabled": "no"'))
    with pytest.raises(SettingsError, match=r"disabled\.json: error\[D101\]: is damaged"):
        await started(tmp_path)
    with pytest.raises(SettingsError, match=r"disabled\.json: error\[D101\]: is damaged"):
        check_files(tmp_path / "sidecar.yaml", {})


# --- replicas -------------------------------------------------------------------------------------------------------


@pytest.fixture
def shared(valkey: Valkey, monkeypatch: pytest.MonkeyPatch) -> Valkey:
    """An empty store, and replicas that look at it more often than they need."""
    monkeypatch.setattr(sidecar.gateway.kill_switch.switch, "EVERY_S", 0.2)
    with valkey.client() as client:
        client.flushall()
    return valkey


@asynccontextmanager
async def replica(folder: Path, valkey: Valkey) -> AsyncIterator[World]:
    async with world(folder, settings=f'store: {{url: "{valkey.url}"}}\n') as running:
        yield running


def knows(running: World, *names: str) -> Callable[[], bool]:
    return lambda: sorted(entry.principal for entry in running.app.disabled_principals()) == sorted(names)


async def test_it_reaches_every_replica_and_survives_a_flushed_store(tmp_path: Path, shared: Valkey) -> None:
    async with replica(tmp_path / "a", shared) as a, replica(tmp_path / "b", shared) as b:
        await disable(a, "nhi:planner", reason="Incident 12")
        await until(knows(b, "nhi:planner"))
        assert (await reads(b))[0] == 403
        assert turned(b) == [("principal-disabled", "nhi:planner")]
        with shared.client() as client:
            client.flushall()
        async with replica(tmp_path / "c", shared) as c:  # knows nothing, and the store has lost it
            await until(knows(c, "nhi:planner"))
            assert await c.app.enable("nhi:planner", by="test")
            for each in (a, b):
                await until(knows(each))
                while (status := (await reads(each))[0]) == 503:  # the store is told again what it has forgotten
                    await asyncio.sleep(0.05)
                assert status == 200
        with shared.client() as client:
            client.flushall()
        await asyncio.gather(a.app.switch.sync(), b.app.switch.sync())
        assert knows(a)() and knows(b)()  # what was enabled does not come back


async def test_a_replica_that_comes_back_knows_before_its_first_call(tmp_path: Path, shared: Valkey) -> None:
    async with replica(tmp_path / "a", shared) as a:
        await disable(a, "nhi:planner")
        async with replica(tmp_path / "b", shared) as b:
            assert (await reads(b))[0] == 403


async def test_while_the_store_is_out_each_replica_goes_on_by_itself(tmp_path: Path, shared: Valkey) -> None:
    async with replica(tmp_path / "a", shared) as a, replica(tmp_path / "b", shared) as b:
        await disable(a, "nhi:before")
        await until(knows(b, "nhi:before"))
        shared.server.terminate()
        try:
            with pytest.raises(SwitchError, match="nhi:planner is disabled here, but other replicas"):
                await disable(a, "nhi:planner")
            assert knows(a, "nhi:before", "nhi:planner")() and knows(b, "nhi:before")()
            code, printed, said = await command(a.folder, "disable", "nhi:planner", "--reason", "again")
            assert (code, printed) == (1, "") and "other replicas do not know of it yet" in said
            with pytest.raises(SwitchError, match="nhi:before is enabled here, but other replicas"):
                await b.app.enable("nhi:before", by="test")
        finally:
            shared.server.start()
        for each in (a, b):  # empty it came back: both tell it what they know
            await until(knows(each, "nhi:planner"))


async def test_of_two_turns_at_once_the_safer_wins(tmp_path: Path, shared: Valkey) -> None:
    async with replica(tmp_path / "a", shared) as a, replica(tmp_path / "b", shared) as b:
        await disable(a, "nhi:planner")
        await until(knows(b, "nhi:planner"))
        with shared.frozen():  # neither hears of the other
            turns = (a.app.enable("nhi:planner", by="test"), disable(b, "nhi:planner"))
            untold = await asyncio.gather(*turns, return_exceptions=True)
        assert all(isinstance(one, SwitchError) and one.status == 503 for one in untold)
        await until(knows(a, "nhi:planner"))
        await asyncio.gather(a.app.switch.sync(), b.app.switch.sync())
        assert knows(a, "nhi:planner")() and knows(b, "nhi:planner")()


async def test_what_changes_nothing_any_more_is_forgotten_everywhere(tmp_path: Path, shared: Valkey) -> None:
    long_ago_s = time.time() - FORGOTTEN_AFTER_S - 60
    over = SwitchVersion("nhi:over", True, 9, "", long_ago_s, "test", long_ago_s)
    async with replica(tmp_path / "a", shared) as a:
        await disable(a, "nhi:planner")
        with shared.client() as client:
            client.hset("{sidecar}:disabled", mapping={"nhi:over": encode(over), "": "another"})
            await until(lambda: set(client.hgetall("{sidecar}:disabled")) == {"", "nhi:planner"})
        assert knows(a, "nhi:planner")()


async def test_garbage_in_the_store_disables_nobody_and_hides_nobody(tmp_path: Path, shared: Valkey) -> None:
    """Nor does a flip of a neighbouring version, which says more than we know."""
    key = "{sidecar}:disabled"
    async with replica(tmp_path / "a", shared) as a, replica(tmp_path / "b", shared) as b:
        await disable(a, "nhi:mallory")
        with shared.client() as client:
            rank, _, plain = str(client.hget(key, "nhi:mallory")).partition("{")
            newer = rank + json.dumps({**json.loads("{" + plain), "ticket": "INC-1", "scope": ["x"]})
            for name, said in {"nhi:planner": "garbage", "nhi:x": "9" * 31 + "{}", "nhi:eve": "9" + "x" * 40}.items():
                client.hset(key, name, said)
            client.hset(key, mapping={"nhi:mallory": newer, "": "another token"})
            await b.app.switch.sync()
            assert knows(b, "nhi:mallory")()
            for name in ("nhi:planner", "nhi:x"):
                await disable(a, name)
            await until(knows(b, "nhi:mallory", "nhi:planner", "nhi:x"))
            client.set(key, "no hash at all")
            await b.app.switch.sync()
            with pytest.raises(SwitchError, match="other replicas do not know of it yet"):
                await disable(b, "nhi:other")
            assert knows(b, "nhi:mallory", "nhi:other", "nhi:planner", "nhi:x")()
            client.delete(key)
        await until(knows(a, "nhi:mallory", "nhi:other", "nhi:planner", "nhi:x"))
