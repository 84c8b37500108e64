"""The official Python SDK for A2A."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import a2a.types as t
import httpx
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from play import OnProgress, Told, run
from talk import addressed


class Official:
    def __init__(self, url: str, http: httpx.AsyncClient) -> None:
        self._url, self._http = url, http

    async def _agent(self, name: str) -> tuple[Client, t.AgentCard]:
        card = await A2ACardResolver(self._http, f"{self._url}/{name}").get_agent_card()
        return ClientFactory(ClientConfig(httpx_client=self._http)).create(card), card

    async def names(self) -> list[str]:
        return [skill.id for skill in (await self._agent("player"))[1].skills]

    async def call(self, tool: str, arguments: dict[str, Any], on_progress: OnProgress) -> Told:
        name, text = addressed(tool, arguments)
        client, _ = await self._agent(name)
        message = t.Message(message_id=str(uuid4()), role=t.Role.ROLE_USER, parts=[t.Part(text=text)])
        task_id, heard = "", ""
        try:
            async for event in client.send_message(t.SendMessageRequest(message=message)):
                task_id = event.task.id or event.status_update.task_id or task_id
                if event.status_update.status.state == t.TaskState.TASK_STATE_WORKING:
                    on_progress(1, None)
                heard = _text(event) or heard
        except asyncio.CancelledError:
            await client.cancel_task(t.CancelTaskRequest(id=task_id))
            raise
        return Told(heard)


def _text(event: t.StreamResponse) -> str:
    """What the agent says in this event."""
    message = event.status_update.status.message if event.HasField("status_update") else event.task.status.message
    return "".join(part.text for part in (event.message.parts or message.parts))


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Official]:
    async with httpx.AsyncClient(timeout=30) as http:
        yield Official(url, http)


run(opened)
