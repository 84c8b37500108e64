"""Do servers that nobody here wrote do behind us what they do alone, and what policy and limits let them?

The reference servers of npm and PyPI, as programs, with the official SDK's client of both eras before them. All of
them know sessions only or both eras; a stateless client notices nothing.
"""

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from aiohttp import web
from mcp import Client, MCPError

from tests import servers
from tests.flow.world import listening, until
from tests.peers.ears import CALL_WITHIN_S, Ears, client as client_with_ears, text_of
from tests.peers.stage import wire_to
from tests.servers.stand import Stand, everything_over, node, pids, pypi, stand

pytestmark = [pytest.mark.skipif(not servers.complete(), reason="`make test` brings the servers, where npm is reached")]
ERAS = ("legacy", "auto")
PLANNER, OTHER = "nhi:planner", "nhi:other"


@dataclass(frozen=True)
class Server:
    """One server: the program for a folder, a call that works, what its arguments cannot be, and what nobody may."""

    program: Callable[[Path], dict[str, Any]]
    tool: str
    arguments: Callable[[Path], dict[str, Any]]
    bad: Mapping[str, Any]
    denied: str


def _memory(folder: Path) -> dict[str, Any]:
    # A path within the program's working folder, which is each caller's own. It takes no relative one.
    return node("server-memory", MEMORY_FILE_PATH="/proc/self/cwd/memory.jsonl")


SERVERS = {
    "everything": Server(
        lambda folder: node("server-everything", "stdio"),
        "echo",
        lambda folder: {"message": "hällo"},
        {"message": 7},
        "get-env",
    ),
    "filesystem": Server(
        lambda folder: node("server-filesystem", str(folder)),
        "read_text_file",
        lambda folder: {"path": str(folder / "note.txt")},
        {"path": ["a", "b"]},
        "write_file",
    ),
    "memory": Server(_memory, "search_nodes", lambda folder: {"query": "Ada"}, {"query": 7}, "delete_entities"),
    "time": Server(
        lambda folder: pypi("mcp_server_time", "--local-timezone", "UTC"),
        "get_current_time",
        lambda folder: {"timezone": "Europe/Oslo"},
        {"timezone": None},
        "convert_time",
    ),
    "git": Server(
        lambda folder: pypi("mcp_server_git", "--repository", str(folder)),
        "git_status",
        lambda folder: {"repo_path": str(folder)},
        {"repo_path": {}},
        "git_commit",
    ),
}
both_eras = pytest.mark.parametrize("era", ERAS)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with a note in it, which is a repository with one commit."""
    folder = tmp_path / "root"
    folder.mkdir()
    (folder / "note.txt").write_text("hällo")
    for command in (["init", "-q", "-b", "main"], ["add", "."], [*_WHO, "commit", "-q", "-m", "First light"]):
        subprocess.run(["git", "-C", str(folder), *command], check=True, env={"PATH": os.environ["PATH"]})
    return folder


_WHO = ["-c", "user.name=Ada", "-c", "user.email=ada@example.com"]


@asynccontextmanager
async def client(url: str, era: str) -> AsyncIterator[Client]:
    """A client that can be asked nothing: server-filesystem would take its roots in place of the operator's."""
    async with asyncio.timeout(CALL_WITHIN_S), Client(url, mode=era, cache=None) as peer:
        yield peer


def _allowed(server: str, tools: str = "*", limit: str = "-", who: str = PLANNER) -> str:
    return f"p, {who}, tool:{server}/{tools}, use, -, {limit}, -, allow\n"


@asynccontextmanager
async def before(
    folder: Path, name: str, root: Path, rules: str = "", *principals: str
) -> AsyncIterator[tuple[Stand, dict[str, Any]]]:
    """A sidecar before one server, and that server's program."""
    program = SERVERS[name].program(root)
    async with stand(folder, {name: program}, rules or _allowed(name), *principals) as on:
        yield on, program


@pytest.mark.parametrize("name", SERVERS)
async def test_what_a_caller_may_not_is_neither_listed_nor_called(tmp_path: Path, root: Path, name: str) -> None:
    server = SERVERS[name]
    async with before(tmp_path, name, root, _allowed(name, server.tool, "4")) as (on, program):
        async with client(on.at(name), "legacy") as peer:
            assert [tool.name for tool in (await peer.list_tools()).tools] == [server.tool]
            assert not (await peer.call_tool(server.tool, server.arguments(root))).is_error
            assert "No rule allows this call" in await _said(peer.call_tool(server.denied, {}))
            assert "do not fit the tool's schema" in await _said(peer.call_tool(server.tool, dict(server.bad)))
        async with client(on.at(name), "auto") as peer:
            assert peer.protocol_version == "2026-07-28"
            assert [tool.name for tool in (await peer.list_tools()).tools] == [server.tool]
            for _ in range(3):
                assert not (await peer.call_tool(server.tool, server.arguments(root))).is_error
            assert "rate limit" in await _said(peer.call_tool(server.tool, server.arguments(root)))
        reasons = [(end["event"], end["reason"]) for end in on.ends()]
        assert reasons[1:3] == [("refusal", "no-matching-rule"), ("refusal", "bad-arguments")]
        assert reasons[-1] == ("refusal", "rate-limited")
    assert pids(program) == []


