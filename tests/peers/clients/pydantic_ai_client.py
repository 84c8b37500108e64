"""Pydantic AI: an agent with an MCP toolset and a model of ours, which calls one tool and repeats what it reads."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from play import OnProgress, Told, nothing, run
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelMessage, ModelResponse, RetryPromptPart, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel


class Agentic:
    def __init__(self, url: str) -> None:
        self._on_progress: OnProgress = nothing
        self.toolset: MCPToolset[None] = MCPToolset(url, progress_handler=self._heard)

    async def _heard(self, progress: float, total: float | None, message: str | None) -> None:
        self._on_progress(progress, total)

    async def names(self) -> list[str]:
        return [tool.name for tool in await self.toolset.list_tools()]

    async def call(self, tool: str, arguments: dict[str, Any], on_progress: OnProgress) -> Told:
        self._on_progress = on_progress
        read: list[Told] = []

        def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            for part in messages[-1].parts:
                if isinstance(part, ToolReturnPart):
                    read.append(Told(part.model_response_str()))
                if isinstance(part, RetryPromptPart):
                    read.append(Told(part.model_response(), is_error=True))
            return ModelResponse(parts=[TextPart("done") if read else ToolCallPart(tool, arguments)])

        await Agent(FunctionModel(model), toolsets=[self.toolset]).run("go")
        return read[-1]


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Agentic]:
    agentic = Agentic(url)
    async with agentic.toolset:
        yield agentic


run(opened)
