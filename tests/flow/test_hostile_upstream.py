"""Can an upstream crash us, lie to a caller, show what is hidden, or harm another one?

Every script of `misbehaviours.py`, over every transport and before servers of either era: what its caller hears, while
others go on untouched; and nothing is left of it. Each call has one answer and one terminal record, whatever happens.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.flow import misbehaviours as scripts
from tests.flow.bystanders import callbacks, nothing_left, unharmed
from tests.flow.hostile_upstream import (
    JSON_WORDS,
    OUR_HEADERS,
    POLITE,
    RUDE,
    HostileOld,
    HostileSessions,
    HostileStateless,
    HostileUpstream,
    Liar,
    before,
    grows_at_most,
    in_turn,
    polite,
    reason_in_stream,
    rude,
)
from tests.flow.misbehaviours import Attack, asking, body, bytes_of, done, say
from tests.flow.streams import hearing
from tests.flow.talk import ERAS, Era, Talk, reason_of
from tests.flow.world import PATIENCE_S, RULES, Upstream, World, listening, until, world
from tests.unit.http.client.hostile import serving

CALM = RULES + "p, nhi:planner, tool:calm/*, use, -, -, -, allow\n"
LAG_S = 1.0  # of the loop, by one step: 50 ms on a quiet machine, and minutes where the cost is quadratic
LEAKS = ("leaked", "evil", "127.0.0.1", "Traceback", "sidecar/")
RudeCall = Callable[[Talk, str], Awaitable[Any]]
STATUS = {scripts.REFUSED: 502, scripts.FAILED: 502, scripts.TIMEOUT: 504, "": 200}


@asynccontextmanager
async def beside_a_calm_one(
    folder: Path, mcp_settings: str = "timeout_s: 15", *, more: str = "", **options: Any
) -> AsyncIterator[World]:
    """A sidecar before a hostile `github` and a server that is well, `calm`; and before `more`."""
    options.setdefault("rules", CALM)
    async with listening(Upstream().handle) as base:
        calm = f"calm: {{mcp: {{url: '{base}/mcp'}}, probe: {{enabled: false}}"
        both = f"breaker: {{failures: 100000}}, probe: {{enabled: false}}}}\n{more}  {calm}"
        async with world(folder, upstream_settings=both, mcp_settings=mcp_settings, **options) as running:
            for server in ("calm", "github"):
                await Talk(running, "session", server=server).ask("tools/list")
            yield running


def callers(running: World) -> dict[str, Any]:
    """Others: of a server that is well, in both eras; of the hostile one, who are polite."""
    calm = {era: partial(Talk(running, era, server="calm").call, "search_code", POLITE) for era in ERAS}
    same = {f"same {era}": partial(Talk(running, era).call, "search_code", POLITE) for era in ERAS}
    return {**calm, **same}


def calm(running: World) -> dict[str, Any]:
    """Those of them who call the server that is well."""
    return {name: call for name, call in callers(running).items() if not name.startswith("same")}


def heard(answer: tuple[int, Any, Mapping[str, str]]) -> str:
    """The reason in an answer, whole or a stream; nothing of the upstream's head, nor of ours inside, is in it."""
    _, said, headers = answer
    assert set(headers) <= OUR_HEADERS, headers
    told = str(said).replace("a redirect to http://evil.example/,", "")  # which is told, and not followed
    assert not any(word in told for word in LEAKS), told[:400]
    return reason_in_stream(said) if isinstance(said, bytes) else reason_of(answer)


@asynccontextmanager
async def before_hostile(
    folder: Path, attacks: Mapping[str, Any], mcp_settings: str = "timeout_s: 15"
) -> AsyncIterator[tuple[HostileUpstream, World]]:
    """A sidecar before a server with these attacks, beside a calm one."""
    hostile = HostileUpstream(attacks)
    async with (
        serving(hostile.converse) as hostile.server,
        beside_a_calm_one(folder, mcp_settings, upstream_url=hostile.server.url) as running,
    ):
        yield hostile, running


