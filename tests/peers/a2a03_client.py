"""What does a client of the official A2A SDK, 0.3, see of the agent whose card is under this URL?

`python a2a03_client.py URL BINDING [HEADERS [TEXT]]` plays what `a2a_client.py` plays, as far as this line has it,
under an interpreter that has `a2a-sdk` 0.3, and prints what each step came to as one JSON object. HEADERS is JSON too.
With TEXT it says just this, to each agent under the URLs, which a comma parts, and prints a list; the text `approvals`
stands for messages that a person must approve. It decides nothing: the tests do.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

import a2a.types as t
import grpc.aio
import httpx
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.client.errors import A2AClientError, A2AClientHTTPError, A2AClientJSONRPCError

PATIENCE_S = 40.0
HOOK = "http://127.0.0.1:9/a2a"


@dataclass
class Play:
    """One caller at work, who streams, waits, or does neither; `seen` is what each step came to."""

    streaming: Client
    plain: Client
    hasty: Client
    seen: dict[str, Any] = field(default_factory=dict)

    async def step(self, name: str, deed: Awaitable[Any], shown: Callable[[Any], Any] = lambda came: came) -> None:
        """Do something and write down what came of it."""
        try:
            self.seen[name] = shown(await deed)
        except A2AClientJSONRPCError as error:
            self.seen[name] = error.error.code
        except A2AClientHTTPError as error:
            self.seen[name] = error.status_code
        except A2AClientError as error:
            self.seen[name] = type(error).__name__
        except grpc.aio.AioRpcError as error:
            self.seen[name] = error.code().name

    async def send(self, client: Client, text: str, **more: Any) -> Any:
        """Send; a task or a message."""
        [answer] = [event async for event in events(client, text, **more)]
        return answer if isinstance(answer, t.Message) else answer[0]

    async def stream(self, text: str) -> list[str]:
        """Send, and read the stream to its end."""
        return [told(event) async for event in events(self.streaming, text)]


async def events(client: Client, text: str, **more: Any) -> AsyncIterator[Any]:
    """Send, and everything that comes back."""
    part = t.Part(root=t.TextPart(text=text))
    message = t.Message(message_id=str(uuid4()), role=t.Role.user, parts=[part], **more)
    async for event in client.send_message(message):
        yield event


async def play_operations(play: Play) -> None:
    """Each operation at least once."""
    client, step, task = play.plain, play.step, await _begun(play, "forever:")
    await step("send", play.send(client, "echo: hällo"), told)
    await step("message", play.send(client, "reply: hi"), told)
    await step("stream", play.stream("chunks: one two three"))
    await step("conversation", _conversation(play))
    await step("get", client.get_task(t.TaskQueryParams(id=task.id)), state)
    config = t.PushNotificationConfig(id="hook", url=HOOK, token="opaque")
    setting = t.TaskPushNotificationConfig(task_id=task.id, push_notification_config=config)
    await step("push set", client.set_task_callback(setting), hook)
    wanted = t.GetTaskPushNotificationConfigParams(id=task.id, push_notification_config_id="hook")
    await step("push get", client.get_task_callback(wanted), hook)
    for name in ("cancel", "cancel again"):
        await step(name, client.cancel_task(t.TaskIdParams(id=task.id)), state)
    await step("resubscribe", _resubscribed(play))
    await step("unknown", client.get_task(t.TaskQueryParams(id=str(uuid4()))), state)
    # Whether it is the card with the skill that the public one does not tell of.
    await step("card", client.get_card(), lambda card: "secret" in [skill.id for skill in card.skills])


async def _begun(play: Play, text: str) -> t.Task:
    """A task that works; a made-up one for a caller who may not begin any."""
    try:
        task: t.Task = await play.send(play.hasty, text)
    except (A2AClientError, grpc.aio.AioRpcError):
        return t.Task(id=str(uuid4()), context_id=str(uuid4()), status=t.TaskStatus(state=t.TaskState.unknown))
    return task


async def _conversation(play: Play) -> list[str]:
    """A task that asks, and is answered."""
    asked = await play.send(play.plain, "ask: name")
    answered = await play.send(play.plain, "echo: Bob", task_id=asked.id, context_id=asked.context_id)
    return [told(asked), told(answered)]


def hook(config: t.TaskPushNotificationConfig) -> str:
    return f"{config.push_notification_config.id} {config.push_notification_config.url}"


async def _resubscribed(play: Play) -> list[str]:
    """A second stream of a task: that it tells of the work, and how it ends once the task is cancelled."""
    task, heard = await _begun(play, "ticks:"), list[str]()
    async for event in play.streaming.resubscribe(t.TaskIdParams(id=task.id)):
        kind = told(event).partition(" tick")[0].removesuffix(": its caller cancelled it")
        if kind == "working:" and kind not in heard:
            await play.plain.cancel_task(t.TaskIdParams(id=task.id))
        heard.append(kind)
    return sorted({*heard} & {"working:", "canceled"})


def state(task: Any) -> str:
    """A task's state, and what it says there."""
    said = "".join(part.root.text for part in task.status.message.parts) if task.status.message else ""
    name = task.status.state.value.replace("-", "_")
    return f"{name}: {said}" if said else name


