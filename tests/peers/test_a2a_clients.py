"""Do the clients of the official A2A SDK, both lines, see the same in every binding, also with us between?

The 0.3 line cannot live in one environment with 1.x: `a2a03_client.py` runs under an interpreter of its own, and so
does the agent of that line.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial, reduce
from operator import or_
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
import pytest_asyncio
from a2a.client.card_resolver import parse_agent_card
from a2a.utils.errors import A2AError

from sidecar.app.application import Application
from sidecar.cli.free_ports import free_ports
from sidecar.protocols.a2a.operations import BY_ACTION, CARD
from tests.a2a.agents import NO_OLD, OLD_PYTHON, Agent, agent
from tests.a2a.world import CALLED_BACK, EVERYTHING, PLANNER, WHO, write
from tests.flow.forks import python
from tests.flow.world import started
from tests.peers.a2a_client import Play, play
from tests.tables import tables

OLD_CLIENT = "tests.peers.a2a03_client"
BINDINGS = ("JSONRPC", "HTTP+JSON", "GRPC")
FRONTS = [(binding, version) for version in ("1.0", "0.3") for binding in BINDINGS]
pytestmark = pytest.mark.asyncio(loop_scope="module")
old = pytest.mark.skipif(not OLD_PYTHON.exists(), reason=NO_OLD)

SEEN: Mapping[str, Any] = tables("peers/a2a_clients")["seen"]
# 1.x as a caller of 0.3 does not ask for these.
_NOT_ASKED = "NotImplementedError"
_BY_STATUS = {"cancel again": "A2AClientError", "unknown": "MethodNotFoundError"}
OF_03: Mapping[str, Mapping[str, Any]] = {
    "JSONRPC": {"list": _NOT_ASKED},
    "HTTP+JSON": {**dict.fromkeys(("list", "push list", "push delete", "push gone"), _NOT_ASKED), **_BY_STATUS},
    "GRPC": {"list": _NOT_ASKED},
}
UNASKED: Mapping[str, frozenset[str]] = {
    "JSONRPC": frozenset({"tasks/list"}),
    "HTTP+JSON": frozenset({"tasks/list", "push/list", "push/delete"}),
    "GRPC": frozenset({"tasks/list"}),
}
# The 0.3 line's own client has no such calls at all, and names errors as the binding does.
_NO_CALL = ("list", "push list", "push delete", "push gone")
OF_OLD_CLIENT: Mapping[str, Mapping[str, Any]] = {
    "JSONRPC": {"cancel again": -32002, "unknown": -32001},
    "HTTP+JSON": {"cancel again": 400, "unknown": 404},
    "GRPC": {"cancel again": "FAILED_PRECONDITION", "unknown": "NOT_FOUND"},
}
# An agent of the 0.3 line ends other streams of a cancelled task without a word; over gRPC it lacks these calls, and
# has the public card alone. It answers with statuses of its own, too.
_UNIMPLEMENTED = dict.fromkeys(("push list", "push delete", "push gone"), "A2AClientError")
OF_OLD_AGENT: Mapping[str, Mapping[str, Any]] = {
    "JSONRPC": {"resubscribe": ["working:"]},
    "HTTP+JSON": {"resubscribe": ["working:"]},
    "GRPC": {"resubscribe": ["working:"], "card": False, **_UNIMPLEMENTED},
}
BETWEEN_OLD: Mapping[str, Mapping[str, Any]] = {
    "JSONRPC": {},
    "HTTP+JSON": {"cancel again": 409},
    "GRPC": {"cancel again": "UNIMPLEMENTED"},
}


def seen_by_new(*differences: Mapping[str, Any]) -> dict[str, Any]:
    """What a client of 1.x comes to see."""
    return reduce(or_, map(dict, differences), dict(SEEN))


def seen_at(fronts: Iterable[tuple[str, str]], *differences: Mapping[str, Any]) -> dict[tuple[str, str], Any]:
    """What it comes to see at each of them."""
    return {front: seen_by_new(*differences, OF_03[front[0]] if front[1] == "0.3" else {}) for front in fronts}


def seen_by_old(*differences: Mapping[str, Any]) -> dict[str, Any]:
    """What a client of 0.3 comes to see."""
    expected = seen_by_new(*differences)
    return {name: expected[name] for name in expected if name not in _NO_CALL}


async def old_client(url: str, binding: str, headers: Mapping[str, str] | None = None, *text: str) -> Any:
    """What a client of the 0.3 line sees under this URL; with a `text`, under these, when it says this."""
    words = ("-m", OLD_CLIENT, url, binding, json.dumps(headers or {}), *text)
    process = await asyncio.create_subprocess_exec(python(OLD_PYTHON), *words, stdout=asyncio.subprocess.PIPE)
    said, _ = await process.communicate()
    return json.loads(said)


# What an agent lacks, as a caller of 1.0 hears it from us: a method that is not there, or the agent's own trouble.
_LACKS, _FAILS, _CANNOT = "MethodNotFoundError", "A2AClientError", "UnsupportedOperationError"
_ENDS, _LISTS = {"resubscribe": ["working:"]}, ("push list", "push gone")
Behind = tuple[str, str, str]
BEHIND: Mapping[Behind, Mapping[str, Any]] = {
    ("new", "jsonrpc", "1.0"): {},
    ("new", "http_json", "1.0"): {},
    ("new", "grpc", "1.0"): {},
    ("new", "jsonrpc", "0.3"): {"list": _LACKS},
    ("new", "http_json", "0.3"): {"list": _LACKS, "push delete": _LACKS, "push gone": ["hook"]},
    ("new", "grpc", "0.3"): {"list": _LACKS},
    ("aged", "jsonrpc", "0.3"): {"list": _LACKS, **_ENDS},
    ("aged", "http_json", "0.3"): {**dict.fromkeys(("list", *_LISTS), _FAILS), "push delete": _LACKS, **_ENDS},
    ("aged", "grpc", "0.3"): {
        **dict.fromkeys(("push delete", *_LISTS), _CANNOT),
        "list": _LACKS,
        "card": False,
        **_ENDS,
    },
}

# Fronts and agents know nothing of each other: every front is tried with one agent, and every agent with two fronts.
SIMPLEST: Behind = ("new", "jsonrpc", "1.0")
A_FEW = [("HTTP+JSON", "1.0"), ("GRPC", "0.3")]
ALIAS, OWN_TOKEN = "/tools/research", "7fQ-2c51e8a94b0d3f6a7c81e2d95b40aa63"


async def together(plays: Mapping[Any, Awaitable[dict[str, Any]]]) -> dict[Any, dict[str, Any]]:
    """What came of each, all at once."""
    return dict(zip(plays, await asyncio.gather(*plays.values()), strict=True))


@pytest.fixture(scope="module")
def new() -> Iterator[Agent]:
    """An agent of 1.x that speaks both versions."""
    with agent("sdk1", "--compat") as one:
        yield one


@pytest.fixture(scope="module")
def aged(new: Agent) -> Iterator[Agent]:
    """An agent of the 0.3 line; where there cannot be one, nothing asks it."""
    with agent("sdk03") if OLD_PYTHON.exists() else nullcontext(new) as one:
        yield one


async def test_a_new_client_and_a_new_agent_speak_both_versions(new: Agent) -> None:
    assert await together({front: play(new.url, *front) for front in FRONTS}) == seen_at(FRONTS)


@old
async def test_a_new_client_and_an_old_agent_speak_0_3(aged: Agent) -> None:
    assert await together({binding: play(aged.url, binding, "0.3") for binding in BINDINGS}) == {
        binding: seen_by_new(OF_OLD_AGENT[binding], OF_03[binding]) for binding in BINDINGS
    }


@old
async def test_an_old_client_and_a_new_agent_speak_0_3(new: Agent) -> None:
    assert await together({binding: old_client(new.url, binding) for binding in BINDINGS}) == {
        binding: seen_by_old(OF_OLD_CLIENT[binding]) for binding in BINDINGS
    }


@old
async def test_an_old_client_and_an_old_agent_speak_0_3(aged: Agent) -> None:
    assert await together({binding: old_client(aged.url, binding) for binding in BINDINGS}) == {
        binding: seen_by_old(OF_OLD_AGENT[binding], OF_OLD_CLIENT[binding], BETWEEN_OLD[binding])
        for binding in BINDINGS
    }


# --- with us between --------------------------------------------------------------------------------------------------


@dataclass
class Between:
    """A sidecar before the same agent by every way to speak to it."""

    app: Application
    folder: Path

    def url(self, behind: Behind) -> str:
        """What is before the path of its card."""
        return f"http://127.0.0.1:{self.app.listeners[0].port}/agents/{_name(behind)}"

    def refused(self) -> list[tuple[str, str, str]]:
        """Version, action and reason of each refusal so far."""
        records = map(json.loads, self.app.settings.audit_path.read_bytes().splitlines())
        refusals = (record for record in records if record["event"] == "refusal")
        return [(record["protocol_version"], record["action"], record["reason"]) for record in refusals]


def _name(behind: Behind) -> str:
    return "-".join(behind).replace("_", "-").replace(".", "")


def free_port() -> int:
    """One that a card can tell: a port that the system chooses is known too late for that."""
    return free_ports(1)[0]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def between(tmp_path_factory: pytest.TempPathFactory, new: Agent, aged: Agent) -> AsyncIterator[Between]:
    """nhi:planner may everything, nhi:other nothing."""
    folder = tmp_path_factory.mktemp("between")
    rules = {"nhi_to_nhi": f"p, nhi:planner, nhi:*, {EVERYTHING}, -, -, -, allow\n"}
    write(folder, new.rpc, rules=rules)
    settings = (folder / "sidecar.yaml").read_text().partition("upstreams:")[0] + CALLED_BACK + "upstreams:\n"
    by_header = "grpc_authority_header: X-Forwarded-Host"
    settings = settings.replace('grpc: "127.0.0.1:0"', f'grpc: "127.0.0.1:{free_port()}", {by_header}')
    for behind in BEHIND:
        line, binding, version = behind
        one = new if line == "new" else aged
        url = {"jsonrpc": one.rpc, "http_json": one.rest, "grpc": f"grpc://{one.grpc}"}[binding]
        said = f'url: "{url}", binding: {binding}, version: "{version}", card_url: "{one.card}"'
        settings += f"  {_name(behind)}: {{a2a: {{{said}, grpc_port: {free_port()}}}}}\n"
    (folder / "own.token").write_text(OWN_TOKEN)
    own = 'authentication: {type: api_key, header_name: X-Agent-Token, token_path: own.token, principal: "nhi:planner"}'
    settings += f'  shared: {{a2a: {{url: "{new.rpc}"}}}}\n'
    settings += f'  door: {{a2a: {{url: "{new.rpc}", base_path: {ALIAS}, grpc_port: {free_port()}, {own}}}}}\n'
    (folder / "sidecar.yaml").write_text(settings)
    app = await started(folder)
    try:
        yield Between(app, folder)
    finally:
        await app.stop()


@pytest.mark.parametrize(
    "behind", [pytest.param(one, id=_name(one), marks=[old] if one[0] == "aged" else []) for one in BEHIND]
)
async def test_every_front_leads_to_every_agent(between: Between, behind: Behind) -> None:
    """BL-088: clients go where our card says."""
    fronts = FRONTS if behind == SIMPLEST else A_FEW
    plays = {front: play(between.url(behind), *front, PLANNER) for front in fronts}
    assert await together(plays) == seen_at(fronts, BEHIND[behind])


async def test_a_client_is_led_through_an_agents_own_door(between: Between) -> None:
    """By a path and a token of the agent's own; its card, which needs none, leads on to all the rest."""
    at, token = between.url(SIMPLEST).partition("/agents/")[0] + ALIAS, {"X-Agent-Token": OWN_TOKEN}
    fronts = [("JSONRPC", "1.0"), *A_FEW]
    assert await together({front: play(at, *front, token) for front in fronts}) == seen_at(fronts)


