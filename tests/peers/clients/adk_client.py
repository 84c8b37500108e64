"""Google ADK: a runner with an MCP toolset and a model of ours, which calls one tool and repeats what it reads."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.runners import InMemoryRunner
from google.adk.tools.mcp_tool import McpToolset, StreamableHTTPConnectionParams
from google.genai import types
from play import OnProgress, Told, nothing, run
from scripted import Scripted


class Agentic:
    def __init__(self, url: str) -> None:
        self._on_progress: OnProgress = nothing
        connection = StreamableHTTPConnectionParams(url=url)
        self.toolset = McpToolset(connection_params=connection, progress_callback=self._heard)
        self._model = Scripted()
        agent = LlmAgent(name="planner", model=self._model, tools=[self.toolset])
        self._runner = InMemoryRunner(agent=agent, app_name="clients")

    async def _heard(self, progress: float, total: float | None, message: str | None) -> None:
        self._on_progress(progress, total)

    async def names(self) -> list[str]:
        return [tool.name for tool in await self.toolset.get_tools()]

    async def call(self, tool: str, arguments: dict[str, Any], on_progress: OnProgress) -> Told:
        self._on_progress = on_progress
        self._model.function, self._model.arguments = tool, arguments
        session = await self._runner.session_service.create_session(app_name="clients", user_id="u")
        message = types.Content(role="user", parts=[types.Part(text="go")])
        read: dict[str, Any] = {}
        async for event in self._runner.run_async(user_id="u", session_id=session.id, new_message=message):
            if event.is_final_response() and event.content and event.content.parts:
                read = json.loads(event.content.parts[0].text or "{}")
        if "content" not in read:
            return Told(json.dumps(read), is_error=True)
        return Told(" ".join(part.get("text", "") for part in read["content"]), bool(read.get("isError")))


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Agentic]:
    agentic = Agentic(url)
    yield agentic
    await agentic.toolset.close()


run(opened)