def told(event: Any) -> str:
    """One event in a few words."""
    match event:
        case t.Message():
            return f"message {event.parts[0].root.text}"
        case t.Task() | (t.Task(), None):
            return f"task {state(event if isinstance(event, t.Task) else event[0])}"
        case (_, t.TaskStatusUpdateEvent() as update):
            return state(update)
        case (_, update):
            return f"artifact {update.artifact.parts[0].root.text}{'.' if update.last_chunk else ''}"


class _Once(grpc.aio.UnaryUnaryClientInterceptor):
    """Adds the caller's metadata to calls with one answer: this line of the SDK takes none."""

    def __init__(self, metadata: Sequence[tuple[str, str]]) -> None:
        self._metadata = metadata

    async def add(self, go_on: Any, details: Any, request: Any) -> Any:
        return await go_on(details._replace(metadata=[*(details.metadata or ()), *self._metadata]), request)

    intercept_unary_unary = add


class _Streamed(grpc.aio.UnaryStreamClientInterceptor):
    """The same for streams."""

    def __init__(self, metadata: Sequence[tuple[str, str]]) -> None:
        self._metadata = metadata

    intercept_unary_stream = _Once.add


async def play_briefly(play: Play, text: str) -> None:
    """Say this, and hear what comes back: once whole, once as it comes."""
    whole = play.send(play.plain, text)
    await play.step("send", whole, lambda answer: f"{state(answer)}: {output(answer.artifacts or [])}")
    await play.step("stream", _in_pieces(play, text))


async def _in_pieces(play: Play, text: str) -> str:
    """How the stream ends, and what the SDK made of its pieces."""
    *_, (task, update) = [event async for event in events(play.streaming, text)]
    return f"{told((task, update))}: {output(task.artifacts or [])}"


def output(artifacts: Sequence[t.Artifact]) -> str:
    """The text of all of them."""
    return "".join(part.root.text for artifact in artifacts for part in artifact.parts)


async def play_approvals(play: Play) -> None:
    """What `a2a_client.py` plays under this name."""
    tag = uuid4().hex[:8]

    async def ends(text: str) -> list[str]:
        task = await play.send(play.plain, f"echo: {text} {tag}")
        seen, last = [named_state(task)], task
        while named_state(last) in ("auth_required", "submitted", "working"):
            await asyncio.sleep(0.05)
            last = await play.plain.get_task(t.TaskQueryParams(id=task.id))
            assert last.id == task.id
        return [*seen, state(last).removesuffix(f" {tag}")]

    async def cancelled() -> list[str]:
        task = await play.send(play.plain, f"echo: wait {tag}")
        ended = await play.plain.cancel_task(t.TaskIdParams(id=task.id))
        return [named_state(task), named_state(ended)]

    async def streamed(text: str) -> list[str]:
        steps, ids = list[str](), set[str]()
        async for task, update in events(play.streaming, f"{text} {tag}"):  # the client changes its task
            steps.append(_step_of((task, update)))
            ids.add(task.id if update is None else update.task_id)
        return [*dict.fromkeys(filter(None, steps)), str(len(ids))]

    async def subscribed() -> list[str]:
        task = await play.send(play.hasty, f"chunks: yes later {tag}")
        heard = play.streaming.resubscribe(t.TaskIdParams(id=task.id))
        return [*dict.fromkeys(filter(None, [_step_of(event) async for event in heard]))]

    await play.step("approved", ends("yes"))
    await play.step("refused", ends("no"))
    await play.step("cancelled", cancelled())
    await play.step("stream", streamed("chunks: yes two three"))
    await play.step("refused stream", streamed("chunks: no"))
    await play.step("subscribed", subscribed())


def named_state(task: t.Task) -> str:
    return task.status.state.value.replace("-", "_")


def _step_of(event: tuple[t.Task, Any]) -> str:
    """The state that an event tells, "" for none."""
    task, update = event
    if isinstance(update, t.TaskArtifactUpdateEvent):
        return ""
    return named_state(task) if update is None else update.status.state.value.replace("-", "_")


async def seen_at(url: str, binding: str, headers: Mapping[str, str], text: str | None) -> dict[str, Any]:
    """What each step came to."""
    metadata = [(name.lower(), value) for name, value in headers.items()]

    def channel(address: str) -> grpc.aio.Channel:
        interceptors = [_Once(metadata), _Streamed(metadata)] if metadata else None
        return grpc.aio.insecure_channel(address.removeprefix("http://"), interceptors=interceptors)

    async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE_S):
        ours = httpx.AsyncClient(headers=headers, trust_env=False, verify=False, timeout=PATIENCE_S)
        http = await stack.enter_async_context(ours)
        card = await A2ACardResolver(http, url).get_agent_card()
        config = ClientConfig(httpx_client=http, grpc_channel_factory=channel, supported_transports=[binding])
        clients = []
        for streaming, polling in ((True, False), (False, False), (False, True)):
            factory = ClientFactory(replace(config, streaming=streaming, polling=polling))
            clients.append(await stack.enter_async_context(factory.create(card)))
        play = Play(*clients)
        if text == "approvals":
            await play_approvals(play)
        else:
            await (play_operations(play) if text is None else play_briefly(play, text))
        return play.seen


async def main(url: str, binding: str, headers: str = "{}", text: str | None = None) -> None:
    seen = [await seen_at(one, binding, json.loads(headers), text) for one in url.split(",")]
    print(json.dumps(seen[0] if text is None else seen))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