@pytest.mark.parametrize("name", ["everything", "time"])
async def test_a_server_that_is_killed_amid_a_call_is_there_for_the_next(tmp_path: Path, root: Path, name: str) -> None:
    server = SERVERS[name]
    async with before(tmp_path, name, root) as (on, program), client(on.at(name), "auto") as peer:
        assert not (await peer.call_tool(server.tool, server.arguments(root))).is_error
        first = pids(program)  # the caller's, and the one that the sidecar asks for its tools
        _signal(first, signal.SIGSTOP)
        call = asyncio.create_task(peer.call_tool(server.tool, server.arguments(root)))
        await asyncio.sleep(0.1)
        assert not call.done()
        _signal(first, signal.SIGKILL)
        assert "The upstream failed" in await _said(call)
        assert not (await _again(peer, server, root)).is_error
        assert pids(program) and not set(first) & set(pids(program))
        assert "upstream-failed" in [end["reason"] for end in on.ends()]


def _signal(processes: Iterable[int], number: int) -> None:
    for pid in processes:
        os.kill(pid, number)


async def _said(call: Awaitable[Any]) -> str:
    """What a failed call was answered, in whichever way of its era."""
    try:
        answer = await call
    except MCPError as error:
        return str(error)
    assert answer.is_error
    return text_of(answer)


async def _again(peer: Client, server: Server, root: Path) -> Any:
    """The next call that is not told to wait: a program that ended by itself is started again after a pause."""
    async with asyncio.timeout(CALL_WITHIN_S):
        while True:
            try:
                answer = await peer.call_tool(server.tool, server.arguments(root))
            except MCPError as error:
                assert "The upstream failed" in str(error)
            else:
                if not answer.is_error:
                    return answer
                assert "The upstream failed" in text_of(answer)
            await asyncio.sleep(0.1)


async def test_two_users_have_memories_of_their_own(tmp_path: Path, root: Path) -> None:
    rules = _allowed("memory") + _allowed("memory", who=OTHER)
    async with (
        before(tmp_path, "memory", root, rules, PLANNER, OTHER) as (on, _),
        client(on.at("memory"), "legacy") as ada,
        client(on.at("memory", OTHER), "auto") as bob,
    ):
        entity = {"name": "Ada", "entityType": "person", "observations": ["likes proofs"]}
        await ada.call_tool("create_entities", {"entities": [entity]})
        found = await asyncio.gather(*(peer.call_tool("search_nodes", {"query": "Ada"}) for peer in (ada, bob)))
        assert [one.structured_content["entities"] for one in found] == [[entity], []]


@dataclass
class Site:
    """A web site with a page, and one that robots may not have."""

    asked: list[str] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.path)
        if request.path == "/robots.txt":
            return web.Response(text="User-agent: *\nDisallow: /private\n")
        return web.Response(text="<html><body><p>from loopback</p></body></html>", content_type="text/html")


def fetch() -> dict[str, Any]:
    """The server without `node` on its path: with it, its first page waits for an `npm install` inside its package."""
    return pypi("mcp_server_fetch", "--allow-private-ips", PATH="/nonexistent")


async def test_a_page_is_fetched_as_its_site_and_policy_allow(tmp_path: Path) -> None:
    site = Site()
    async with listening(site.handle) as base:
        rules = f"p, {PLANNER}, tool:fetch/fetch, use, -, 3, args.url.startsWith('{base}/'), allow\n"
        async with stand(tmp_path, {"fetch": fetch()}, rules) as on, client(on.at("fetch"), "auto") as peer:
            assert [tool.name for tool in (await peer.list_tools()).tools] == ["fetch"]
            assert "from loopback" in text_of(await peer.call_tool("fetch", {"url": f"{base}/page"}))
            private = await peer.call_tool("fetch", {"url": f"{base}/private"})
            assert private.is_error and "robots.txt" in text_of(private)
            before_ = list(site.asked)
            foreign = {"url": "http://169.254.169.254/latest"}
            assert "condition is not met" in await _said(peer.call_tool("fetch", foreign))
            wrong = {"url": f"{base}/page", "max_length": "many"}
            assert "do not fit" in await _said(peer.call_tool("fetch", wrong))
            assert site.asked == before_ == ["/robots.txt", "/page", "/robots.txt"]
            assert "from loopback" in text_of(await peer.call_tool("fetch", {"url": f"{base}/page", "raw": True}))
            assert "rate limit" in await _said(peer.call_tool("fetch", {"url": f"{base}/page"}))


