"""What does a client of the official 1.x SDK see at this address?

`python sdk1_client.py URL UPSTREAM PART` plays one part under an interpreter that has `mcp` 1.x, and prints what each
step came to as one JSON object: a value, or `{"code": …, "reason": …}` for an error. It decides nothing:
`test_sdk1.py` does.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
from mcp import ClientSession, McpError, types
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from pydantic import AnyUrl

PATIENCE_S = 60.0
SECRET = types.PromptReference(type="ref/prompt", name="secret")
TEMPLATE = types.ResourceTemplateReference(type="ref/resource", uri="note://by/{name}")


@dataclass
class Ears:
    """What the client heard, and what it answers."""

    logs: list[list[Any]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    notifications: list[Any] = field(default_factory=list)
    progress: list[float] = field(default_factory=list)

    async def on_log(self, params: types.LoggingMessageNotificationParams) -> None:
        self.logs.append([params.level, params.data])

    async def on_message(self, message: Any) -> None:
        if isinstance(message, types.ServerNotification):
            self.notifications.append(message.root)

    async def on_elicit(self, context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        self.asked.append(params.message)
        return types.ElicitResult(action="accept", content={"word": "please"})

    async def on_sample(self, context: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
        self.asked.append("sampling")
        content = types.TextContent(type="text", text="please")
        return types.CreateMessageResult(role="assistant", model="none", content=content)

    async def on_roots(self, context: Any) -> types.ListRootsResult:
        self.asked.append("roots")
        return types.ListRootsResult(roots=[types.Root(uri=AnyUrl("file:///work"))])

    def heard(self, kind: type) -> list[Any]:
        return [message for message in self.notifications if isinstance(message, kind)]


@dataclass
class Play:
    """One client at work; `seen` is what each step came to."""

    session: ClientSession
    ears: Ears
    control: httpx.AsyncClient
    seen: dict[str, Any] = field(default_factory=dict)
    tag: str = f"sdk1-{os.getpid()}"  # one server serves several parts

    async def step(self, name: str, deed: Callable[[], Awaitable[Any]]) -> None:
        """Do something and write down what came of it."""
        try:
            self.seen[name] = await deed()
        except McpError as error:
            reason = (error.error.data or {}).get("reason") if isinstance(error.error.data, dict) else None
            self.seen[name] = {"code": error.error.code, "reason": reason}

    async def tool(self, name: str, arguments: dict[str, Any] | None = None, **more: Any) -> Any:
        """A tool's text; `error: ` before it when the tool failed."""
        result = await self.session.call_tool(name, arguments or {}, **more)
        text = " ".join(part.text for part in result.content if isinstance(part, types.TextContent))
        return f"error: {text}" if result.isError else text

    async def log(self) -> list[dict[str, Any]]:
        """What the server saw."""
        entries: list[dict[str, Any]] = (await self.control.get("/seen")).json()
        return entries

    async def until(self, condition: Callable[[], bool]) -> bool:
        while not condition():
            await asyncio.sleep(0.02)
        return True


async def play_open(play: Play) -> None:
    """Everything is allowed."""
    session, ears = play.session, play.ears
    await play.step("tools", lambda: _names(session.list_tools(), "tools"))
    await play.step("echo", lambda: play.tool("echo", {"text": "hällo"}))
    await play.step("weather", lambda: _structured(session))
    await play.step("fail", lambda: play.tool("fail", {"text": "broken"}))
    await play.step("bad-arguments", lambda: play.tool("echo", {"text": 7}))
    await play.step("progress", lambda: _progress(play))
    await play.step("resources", lambda: _names(session.list_resources(), "resources"))
    await play.step("templates", lambda: _names(session.list_resource_templates(), "resourceTemplates"))
    await play.step("read", lambda: _read(session, "note://by/anna"))
    await play.step("subscribe", lambda: _subscribe(play))
    await play.step("prompts", lambda: _names(session.list_prompts(), "prompts"))
    await play.step("prompt", lambda: _prompt(session))
    await play.step("complete", lambda: _complete(session, TEMPLATE, "name", "an"))
    await play.step("level", lambda: _empty(session.set_logging_level("warning")))
    await play.step("log", lambda: _log(play))
    await play.step("greet", lambda: play.tool("greet", {"text": "you"}))
    await play.step("think", lambda: play.tool("think", {"text": "you"}))
    await play.step("places", lambda: play.tool("places"))
    await play.step("ping", lambda: _empty(session.send_ping()))
    await play.step("ping-back", lambda: play.tool("ping_back"))
    await play.step("cancel", lambda: _cancel(play))
    await play.step("resumed", lambda: play.tool("away", {"text": "back"}))
    await play.step("changed", lambda: _changed(play))
    play.seen["asked"] = ears.asked


async def play_shut(play: Play) -> None:
    """Most of it is denied."""
    session = play.session
    await play.step("tools", lambda: _names(session.list_tools(), "tools"))
    await play.step("tools/call", lambda: play.tool("weather", {"city": "Oslo"}))
    await play.step("prompts/get", lambda: session.get_prompt("secret"))
    await play.step("resources/read", lambda: _read(session, "note://private"))
    await play.step("completion/complete", lambda: _complete(session, SECRET, "name", ""))
    await play.step("resources/subscribe", lambda: session.subscribe_resource(AnyUrl("note://private")))
    await play.step("resources/templates/list", lambda: _names(session.list_resource_templates(), "resourceTemplates"))
    await play.step("logging/setLevel", lambda: session.set_logging_level("info"))
    for tool in ("greet", "think", "places"):
        await play.step(tool, lambda tool=tool: play.tool(tool, {} if tool == "places" else {"text": "you"}))
    await play.step("echo", lambda: play.tool("echo", {"text": "on we go"}))
    play.seen["asked"] = play.ears.asked