@asynccontextmanager
async def before_old(folder: Path, timeout_s: int) -> AsyncIterator[tuple[HostileOld, World]]:
    """A sidecar before a hostile server of 2024, beside a calm one."""
    old = HostileOld()
    settings = f"transport: sse, timeout_s: {timeout_s}"
    async with (
        serving(old.converse) as old.server,
        beside_a_calm_one(folder, settings, upstream_url=old.server.url) as running,
    ):
        yield old, running


def before_lines(folder: Path) -> AbstractAsyncContextManager[World]:
    """A sidecar before a program that misbehaves, beside a calm server."""
    return beside_a_calm_one(folder, program=PIPES, rules=LINES, mcp_settings="")


async def played(
    running: World, monkeypatch: pytest.MonkeyPatch, names: Mapping[str, Any], play: Any, *, at_once: int, sessions: int
) -> dict[str, Any]:
    """What each of these came to, while others went on untouched and the loop was never held."""
    with callbacks(monkeypatch) as longest:
        async with nothing_left(running, sessions=sessions), unharmed(**callers(running)):
            came_to: dict[str, Any] = await in_turn([*names], play, at_once)
    assert max(longest.values(), default=0.0) < LAG_S, longest
    return came_to


def in_era(era: Era, reasons: dict[str, str]) -> dict[str, str]:
    """What is heard in this era."""
    return reasons | (
        {name: scripts.IN_A_SESSION[name] for name in reasons if name in scripts.IN_A_SESSION}
        if era == "session"
        else {}
    )


@pytest.mark.parametrize("era", ERAS)
async def test_bytes_of_every_kind_are_told_by_their_reason(
    tmp_path: Path, era: Era, monkeypatch: pytest.MonkeyPatch
) -> None:
    attacks = {name: script.attack for name, script in scripts.BY_BYTES.items()}
    async with before_hostile(tmp_path, attacks) as (hostile, running):
        talk = Talk(running, era)
        await talk.call("search_code", POLITE)

        async def play(name: str) -> tuple[int, str]:
            mine = Talk(running, era)
            answer = await mine.call("search_code", rude(name))
            reason = heard(answer)
            if mine.session:
                await mine.verb("DELETE")
            assert "Mcp-Session-Id" not in answer[2]
            assert reason in ("", "no message") or scripts.FINE not in str(answer[1]), (name, answer)
            assert reason or scripts.FINE in str(answer[1]), (name, answer)
            return answer[0], reason

        came_to = await played(running, monkeypatch, scripts.BY_BYTES, play, at_once=8, sessions=10)
        expected = in_era(era, {name: script.reason for name, script in scripts.BY_BYTES.items()})
        assert {name: reason for name, (_, reason) in came_to.items()} == expected
        if era == "stateless":
            for name, script in scripts.BY_BYTES.items():
                assert came_to[name][0] in (script.status or STATUS[script.reason], 200), name
        assert len(hostile.asked) == len(scripts.BY_BYTES), "and nothing is tried twice"