async def test_of_many_agents_at_one_grpc_port_a_client_finds_the_one_it_means_by_its_tenant(between: Between) -> None:
    at = between.url(SIMPLEST).rpartition("/")[0] + "/shared"
    assert await play(at, "GRPC", "1.0", PLANNER) == seen_by_new()


@asynccontextmanager
async def proxied(port: int, authority: str) -> AsyncIterator[str]:
    """A proxy before that port of gRPC, which passes on by what name it was called; its address."""

    async def passed(method: str, messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        said = [(name, value) for name, value in context.invocation_metadata() if name != "user-agent"]
        call: Any = line.stream_stream(method)(messages, metadata=[*said, ("x-forwarded-host", authority)])
        try:
            async for message in call:
                yield message
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details(), tuple(error.trailing_metadata() or ()))

    class Passing(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            return grpc.stream_stream_rpc_method_handler(partial(passed, details.method))

    server = grpc.aio.server(handlers=[Passing()])
    here = server.add_insecure_port("127.0.0.1:0")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as line:
        await server.start()
        try:
            yield f"http://127.0.0.1:{here}"
        finally:
            await server.stop(0)


async def test_of_many_agents_at_one_grpc_port_a_proxy_names_the_one_by_its_authority(between: Between) -> None:
    async with aiohttp.ClientSession() as http, proxied(between.app.grpc_ports[""], "shared.gw.acme.example") as at:
        url = between.url(SIMPLEST).rpartition("/")[0] + "/shared/.well-known/agent-card.json"
        async with http.get(url, headers=PLANNER) as response:
            told = await response.json()
        plays = {}
        for version in ("1.0", "0.3"):
            told["supportedInterfaces"] = [{"url": at, "protocolBinding": "GRPC", "protocolVersion": version}]
            plays[version] = play(parse_agent_card(dict(told)), "GRPC", version, PLANNER)
        assert await together(plays) == {"1.0": seen_by_new(), "0.3": seen_by_new(OF_03["GRPC"])}
    async with proxied(between.app.grpc_ports[""], "nobody.gw.acme.example") as at:
        told["supportedInterfaces"] = [{"url": at, "protocolBinding": "GRPC", "protocolVersion": "1.0"}]
        seen = await play(parse_agent_card(dict(told)), "GRPC", "1.0", PLANNER)
        assert set(seen.values()) <= {"A2AClientError", "MethodNotFoundError"}, "it means no agent, and reaches none"


@old
async def test_an_old_client_is_led_to_an_agent_of_1_0(between: Between) -> None:
    plays = {binding: old_client(between.url(SIMPLEST), binding, PLANNER) for binding in BINDINGS}
    assert await together(plays) == {binding: seen_by_old(OF_OLD_CLIENT[binding]) for binding in BINDINGS}


# Where a stream is taken up again over HTTP+JSON, that client looks at the media type before the status.
DENIED: Mapping[str, set[Any]] = {"JSONRPC": {403}, "HTTP+JSON": {403, 400}, "GRPC": {"PERMISSION_DENIED"}}


@old
@pytest.mark.parametrize("binding", BINDINGS)
async def test_an_old_client_who_may_nothing_is_denied_everything(between: Between, new: Agent, binding: str) -> None:
    reached, refused = await arrivals(new), len(between.refused())
    seen = await old_client(between.url(SIMPLEST), binding, WHO["nhi:other"])
    assert seen.pop("card") in {False, *DENIED[binding]}, "its card tells of no extended one"
    assert set(seen.values()) == DENIED[binding]
    told = between.refused()[refused:]
    asked = BY_ACTION.keys() - {"tasks/list", "push/list", "push/delete", CARD.action}
    assert {action for _, action, _ in told} - {CARD.action} == asked
    assert await arrivals(new) == reached


@pytest.mark.parametrize(("binding", "version"), FRONTS)
async def test_who_may_nothing_is_denied_everything(between: Between, new: Agent, binding: str, version: str) -> None:
    reached, refused = await arrivals(new), len(between.refused())
    seen = await play(between.url(SIMPLEST), binding, version, WHO["nhi:other"])
    assert seen.pop("card") in {False, "A2AClientError"}, "its card tells of no extended one"
    assert set(seen.values()) == {"A2AClientError"} | ({_NOT_ASKED} if version == "0.3" else set())
    told = between.refused()[refused:]
    assert {(of, reason) for of, _, reason in told} == {(version, "no-matching-rule")}
    asked = BY_ACTION.keys() - {CARD.action} - (UNASKED[binding] if version == "0.3" else set())
    assert {action for _, action, _ in told} - {CARD.action} == asked
    assert await arrivals(new) == reached


async def test_a_client_reads_why_it_was_denied_where_json_rpc_carries_it(between: Between) -> None:
    """Under a 403 the SDK drops the body."""
    said: dict[str, list[str]] = {}

    async def hear(style: str, play: Play) -> None:
        for client in (play.plain, play.streaming):
            try:
                [_ async for _ in play.events(client, "echo: hi")]
            except A2AError as error:
                said.setdefault(style, []).append(str(error))

    file = between.folder / "sidecar.yaml"
    before = file.read_text()
    for style in ("auto", "jsonrpc"):
        file.write_text(f"{before}answers: {{deny_style: {style}}}\n")
        await between.app.reload("test")
        await play(between.url(SIMPLEST), "JSONRPC", "1.0", WHO["nhi:other"], partial(hear, style))
    file.write_text(before)
    await between.app.reload("test")
    reads = {style: ["No rule allows this call" in words for words in told] for style, told in said.items()}
    assert reads == {"auto": [False, False], "jsonrpc": [True, True]}


async def arrivals(one: Agent) -> int:
    """How many calls have reached the agent; its card is open to all."""
    async with aiohttp.ClientSession() as http, http.get(one.seen) as response:
        return sum("grpc" in entry or entry["verb"] == "POST" for entry in await response.json())