async def play_made_up(play: Play) -> None:
    """A tool that there is not."""
    await play.step("nope", lambda: play.tool("nope"))
    await play.step("echo", lambda: play.tool("echo", {"text": "on we go"}))


async def _names(listing: Awaitable[Any], member: str) -> list[str]:
    return [entry.name for entry in getattr(await listing, member)]


async def _structured(session: ClientSession) -> Any:
    return (await session.call_tool("weather", {"city": "Oslo"})).structuredContent


async def _progress(play: Play) -> Any:
    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        play.ears.progress.append(progress)
        if progress == 1:  # the tool waits until this report has arrived
            await play.control.post("/open/sdk1")

    text = await play.tool("steps", {"gate": "sdk1"}, progress_callback=on_progress)
    return [text, play.ears.progress]


async def _read(session: ClientSession, uri: str) -> str:
    (content,) = (await session.read_resource(AnyUrl(uri))).contents
    assert isinstance(content, types.TextResourceContents)
    return content.text


async def _subscribe(play: Play) -> Any:
    await play.session.subscribe_resource(AnyUrl("note://welcome"))
    await play.tool("touch", {"uri": "note://welcome"})
    await play.until(lambda: bool(play.ears.heard(types.ResourceUpdatedNotification)))
    await play.session.unsubscribe_resource(AnyUrl("note://welcome"))
    return [str(heard.params.uri) for heard in play.ears.heard(types.ResourceUpdatedNotification)]


async def _prompt(session: ClientSession) -> str:
    content = (await session.get_prompt("review", {"code": "x = 1"})).messages[0].content
    assert isinstance(content, types.TextContent)
    return content.text


async def _complete(session: ClientSession, ref: Any, name: str, value: str) -> list[str]:
    return (await session.complete(ref, {"name": name, "value": value})).completion.values


async def _empty(answer: Awaitable[types.EmptyResult]) -> str:
    await answer
    return "ok"


async def _log(play: Play) -> Any:
    await play.tool("whisper", {"text": "quiet"})
    await play.until(lambda: any(level == "warning" for level, _ in play.ears.logs))
    return play.ears.logs


async def _cancel(play: Play) -> bool:
    """This SDK sends no notification of its own when a caller gives up, so the client does."""
    call = asyncio.create_task(play.session.call_tool("slow", {"tag": play.tag}))
    while {"event": "slow-begun", "tag": play.tag} not in await play.log():
        await asyncio.sleep(0.02)
    params = types.CancelledNotificationParams(requestId=play.session._request_id - 1)
    await play.session.send_notification(types.ClientNotification(types.CancelledNotification(params=params)))
    while {"event": "slow-cancelled", "tag": play.tag} not in await play.log():
        await asyncio.sleep(0.02)
    # A call that is cancelled here at the moment of its answer ends this SDK's session with ClosedResourceError.
    with suppress(McpError, TimeoutError):  # over HTTP+SSE it has no answer
        await asyncio.wait_for(call, 2)
    return True


async def _changed(play: Play) -> Any:
    name = f"grown-{play.tag}"
    await play.tool("grow", {"name": name})
    await play.until(lambda: bool(play.ears.heard(types.ToolListChangedNotification)))
    return await play.tool(name, {"text": "t"})


def transport(url: str, http: httpx.AsyncClient) -> Any:
    """Streamable HTTP, or HTTP+SSE where the address says so."""
    return sse_client(url) if url.endswith("/sse") else streamable_http_client(url, http_client=http)


def _listens(entry: dict[str, Any]) -> bool:
    """Whether this is the session's stream, as the server's era has it."""
    return entry.get("verb") == "GET" or entry.get("message", {}).get("method") == "subscriptions/listen"


@asynccontextmanager
async def connected(url: str, upstream: str) -> AsyncIterator[Play]:
    """A client that has agreed on a revision and opened its session's stream."""
    ears = Ears()
    async with (
        httpx.AsyncClient(base_url=upstream) as control,
        httpx.AsyncClient(timeout=PATIENCE_S) as http,
        transport(url, http) as streams,
        ClientSession(
            streams[0],
            streams[1],
            logging_callback=ears.on_log,
            message_handler=ears.on_message,
            elicitation_callback=ears.on_elicit,
            sampling_callback=ears.on_sample,
            list_roots_callback=ears.on_roots,
        ) as session,
    ):
        play = Play(session, ears, control)
        begun = len(await play.log())
        play.seen["version"] = (await session.initialize()).protocolVersion
        while not any(_listens(entry) for entry in (await play.log())[begun:]):
            await asyncio.sleep(0.02)
        yield play


async def main(url: str, upstream: str, part: str) -> None:
    seen: dict[str, Any] = {}
    try:
        async with asyncio.timeout(PATIENCE_S), connected(url, upstream) as play:
            seen = play.seen
            await {"open": play_open, "shut": play_shut, "made-up": play_made_up}[part](play)
    except Exception as error:  # what broke the client is the finding
        seen["broken"] = repr(error)
    print(json.dumps(seen))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
