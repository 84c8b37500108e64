"""Google ADK's RemoteA2aAgent in a runner: what it hears is what its user and its other agents read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from google.adk.agents.remote_a2a_agent import RemoteA2aAgent
from google.adk.runners import InMemoryRunner
from google.genai import types
from play import OnProgress, Told, run
from talk import addressed


class Remote:
    def __init__(self, url: str) -> None:
        self._url = url

    def _agent(self, name: str) -> RemoteA2aAgent:
        return RemoteA2aAgent(name=name, agent_card=f"{self._url}/{name}/.well-known/agent-card.json")

    async def names(self) -> list[str]:
        """It has no list of its own: it reads the card at the first message."""
        agent = self._agent("player")
        await self._said(agent, "echo: hello", lambda progress, total: None)
        card = agent._agent_card
        return [skill.id for skill in card.skills] if card else []

    async def call(self, tool: str, arguments: dict[str, Any], on_progress: OnProgress) -> Told:
        name, text = addressed(tool, arguments)
        return await self._said(self._agent(name), text, on_progress)

    async def _said(self, agent: RemoteA2aAgent, text: str, on_progress: OnProgress) -> Told:
        runner = InMemoryRunner(agent=agent, app_name="clients")
        session = await runner.session_service.create_session(app_name="clients", user_id="u")
        message = types.Content(role="user", parts=[types.Part(text=text)])
        heard = Told("")
        async for event in runner.run_async(user_id="u", session_id=session.id, new_message=message):
            said = "".join(part.text or "" for part in (event.content.parts or [])) if event.content else ""
            if event.error_message:
                heard = Told(event.error_message, is_error=True)
            elif said:
                on_progress(1, None)
                heard = Told(said)
        return heard


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Remote]:
    yield Remote(url)


run(opened)