# --- one server over three transports ---------------------------------------------------------------------------------

ASKED = ("sampling/createMessage", "elicitation/create", "roots/list")
ALL = f"""\
p, {PLANNER}, tool:everything/*, use, -, -, -, allow
p, {PLANNER}, prompt:everything/*, use, -, -, -, allow
p, {PLANNER}, resource:everything/*, use, -, -, -, allow
p, {PLANNER}, nhi:everything, {"|".join(ASKED)}, -, -, -, allow
"""


@contextmanager
def everything(transport: str) -> Iterator[dict[str, Any]]:
    """`server-everything`, as the settings name it."""
    if transport == "stdio":
        yield node("server-everything", "stdio")
        return
    with everything_over(transport) as base:
        yield {"url": f"{base}/{'sse' if transport == 'sse' else 'mcp'}"}


@both_eras
@pytest.mark.parametrize("transport", ["stdio", "sse", "streamableHttp"])
async def test_all_of_mcp_is_the_same_over_each_transport(tmp_path: Path, transport: str, era: str) -> None:
    ears = Ears()
    with everything(transport) as settings:
        async with (
            stand(tmp_path, {"everything": settings}, ALL) as on,
            client_with_ears(on.at("everything"), era, ears) as peer,
        ):
            await _asks_and_answers(peer, ears)
            await _content(peer)
            await _tells_while_it_runs(peer, ears)


@both_eras
async def test_a_restart_of_a_server_costs_a_stateless_client_nothing(tmp_path: Path, era: str) -> None:
    """`server-everything` answers 400 in sessions that it does not know. A client of sessions hears 404."""
    with everything_over("streamableHttp") as base:
        async with (
            wire_to(_port(base)) as wire,
            stand(tmp_path, {"everything": {"url": f"http://{wire.address}/mcp"}}, ALL) as on,
            client(on.at("everything"), era) as peer,
        ):
            assert "one" in text_of(await peer.call_tool("echo", {"message": "one"}))
            with everything_over("streamableHttp") as other:
                wire.port = _port(other)
                wire.cut()
                if era == "auto":
                    assert "two" in text_of(await peer.call_tool("echo", {"message": "two"}))
                else:
                    with pytest.raises(MCPError, match=r"(?i)session"):
                        await peer.call_tool("echo", {"message": "two"})
                    async with client(on.at("everything"), era) as again:
                        assert "two" in text_of(await again.call_tool("echo", {"message": "two"}))
                assert on.app.live.current.services["everything"].account.plain()["sessions_lost"] >= 1


def _port(base: str) -> int:
    return int(base.rpartition(":")[2])


async def _asks_and_answers(peer: Client, ears: Ears) -> None:
    # It adds these tools once it knows what its client can do.
    tools = {tool.name for tool in (await peer.list_tools()).tools}
    assert {"echo", "trigger-sampling-request", "trigger-elicitation-request", "get-roots-list"} <= tools
    thought = await peer.call_tool("trigger-sampling-request", {"prompt": "think"})
    assert "please" in text_of(thought) and any("think" in asked for asked in ears.asked)
    told = await peer.call_tool("trigger-elicitation-request", {})
    assert "provided the requested information" in text_of(told)
    assert "file:///work" in text_of(await peer.call_tool("get-roots-list", {}))


async def _content(peer: Client) -> None:
    total = await peer.call_tool("get-structured-content", {"location": "Chicago"})
    assert total.structured_content and "temperature" in total.structured_content
    assert (await peer.call_tool("get-tiny-image", {})).content[1].type == "image"
    assert (await peer.list_resources()).resources
    read = await peer.read_resource("demo://resource/dynamic/text/1")
    assert "Resource 1" in getattr(read.contents[0], "text", "")
    assert "args-prompt" in {prompt.name for prompt in (await peer.list_prompts()).prompts}
    prompt = await peer.get_prompt("args-prompt", {"city": "Oslo"})
    assert "Oslo" in getattr(prompt.messages[0].content, "text", "")
    ref = types.PromptReference(type="ref/prompt", name="completable-prompt")
    completed = await peer.complete(ref, {"name": "department", "value": "E"})
    assert completed.completion.values == ["Engineering"]


async def _tells_while_it_runs(peer: Client, ears: Ears) -> None:
    lasts = {"duration": 0.2, "steps": 2}
    await peer.call_tool("trigger-long-running-operation", lasts, progress_callback=ears.on_progress)
    assert [progress for progress, _ in ears.progress] == [1, 2]
    if peer.protocol_version == "2025-11-25":
        await peer.call_tool("toggle-simulated-logging", {})
        await until(lambda: bool(ears.logs))
        await peer.call_tool("toggle-simulated-logging", {})
