"""What does a client of the official A2A SDK, 1.x, see of the agent whose card is under this URL?

Plays every operation in one binding and version, and says what each step came to: a value, or the name of the error
that the SDK raised. It decides nothing: `test_a2a_clients.py` does. `a2a03_client.py` is its fellow on the 0.3 line.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

import a2a.types as t
import grpc.aio
import httpx
from a2a.client import A2ACardResolver, Client, ClientCallContext, ClientConfig, ClientFactory
from a2a.utils.errors import A2AError

PATIENCE_S = 40.0
UNDER_WAY = ("auth_required", "submitted", "working")
HOOK = "http://127.0.0.1:9/a2a"


@dataclass
class Play:
    """One caller at work, who streams or does not; `seen` is what each step came to."""

    streaming: Client
    plain: Client
    context: ClientCallContext
    seen: dict[str, Any] = field(default_factory=dict)

    async def step(self, name: str, deed: Awaitable[Any], shown: Callable[[Any], Any] = lambda came: came) -> None:
        """Do something and write down what came of it."""
        try:
            self.seen[name] = shown(await deed)
        except (A2AError, NotImplementedError) as error:
            self.seen[name] = type(error).__name__

    async def events(
        self, client: Client, text: str, wait: bool = True, **more: Any
    ) -> AsyncIterator[t.StreamResponse]:
        """Send, and everything that comes back; who does not wait hears of the task at once."""
        message = t.Message(message_id=str(uuid4()), role=t.Role.ROLE_USER, parts=[t.Part(text=text)], **more)
        request = t.SendMessageRequest(message=message)
        request.configuration.return_immediately = not wait
        async for event in client.send_message(request, context=self.context):
            yield event

    async def send(self, text: str, wait: bool = True, **more: Any) -> t.StreamResponse:
        """Send; a task or a message."""
        [answer] = [event async for event in self.events(self.plain, text, wait, **more)]
        return answer

    async def stream(self, text: str) -> list[str]:
        """Send, and read the stream to its end."""
        return [told(event) async for event in self.events(self.streaming, text)]


async def play_operations(play: Play) -> None:
    """Each operation at least once."""
    call: Mapping[str, Any] = {"context": play.context}
    client, step, task = play.streaming, play.step, await _begun(play, "forever:")
    await step("send", play.send("echo: hällo"), told)
    await step("message", play.send("reply: hi"), told)
    await step("stream", play.stream("chunks: one two three"))
    await step("conversation", _conversation(play))
    await step("get", client.get_task(t.GetTaskRequest(id=task.id), **call), state)
    listed = client.list_tasks(t.ListTasksRequest(context_id=task.context_id), **call)
    await step("list", listed, lambda listed: [one.id == task.id for one in listed.tasks])
    which = {"task_id": task.id, "id": "hook"}
    config = t.TaskPushNotificationConfig(**which, url=HOOK, token="opaque")
    await step("push set", client.create_task_push_notification_config(config, **call), hook)
    wanted = t.GetTaskPushNotificationConfigRequest(**which)
    await step("push get", client.get_task_push_notification_config(wanted, **call), hook)
    every = t.ListTaskPushNotificationConfigsRequest(task_id=task.id)
    await step("push list", client.list_task_push_notification_configs(every, **call), names)
    unwanted = t.DeleteTaskPushNotificationConfigRequest(**which)
    await step("push delete", client.delete_task_push_notification_config(unwanted, **call))
    await step("push gone", client.list_task_push_notification_configs(every, **call), names)
    for name in ("cancel", "cancel again"):
        await step(name, client.cancel_task(t.CancelTaskRequest(id=task.id), **call), state)
    await step("resubscribe", _resubscribed(play))
    await step("unknown", client.get_task(t.GetTaskRequest(id=str(uuid4())), **call), state)
    # Whether it is the card with the skill that the public one does not tell of.
    card = client.get_extended_agent_card(t.GetExtendedAgentCardRequest(), **call)
    await step("card", card, lambda card: "secret" in [skill.id for skill in card.skills])


async def _begun(play: Play, text: str) -> t.Task:
    """A task that works; a made-up one for a caller who may not begin any."""
    try:
        return (await play.send(text, wait=False)).task
    except A2AError:
        return t.Task(id=str(uuid4()), context_id=str(uuid4()))


def hook(config: t.TaskPushNotificationConfig) -> str:
    return f"{config.id} {config.url}"


def names(listed: t.ListTaskPushNotificationConfigsResponse) -> list[str]:
    return [one.id for one in listed.configs]


async def _conversation(play: Play) -> list[str]:
    """A task that asks, and is answered."""
    asked = await play.send("ask: name")
    answered = await play.send("echo: Bob", task_id=asked.task.id, context_id=asked.task.context_id)
    return [told(asked), told(answered)]


async def _resubscribed(play: Play) -> list[str]:
    """A second stream of a task: that it tells of the work, and how it ends once the task is cancelled."""
    task, heard = await _begun(play, "ticks:"), list[str]()
    async for event in play.streaming.subscribe(t.SubscribeToTaskRequest(id=task.id), context=play.context):
        kind = told(event).partition(" tick")[0].removesuffix(": its caller cancelled it")
        if kind == "working:" and kind not in heard:
            await play.plain.cancel_task(t.CancelTaskRequest(id=task.id), context=play.context)
        heard.append(kind)
    return sorted({*heard} & {"working:", "canceled"})


def state(task: t.Task) -> str:
    """A task's state, and what it says there."""
    said = "".join(part.text for part in task.status.message.parts)
    name = t.TaskState.Name(task.status.state).removeprefix("TASK_STATE_").lower()
    return f"{name}: {said}" if said else name


