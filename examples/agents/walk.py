"""Calls the three agents of this folder with the official A2A client, and prints what comes back.

    python walk.py [--editor URL] [--intern URL]

A sidecar must serve this folder: `sidecar serve`. Each address is that of one caller (`local:` in sidecar.yaml).
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from uuid import uuid4

import httpx
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.types import CancelTaskRequest, Message, Part, Role, SendMessageRequest, StreamResponse, Task, TaskState
from a2a.utils.errors import A2AError

TEXT = "Launch is on Tuesday. The logo is too small. Launch needs a logo and a page. Nobody knows why it rains."
WITHIN_S = 60


class Caller:
    """One NHI, at its own address of the sidecar."""

    def __init__(self, url: str, stack: AsyncExitStack) -> None:
        self.url = url
        self._stack = stack

    async def agent(self, name: str) -> Client:
        """A client of one agent, which finds its way by the agent's card."""
        http = await self._stack.enter_async_context(httpx.AsyncClient(trust_env=False, timeout=WITHIN_S))
        card = await A2ACardResolver(http, f"{self.url}/agents/{name}").get_agent_card()
        return await self._stack.enter_async_context(ClientFactory(ClientConfig(httpx_client=http)).create(card))


async def events(client: Client, text: str, wait: bool = True, **more: str) -> AsyncIterator[StreamResponse]:
    """Say something, and whatever comes back."""
    message = Message(message_id=str(uuid4()), role=Role.ROLE_USER, parts=[Part(text=text)], **more)
    request = SendMessageRequest(message=message)
    request.configuration.return_immediately = not wait
    async for event in client.send_message(request):
        yield event


async def ask(client: Client, text: str, **more: str) -> tuple[str, str, str]:
    """Say something: what came back as text, and the task and the conversation that it is about."""
    said, task, context = [], "", ""
    try:
        async for event in events(client, text, **more):
            about = event.task if event.HasField("task") else None
            update = event.status_update if event.HasField("status_update") else event.artifact_update
            task, context = (about.id, about.context_id) if about else (update.task_id, update.context_id)
            if event.HasField("artifact_update"):
                said += [part.text for part in event.artifact_update.artifact.parts]
            elif event.HasField("status_update") and event.status_update.status.state != TaskState.TASK_STATE_WORKING:
                said += [part.text for part in event.status_update.status.message.parts]
    except A2AError as error:
        return f"error: {str(error).splitlines()[0]}", task, context
    return "".join(said).strip(), task, context


async def begun(client: Client, text: str) -> Task:
    """A task that has just begun; nobody waits for it."""
    async for event in events(client, text, wait=False):
        if event.HasField("task"):
            return event.task
    raise SystemExit("the agent began no task")


async def walk(editor: Caller, intern: Caller) -> None:
    """Called, asked again and again, denied, limited, cancelled."""
    summariser = await editor.agent("summariser")
    print("the editor asks the summariser:", (await ask(summariser, TEXT))[0])
    print("the editor asks the linter:", (await ask(await editor.agent("linter"), "a line\nTODO: another\n"))[0])

    travel = await editor.agent("travel")
    heard, task, context = await ask(travel, "plan a journey")
    print("the editor asks for a journey:", heard)
    for said in ("Ulm", "2"):
        heard, task, context = await ask(travel, said, task_id=task, context_id=context)
        print(f"the editor says {said}:", heard.replace("\n", " "))

    print("the intern asks the linter:", (await ask(await intern.agent("linter"), "x"))[0])
    allowed = await intern.agent("summariser")
    for number in range(1, 5):
        print(f"the intern asks the summariser, {number}:", (await ask(allowed, "One. Two."))[0])

    task = await begun(summariser, TEXT * 100)
    try:
        ended = await summariser.cancel_task(CancelTaskRequest(id=task.id))
        print("the editor cancels:", TaskState.Name(ended.status.state))
    except A2AError:
        print("the editor cancels: it was faster")


async def main() -> None:
    """Both callers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--editor", default="http://127.0.0.1:8070")
    parser.add_argument("--intern", default="http://127.0.0.1:8090")
    options = parser.parse_args()
    async with asyncio.timeout(WITHIN_S), AsyncExitStack() as stack:
        await walk(Caller(options.editor, stack), Caller(options.intern, stack))


if __name__ == "__main__":
    asyncio.run(main())
