"""How does a client of the 2.x SDK listen, and what does it answer when it is asked?"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import mcp_types as types
from mcp import Client

CALL_WITHIN_S = 60.0


@dataclass
class Ears:
    """What one client heard. `word` is what it answers to every question."""

    word: str = "please"
    logs: list[tuple[str, Any]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    notifications: list[Any] = field(default_factory=list)
    progress: list[tuple[float, str | None]] = field(default_factory=list)

    async def on_log(self, params: types.LoggingMessageNotificationParams) -> None:
        self.logs.append((params.level, params.data))

    async def on_message(self, message: Any) -> None:
        self.notifications.append(message)

    async def on_progress(self, progress: float, total: float | None, message: str | None) -> None:
        self.progress.append((progress, message))

    async def on_elicit(self, context: Any, params: Any) -> types.ElicitResult:
        self.asked.append(params.message)
        return types.ElicitResult(action="accept", content={"word": self.word})

    async def on_sample(self, context: Any, params: Any) -> types.CreateMessageResult:
        self.asked.append(params.messages[0].content.text)
        content = types.TextContent(type="text", text=self.word)
        return types.CreateMessageResult(role="assistant", model="none", content=content)

    async def on_roots(self, context: Any) -> types.ListRootsResult:
        self.asked.append("roots")
        return types.ListRootsResult(roots=[types.Root(uri="file:///work")])

    def heard(self, kind: type) -> list[Any]:
        """The notifications of one kind."""
        return [message for message in self.notifications if isinstance(message, kind)]

    def count(self, kind: type) -> int:
        """How many of them."""
        return len(self.heard(kind))


@asynccontextmanager
async def client(server: Any, mode: str, ears: Ears | None = None, **more: Any) -> AsyncIterator[Client]:
    """A client of the official 2.x SDK, in one era, with ears."""
    ears = ears or Ears()
    async with (
        asyncio.timeout(CALL_WITHIN_S),
        Client(
            server,
            mode=mode,
            cache=None,
            logging_callback=ears.on_log,
            message_handler=ears.on_message,
            elicitation_callback=ears.on_elicit,
            sampling_callback=ears.on_sample,
            list_roots_callback=ears.on_roots,
            **more,
        ) as connected,
    ):
        yield connected


def text_of(result: Any) -> str:
    """The text of a tool's result."""
    return " ".join(part.text for part in result.content)


# What each tool of `everything.py` that asks its client is called with, asks, and answers.
ASKING: dict[str, tuple[dict[str, str], str, str]] = {
    "greet": ({"text": "you"}, "a word for you", "you please"),
    "think": ({"text": "you"}, "you", "you please"),
    "places": ({}, "roots", "file:///work"),
}


async def check_questions(peer: Client, ears: Ears) -> None:
    """The server asks three things of its client, and hears the answers."""
    for tool, (arguments, _, answered) in ASKING.items():
        assert text_of(await peer.call_tool(tool, arguments)) == answered
    assert ears.asked == [asked for _, asked, _ in ASKING.values()]


async def check_content(peer: Client) -> None:
    """What `everything.py` has is listed, called, read and completed."""
    assert {"echo", "weather", "fail"} <= {tool.name for tool in (await peer.list_tools()).tools}
    assert text_of(await peer.call_tool("echo", {"text": "hällo\n"})) == "hällo\n"
    weather = await peer.call_tool("weather", {"city": "Oslo"})
    assert weather.structured_content == {"city": "Oslo", "celsius": 21}
    failed = await peer.call_tool("fail", {"text": "broken"})
    assert failed.is_error and "broken" in text_of(failed)
    assert {str(one.uri) for one in (await peer.list_resources()).resources} == {"note://welcome", "note://private"}
    templates = (await peer.list_resource_templates()).resource_templates
    assert [template.uri_template for template in templates] == ["note://by/{name}"]
    for uri, text in (("note://welcome", "welcome"), ("note://by/anna", "by anna")):
        assert getattr((await peer.read_resource(uri)).contents[0], "text", "") == text
    assert [prompt.name for prompt in (await peer.list_prompts()).prompts] == ["review", "secret"]
    got = await peer.get_prompt("review", {"code": "x = 1"})
    assert getattr(got.messages[0].content, "text", "") == "please review x = 1"
    prompt = types.PromptReference(type="ref/prompt", name="review")
    assert (await peer.complete(prompt, {"name": "code", "value": "py"})).completion.values == ["python"]
    template = types.ResourceTemplateReference(type="ref/resource", uri="note://by/{name}")
    assert (await peer.complete(template, {"name": "name", "value": "an"})).completion.values == ["anna", "anton"]
