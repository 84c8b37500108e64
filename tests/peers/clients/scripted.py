"""A model for Google ADK that calls what it is told to, and repeats what it reads."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.genai import types
from pydantic import Field


class Scripted(BaseLlm):
    """Calls one function, and answers with the function's response as JSON."""

    model: str = "scripted"
    function: str = ""
    arguments: dict[str, Any] = Field(default_factory=dict)

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        last = llm_request.contents[-1].parts or []
        read = [part.function_response.response for part in last if part.function_response]
        part = types.Part(text=json.dumps(read[0])) if read else types.Part.from_function_call(
            name=self.function, args=self.arguments
        )  # fmt: skip
        yield LlmResponse(content=types.Content(role="model", parts=[part]))