def output(artifacts: Iterable[t.Artifact]) -> str:
    """The text of all of them."""
    return "".join(part.text for artifact in artifacts for part in artifact.parts)


def told(event: t.StreamResponse) -> str:
    """One event in a few words."""
    match event.WhichOneof("payload"):
        case "task":
            return f"task {state(event.task)}"
        case "message":
            return f"message {event.message.parts[0].text}"
        case "status_update":
            return state(t.Task(status=event.status_update.status))
        case _:
            update = event.artifact_update
            return f"artifact {update.artifact.parts[0].text}{'.' if update.last_chunk else ''}"


async def play_briefly(play: Play, text: str) -> None:
    """Say this, and hear what comes back: once whole, once as it comes."""
    whole = play.send(text)
    await play.step("send", whole, lambda answer: f"{state(answer.task)}: {output(answer.task.artifacts)}")
    await play.step("stream", _in_pieces(play, text))


async def _in_pieces(play: Play, text: str) -> str:
    """What is there at the stream's beginning, and then every piece."""
    heard = [event async for event in play.events(play.streaming, text)]
    pieces = [event.artifact_update.artifact for event in heard if event.HasField("artifact_update")]
    return f"{told(heard[-1])}: {output([*heard[0].task.artifacts, *pieces])}"


async def play_approvals(play: Play) -> None:
    """Messages that a person must approve, who approves those that say `yes` and refuses those that say `no`. Each is
    tagged, so that it is like no other."""
    tag = uuid4().hex[:8]
    call: Mapping[str, Any] = {"context": play.context}

    async def ends(text: str) -> list[str]:
        task = (await play.send(f"echo: {text} {tag}")).task
        seen, last = [named_state(task)], task
        while named_state(last) in UNDER_WAY:
            await asyncio.sleep(0.05)
            last = await play.plain.get_task(t.GetTaskRequest(id=task.id), **call)
            assert last.id == task.id
        return [*seen, state(last).removesuffix(f" {tag}")]

    async def cancelled() -> list[str]:
        task = (await play.send(f"echo: wait {tag}")).task
        ended = await play.plain.cancel_task(t.CancelTaskRequest(id=task.id), **call)
        return [named_state(task), named_state(ended)]

    async def streamed(text: str) -> list[str]:
        events = [event async for event in play.events(play.streaming, f"{text} {tag}")]
        ids = {_id_of(event) for event in events}
        return [*dict.fromkeys(filter(None, map(_step_of, events))), str(len(ids))]

    async def subscribed() -> list[str]:
        task = (await play.send(f"chunks: yes later {tag}", wait=False)).task
        heard = play.streaming.subscribe(t.SubscribeToTaskRequest(id=task.id), **call)
        return [*dict.fromkeys(filter(None, [_step_of(event) async for event in heard]))]

    await play.step("approved", ends("yes"))
    await play.step("refused", ends("no"))
    await play.step("cancelled", cancelled())
    await play.step("stream", streamed("chunks: yes two three"))
    await play.step("refused stream", streamed("chunks: no"))
    await play.step("subscribed", subscribed())


def named_state(task: t.Task) -> str:
    return t.TaskState.Name(task.status.state).removeprefix("TASK_STATE_").lower()


def _id_of(event: t.StreamResponse) -> str:
    if event.HasField("task"):
        return event.task.id
    return event.status_update.task_id or event.artifact_update.task_id


def _step_of(event: t.StreamResponse) -> str:
    """The state that an event tells, "" for none."""
    if event.HasField("task"):
        return named_state(event.task)
    return named_state(t.Task(status=event.status_update.status)) if event.HasField("status_update") else ""


async def play(
    where: str | t.AgentCard,
    binding: str,
    version: str,
    headers: Mapping[str, str] | None = None,
    deeds: Callable[[Play], Awaitable[None]] = play_operations,
) -> dict[str, Any]:
    """What a caller with these headers sees, who takes the interface of this binding and version: of a card, or of the
    card that is found under a URL."""
    async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE_S):
        ours = httpx.AsyncClient(headers=headers, trust_env=False, verify=False, timeout=PATIENCE_S)
        http = await stack.enter_async_context(ours)
        card = where if isinstance(where, t.AgentCard) else await A2ACardResolver(http, where).get_agent_card()
        spoken = [one for one in card.supported_interfaces if one.protocol_binding == binding]
        of_this = [one for one in spoken if one.protocol_version.startswith(version)]
        assert of_this, card
        del card.supported_interfaces[:]
        card.supported_interfaces.extend(of_this)

        def channel(address: str) -> grpc.aio.Channel:
            return grpc.aio.insecure_channel(address.removeprefix("http://"))

        config = ClientConfig(httpx_client=http, grpc_channel_factory=channel, supported_protocol_bindings=[binding])
        clients = []
        for streaming in (True, False):
            factory = ClientFactory(replace(config, streaming=streaming))
            clients.append(await stack.enter_async_context(factory.create(card)))
        on_grpc = {name.lower(): value for name, value in (headers or {}).items()} if binding == "GRPC" else None
        playing = Play(*clients, ClientCallContext(service_parameters=on_grpc, timeout=PATIENCE_S))
        await deeds(playing)
        return playing.seen