@pytest.mark.parametrize("era", ERAS)
async def test_a_list_shows_nothing_that_is_hidden_however_it_is_said(
    tmp_path: Path, era: Era, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BL-021: neither a name, nor a description, nor an address of what its reader may not use."""
    async with before_hostile(tmp_path, {name: script.attack for name, script in scripts.LISTS.items()}) as (
        _,
        running,
    ):

        async def play(name: str) -> str:
            answer = await Talk(running, era).ask("tools/list", {"cursor": name})
            reason = heard(answer)
            assert scripts.CANARY not in str(answer[1]), (name, answer)
            assert reason or "search_code" in str(answer[1]), (name, answer)
            return reason

        came_to = await played(running, monkeypatch, scripts.LISTS, play, at_once=4, sessions=100)
        assert came_to == in_era(era, {name: script.reason for name, script in scripts.LISTS.items()})


@pytest.mark.parametrize("era", ERAS)
async def test_what_is_said_to_our_own_enquiry_fails_that_server_alone(
    tmp_path: Path, era: Era, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anybody can call a server, it is asked for its tools; one sidecar stands before all of these."""
    async with AsyncExitStack() as servers:
        more = []
        for number, (results, _) in enumerate(scripts.GREETINGS.values()):
            liar = await servers.enter_async_context(serving(Liar(results).converse))
            more.append(f"  liar{number}: {{mcp: {{url: '{liar.url}'}}, probe: {{enabled: false}}}}\n")
        running = await servers.enter_async_context(
            beside_a_calm_one(tmp_path, rules="p, *, *, *, -, -, -, allow\n", more="".join(more))
        )

        async def play(name: str) -> str:
            talk = Talk(running, era, server=f"liar{[*scripts.GREETINGS].index(name)}")
            if era == "session" and not (opened := await talk.open())[2].get("Mcp-Session-Id"):
                return heard(opened)
            return heard(await talk.call("search_code", POLITE))

        came_to = await played(running, monkeypatch, scripts.GREETINGS, play, at_once=4, sessions=100)
        assert came_to == in_era(era, {name: reason for name, (_, reason) in scripts.GREETINGS.items()})


@pytest.mark.parametrize("era", ERAS)
async def test_every_answer_has_a_deadline(tmp_path: Path, era: Era, monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence, drips and floods, all at once."""
    async with before_hostile(tmp_path, scripts.SLOW, "timeout_s: 1") as (_, running):
        talk = Talk(running, era)
        await talk.call("search_code", POLITE)
        with callbacks(monkeypatch) as longest:
            async with nothing_left(running, sessions=10), unharmed(**calm(running)), asyncio.timeout(PATIENCE_S):
                answers = await asyncio.gather(*(talk.call("search_code", rude(name)) for name in scripts.SLOW))
        assert {name: heard(answer) for name, answer in zip(scripts.SLOW, answers, strict=True)} == dict.fromkeys(
            scripts.SLOW, scripts.TIMEOUT
        )
        assert max(longest.values(), default=0.0) < LAG_S, longest


@pytest.mark.parametrize("era", ERAS)
async def test_an_answer_without_end_is_refused_and_not_held(
    tmp_path: Path, era: Era, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with before_hostile(tmp_path, scripts.LARGE) as (_, running):
        talk = Talk(running, era)
        await talk.call("search_code", POLITE)
        with grows_at_most(80) as look:

            async def play(name: str) -> str:
                answer = await talk.call("search_code", rude(name))
                look()
                return heard(answer)

            came_to = await played(running, monkeypatch, scripts.LARGE, play, at_once=2, sessions=10)
        assert came_to == dict.fromkeys(scripts.LARGE, scripts.REFUSED)


# --- over lines, and before servers of the other era ------------------------------------------------------------------

ID = 987654321  # what the program puts the id of its call in place of
PIPES = f"command: {sys.executable}, args: [-I, -S, {Path(__file__).parent / 'program.py'}], timeout_s: 1"
LINES = CALM + "p, nhi:planner, tool:github/*, use, -, -, -, allow\n"
# On a stream, what answers nobody is passed over, and then the stream ends without an answer.
ON_A_STREAM = dict.fromkeys(
    [
        *("a notification", "a request", "the request itself", "another id", "the id as a string", "the id as a float"),
        *("the id as a boolean", "no id", "a null id", "an id of another kind", "an empty batch", "a string", "null"),
    ],
    scripts.FAILED,
)
# A server of sessions knows no kinds of results: what it writes there is nothing, and its result complete.
WITHOUT_KINDS = dict.fromkeys(["an unknown kind of result", "a kind of result that is a list"], "nothing")


async def words(
    running: World, era: Era, call: RudeCall, *, at_once: int = 8, polite: Any = ("search_code", POLITE)
) -> dict[str, str]:
    """What each word of JSON-RPC came to, for a client of its own whom the server answers afterwards as ever; or its
    session is over, and it hears so."""

    async def play(name: str) -> str:
        talk = Talk(running, era)
        answer = await call(talk, name)
        assert (await talk.call(*polite))[0] in (200, 404)
        if talk.session:
            await talk.verb("DELETE")
        reason = heard(answer)
        return reason or ("" if scripts.FINE in str(answer[1]) else "nothing")

    return await in_turn([*JSON_WORDS], play, at_once)


async def rude_call(talk: Talk, name: str) -> Any:
    return await talk.call("search_code", rude(name))


async def test_malformed_side_messages_on_pipes_are_dropped_and_the_answer_arrives(tmp_path: Path) -> None:
    note = {"jsonrpc": "2.0", "method": "notifications/message", "params": {}}
    file = tmp_path / "said"
    lines = [
        {"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": None},
        {"jsonrpc": "2.0", "id": 8, "method": "ping", "params": None},
        {**note, "extra": 1},
        {**note, "params": [1]},
        {"jsonrpc": "2.0", "id": 77, "result": {}},
        [note],
        done({"id": ID}, error=None),
    ]
    file.write_bytes(b"\n".join(map(bytes_of, lines)))
    async with before_lines(tmp_path) as running:
        for era in ERAS:
            answer = await Talk(running, era).call("say", {"file": str(file)})
            assert heard(answer) == "" and scripts.FINE in str(answer[1])
        assert running.app.live.current.services["github"].account.plain()["messages_dropped"] >= 2


@pytest.mark.parametrize("kind", [HostileSessions, HostileStateless])
async def test_words_of_a_server_of_the_other_era(
    tmp_path: Path, kind: type[HostileSessions] | type[HostileStateless]
) -> None:
    era: Era = "stateless" if kind is HostileSessions else "session"
    async with beside_a_calm_one(tmp_path, upstream=kind(), mcp_settings="timeout_s: 5") as running:
        async with nothing_left(running, sessions=100), unharmed(**callers(running)):
            came_to = await words(running, era, rude_call)
        expected = {**dict.fromkeys(scripts.WORDS, scripts.REFUSED), **dict.fromkeys(scripts.PASSES, "")}
        assert came_to == expected | (ON_A_STREAM | WITHOUT_KINDS if kind is HostileSessions else {})


async def test_an_endpoint_that_lies_and_one_that_is_none(tmp_path: Path) -> None:
    """Nothing is sent there, and whoever has a stream already goes on."""
    async with before_old(tmp_path, 5) as (old, running):
        truth, came_to = old.opening, {}
        others = {name: call for name, call in callers(running).items() if name != "same stateless"}
        async with nothing_left(running, sessions=10), unharmed(**others) as noticed:
            await until(lambda: min(noticed.answered.values()) > 0)
            for name, opening in {**scripts.LIES, **scripts.NO_STREAM}.items():
                old.opening = opening
                came_to[name] = heard(await Talk(running, "session").open())
            old.opening = truth
        assert came_to == dict.fromkeys(scripts.LIES, scripts.REFUSED) | dict.fromkeys(
            scripts.NO_STREAM, scripts.FAILED
        )
        assert not any(b"evil" in request for request in old.server.requests)


async def test_a_list_on_every_stream_of_a_2024_server_is_its_readers_and_filtered(tmp_path: Path) -> None:
    """BL-090: nobody else hears of it, also on the stream that his session keeps open."""
    async with before_old(tmp_path, 5) as (_, running):
        mine, other = Talk(running, "session"), Talk(running, "session")
        for talk in (mine, other):
            await talk.call("search_code", POLITE)
        async with hearing(running.http, f"{running.url}/mcp/github", other.in_session) as ear:
            said = await mine.ask("tools/list", {"cursor": "secret"})
            assert [tool["name"] for tool in said[1]["result"]["tools"]] == [
                "search_code"
            ] and scripts.CANARY not in str(said)
            assert "done" in str(await other.call("search_code", POLITE))
            with pytest.raises(TimeoutError):
                await ear.message(within_s=0.2)


async def test_an_answer_on_another_clients_stream_is_unidentified(tmp_path: Path) -> None:
    """What is said there to a question that was asked elsewhere answers nothing."""
    async with before_old(tmp_path, 1) as (_, running):
        mine, others = Talk(running, "session"), [Talk(running, "session") for _ in range(3)]
        for talk in (mine, *others):
            await talk.call("search_code", POLITE)
        assert heard(await mine.call("search_code", rude("wrong stream"))) == scripts.TIMEOUT
        for talk in (mine, *others):
            assert "done" in str(await talk.call("search_code", POLITE))


async def test_what_a_result_asks_of_the_client_needs_a_row(tmp_path: Path) -> None:
    rules = RULES + "p, nhi:planner, nhi:github, roots/list, -, -, -, allow\n"
    for methods, reason in ((["roots/list"], ""), (["roots/list", "sampling/createMessage"], "no-matching-rule")):
        async with before(tmp_path / str(len(methods)), body(asking(*methods, requestState="s")), rules=rules) as (
            running,
            _,
        ):
            answer = await running.call("search_code", RUDE)
            assert (answer[0], reason_of(answer)) == (403 if reason else 200, reason)
            asked = [record["action"] for record in running.records() if record["event"] == "decision"]
            assert [action for action in asked if action != "tools/call"] == methods


# --- sessions ---------------------------------------------------------------------------------------------------------


async def test_an_upstreams_session_id_never_reaches_a_caller(tmp_path: Path) -> None:
    async with before(tmp_path, body(done, *scripts.COOKIES)) as (running, _):
        talk = Talk(running, "session")
        _, said, headers = await talk.open()
        assert headers["Mcp-Session-Id"] == talk.session and "upstream-1" not in str(headers) + str(said)
        assert said["result"]["capabilities"] == {"tools": {"listChanged": True}, "tasks": {}}
        status, said, headers = await talk.call("search_code", RUDE)
        assert status == 200 and scripts.FINE in str(said) and set(headers) <= OUR_HEADERS - {"Mcp-Session-Id"}


NO_SESSION_STREAM: dict[str, tuple[Attack, int]] = {
    "405": (body(lambda m: b"", *scripts.COOKIES, status="405 No"), 405),
    "404": (body(lambda m: b"", *scripts.COOKIES, status="404 No"), 404),
    "302": (body(lambda m: b"", *scripts.COOKIES, status="302 Found"), 502),
    "500": (body(lambda m: b"", *scripts.COOKIES, status="500 Error"), 502),
    "JSON": (body(lambda m: b"{}", *scripts.COOKIES), 502),
    "no media type": (body(lambda m: b"{}", *scripts.COOKIES, media=""), 502),
    "gzip": (body(lambda m: scripts.ZIPPED, "Content-Encoding: gzip", media="text/event-stream"), 502),
    "noise": (say(bytes(range(256)), then_close=True), 502),
}


@pytest.mark.parametrize("case", NO_SESSION_STREAM)
async def test_a_session_stream_that_is_none_is_told_in_plain_http(tmp_path: Path, case: str) -> None:
    attack, expected = NO_SESSION_STREAM[case]
    async with before(tmp_path, attack) as (running, _):
        talk = Talk(running, "session")
        await talk.open()
        status, told, headers = await talk.verb("GET", {"Accept": "text/event-stream"})
        assert (status, headers["Content-Type"]) == (expected, "application/problem+json")
        told = told.replace(b"a redirect to http://evil.example/,", b"")
        assert set(headers) <= OUR_HEADERS | {"Allow"} and b"evil" not in told
        await polite(running)
        assert len(running.ends()) == 3
