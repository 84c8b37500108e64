"""What would a server do that the official suite finds nothing to say about?

The suite's scenarios name the tools, resources and prompts, and what each must answer; the official SDK does the rest.

    python -m tests.conformance.server http|sse|stdio

`http` and `sse` serve on a free port of loopback, which is printed, until standard input ends.
"""

import asyncio
import base64
import json
import os
import socket
import sys
import threading
from collections.abc import Mapping
from typing import Annotated, Any

import mcp_types as types
import uvicorn
from mcp.server.mcpserver import Context, MCPServer, RequestStateSecurity
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.prompts.base import Prompt, UserMessage
from mcp.server.streamable_http import EventCallback, EventId, EventMessage, EventStore, StreamId
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel, Field

from tests.tables import tables

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
SILENCE = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA="
STEP_S = 0.05
RETRY_MS = 100


class Events(EventStore):
    """Every event, so that a stream which was closed in the middle of a call can be read to its end."""

    def __init__(self) -> None:
        self._events: list[tuple[StreamId, types.JSONRPCMessage | None]] = []

    async def store_event(self, stream_id: StreamId, message: types.JSONRPCMessage | None) -> EventId:
        self._events.append((stream_id, message))
        return str(len(self._events))

    async def replay_events_after(self, last_event_id: EventId, send_callback: EventCallback) -> StreamId | None:
        after = int(last_event_id)
        if not 0 < after <= len(self._events):
            return None
        stream_id = self._events[after - 1][0]
        for number, (stream, message) in enumerate(self._events[after:], after + 1):
            if stream == stream_id and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream_id


server = MCPServer(
    name="reference",
    version="1.0.0",
    request_state_security=RequestStateSecurity(keys=[b"reference-server: nothing secret here"]),
)

# --- tools that answer with one kind of content each ----------------------------------------------------------------


@server.tool()
def test_simple_text() -> str:
    """Text."""
    return "This is a simple text response for testing."


@server.tool()
def test_image_content() -> list[types.ImageContent]:
    """An image."""
    return [_image()]


@server.tool()
def test_audio_content() -> list[types.AudioContent]:
    """A sound."""
    return [types.AudioContent(type="audio", data=SILENCE, mime_type="audio/wav")]


@server.tool()
def test_embedded_resource() -> list[types.EmbeddedResource]:
    """A resource inside the result."""
    return [_embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")]


@server.tool()
def test_multiple_content_types() -> list[types.TextContent | types.ImageContent | types.EmbeddedResource]:
    """Three kinds of content in one result."""
    resource = _embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}')
    return [_text("Multiple content types test:"), _image(), resource]


@server.tool()
def test_error_handling() -> str:
    """A tool's own error."""
    raise ToolError("This tool intentionally returns an error for testing")


@server.tool()
def test_x_mcp_header(region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})] = "<none>") -> str:
    """An argument that a header mirrors."""
    return f"region={region}"


# --- tools that say something on their way --------------------------------------------------------------------------


@server.tool()
async def test_tool_with_logging(ctx: Context) -> str:
    """Three log messages."""
    for message in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await ctx.info(message)
        await asyncio.sleep(STEP_S)
    return "logged"


@server.tool()
async def test_tool_with_progress(ctx: Context) -> str:
    """Three steps of progress."""
    for done in (0, 50, 100):
        await ctx.report_progress(progress=done, total=100, message=f"Completed step {done} of 100")
        await asyncio.sleep(STEP_S)
    return "progressed"


@server.tool()
async def test_logging_tool(ctx: Context) -> str:
    """One log message, for who asked for logs."""
    await ctx.info("logged")
    return "logged"


@server.tool()
async def test_streaming_elicitation(ctx: Context) -> str:
    """A stream: progress, then the answer, and nothing else."""
    await ctx.report_progress(progress=1, total=1)
    return "streamed"


@server.tool()
def greet(name: str = "you") -> str:
    """What suites of extensions call first."""
    return f"Hello, {name}!"


@server.tool()
async def slow_compute(seconds: float = 0.0) -> str:
    """What suites of extensions would have as a task; here it answers at once."""
    return f"{seconds} seconds"


@server.tool()
async def test_reconnection(ctx: Context) -> str:
    """Closes its stream in the middle, and answers on the one that resumes it."""
    await ctx.close_sse_stream()
    await asyncio.sleep(4 * STEP_S)
    return "Reconnection test completed"


@server.tool()
async def test_trigger_tool_change(ctx: Context) -> str:
    """The list of tools changes for a moment."""
    server.add_tool(test_simple_text, name="test_dynamic_tool")
    server.remove_tool("test_dynamic_tool")
    await ctx.notify_tools_changed()
    return "changed"


@server.tool()
async def test_trigger_prompt_change(ctx: Context) -> str:
    """The list of prompts changes for a moment."""
    server.add_prompt(Prompt.from_function(test_simple_prompt, name="test_dynamic_prompt", description="For a moment."))
    server.remove_prompt("test_dynamic_prompt")
    await ctx.notify_prompts_changed()
    return "changed"


# --- tools that ask the client while they run (session era) ---------------------------------------------------------


@server.tool()
async def test_sampling(prompt: str, ctx: Context) -> str:
    """Asks the client's model."""
    answer = await ctx.session.create_message(
        messages=[types.SamplingMessage(role="user", content=_text(prompt))],
        max_tokens=100,
        related_request_id=ctx.request_id,
    )
    return f"LLM response: {_said(answer)}"


class Free(BaseModel):
    response: str = Field(description="User's response")


class Defaults(BaseModel):
    """One default of every primitive type (SEP-1034)."""

    name: str = "John Doe"
    age: int = 30
    score: float = 95.5
    status: Annotated[str, Field(json_schema_extra={"enum": ["active", "inactive", "pending"]})] = "active"
    verified: bool = True


def _titled(**titles: str) -> list[dict[str, str]]:
    return [{"const": const, "title": title} for const, title in titles.items()]


_SMALL_TO_LARGE = {"enum": ["small", "medium", "large"], "enumNames": ["Small Size", "Medium Size", "Large Size"]}


class Enums(BaseModel):
    """Every way to write a choice (SEP-1330)."""

    untitledSingle: Annotated[str, Field(json_schema_extra={"enum": ["active", "inactive", "pending"]})]  # noqa: N815
    titledSingle: Annotated[str, Field(json_schema_extra={"oneOf": [*_titled(low="Low", high="High")]})]  # noqa: N815
    untitledMulti: Annotated[list[str], Field(json_schema_extra={"items": {"type": "string", "enum": ["r", "w"]}})]  # noqa: N815
    titledMulti: Annotated[list[str], Field(json_schema_extra={"items": {"anyOf": [*_titled(f="Feature", b="Bug")]}})]  # noqa: N815
    legacyEnum: Annotated[str, Field(json_schema_extra=_SMALL_TO_LARGE)]  # noqa: N815


async def _elicited(ctx: Context, message: str, schema: type[BaseModel]) -> str:
    answer = await ctx.elicit(message=message, schema=schema)
    content = answer.data.model_dump_json() if answer.action == "accept" else "{}"
    return f"action={answer.action}, content={content}"


@server.tool()
async def test_elicitation(message: str, ctx: Context) -> str:
    """Asks the user."""
    return f"User response: {await _elicited(ctx, message, Free)}"


@server.tool()
async def test_elicitation_sep1034_defaults(ctx: Context) -> str:
    """Asks the user, with defaults."""
    return f"Elicitation completed: {await _elicited(ctx, 'Who are you?', Defaults)}"


@server.tool()
async def test_elicitation_sep1330_enums(ctx: Context) -> str:
    """Asks the user to choose."""
    return f"Elicitation completed: {await _elicited(ctx, 'Which?', Enums)}"


@server.tool()
async def test_missing_capability(ctx: Context) -> str:
    """Works only for a client with a model."""
    capabilities = ctx.session.client_capabilities
    if capabilities is None or capabilities.sampling is None:
        data = {"requiredCapabilities": {"sampling": {}}}
        raise MCPError(types.MISSING_REQUIRED_CLIENT_CAPABILITY, "This tool needs sampling", data)
    return "sampling is there"


# --- tools that ask by their result (stateless era, SEP-2322) -------------------------------------------------------

Asked = str | types.InputRequiredResult


def _asks(state: str | None = None, **requests: types.InputRequest) -> types.InputRequiredResult:
    return types.InputRequiredResult(input_requests=dict(requests), request_state=state)


def _form(message: str, **properties: str) -> types.ElicitRequest:
    schema = {
        "type": "object",
        "properties": {name: {"type": kind} for name, kind in properties.items()},
        "required": list(properties),
    }
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requested_schema=schema))


def _sample(prompt: str) -> types.CreateMessageRequest:
    message = types.SamplingMessage(role="user", content=_text(prompt))
    return types.CreateMessageRequest(params=types.CreateMessageRequestParams(messages=[message], max_tokens=50))


def _answers(ctx: Context) -> Mapping[str, Any]:
    return ctx.input_responses or {}


def _filled(answer: object, name: str) -> object:
    return answer.content.get(name) if isinstance(answer, types.ElicitResult) and answer.content else None


@server.tool()
async def test_input_required_result_elicitation(ctx: Context) -> Asked:
    """Asks for a name."""
    answers = _answers(ctx)
    if "user_name" in answers:
        return f"Hello, {_filled(answers['user_name'], 'name')}!"
    return _asks(user_name=_form("What is your name?", name="string"))


@server.tool()
async def test_input_required_result_sampling(ctx: Context) -> Asked:
    """Asks the client's model."""
    answers = _answers(ctx)
    if "capital_question" in answers:
        return f"Model said: {_said(answers['capital_question'])}"
    return _asks(capital_question=_sample("What is the capital of France?"))


@server.tool()
async def test_input_required_result_list_roots(ctx: Context) -> Asked:
    """Asks for the client's roots."""
    answers = _answers(ctx)
    if "client_roots" in answers:
        return f"{len(answers['client_roots'].roots)} roots"
    return _asks(client_roots=types.ListRootsRequest())


@server.tool()
async def test_input_required_result_request_state(ctx: Context) -> Asked:
    """Wants its state back."""
    if "confirm" in _answers(ctx) and ctx.request_state == "first":
        return "state-ok"
    return _asks("first", confirm=_form("Please confirm", ok="boolean"))


@server.tool()
async def test_input_required_result_multiple_inputs(ctx: Context) -> Asked:
    """Asks three things at once."""
    if {"user_name", "greeting", "client_roots"} <= _answers(ctx).keys():
        return "All inputs received."
    name, greeting = _form("What is your name?", name="string"), _sample("Generate a greeting")
    return _asks("three", user_name=name, greeting=greeting, client_roots=types.ListRootsRequest())


@server.tool()
async def test_input_required_result_multi_round(ctx: Context) -> Asked:
    """Asks twice, one after the other."""
    state, answers = json.loads(ctx.request_state or '{"round": 0}'), _answers(ctx)
    if state["round"] == 1 and "step1" in answers:
        state = {"round": 2, "name": _filled(answers["step1"], "name")}
        return _asks(json.dumps(state), step2=_form("What is your favorite color?", color="string"))
    if state["round"] == 2 and "step2" in answers:
        return f"{state['name']} likes {_filled(answers['step2'], 'color')}."
    return _asks('{"round": 1}', step1=_form("What is your name?", name="string"))


@server.tool()
async def test_input_required_result_tampered_state(ctx: Context) -> Asked:
    """Never sees a state that is not its own: the SDK looks at the seal."""
    if ctx.request_state is not None:
        return "state-ok"
    return _asks("sealed", confirm=_form("Please confirm", ok="boolean"))


@server.tool()
async def test_input_required_result_capabilities(ctx: Context) -> types.InputRequiredResult:
    """Asks only what the client can answer."""
    can, asked = ctx.client_capabilities, dict[str, types.InputRequest]()
    if can is None or can.sampling is not None:
        asked["sample"] = _sample("Say hello")
    if can is None or can.elicitation is not None:
        asked["ask"] = _form("What is your name?", name="string")
    return _asks("can", **asked)


@server.prompt()
async def test_input_required_result_prompt(ctx: Context) -> list[UserMessage] | types.InputRequiredResult:
    """A prompt that asks."""
    answers = _answers(ctx)
    if "user_context" in answers:
        return [UserMessage(_text(f"In this context: {_filled(answers['user_context'], 'context')}"))]
    return _asks(user_context=_form("What context should the prompt use?", context="string"))


# --- a schema with every keyword of 2020-12 that a careless reader drops --------------------------------------------

SCHEMA_2020_12: Mapping[str, Any] = tables("conformance/server")["schema_2020_12"]


@server.tool()
def json_schema_2020_12_tool() -> str:
    """Has a schema with every keyword."""
    return "never mind"


# The SDK derives schemas from signatures, and has no public way to set one.
server._tool_manager._tools["json_schema_2020_12_tool"].parameters = dict(SCHEMA_2020_12)

# --- resources, prompts, completion ---------------------------------------------------------------------------------


@server.resource("test://static-text", mime_type="text/plain")
def static_text() -> str:
    """Text."""
    return "This is the content of the static text resource."


@server.resource("test://static-binary", mime_type="image/png")
def static_binary() -> bytes:
    """An image."""
    return base64.b64decode(PIXEL)


@server.resource("test://template/{id}/data", mime_type="application/json")
def templated(id: str) -> str:
    """One of many."""
    return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})


@server.resource("test://watched-resource")
def watched() -> str:
    """One to subscribe to."""
    return "watched"


@server.prompt()
def test_simple_prompt() -> list[UserMessage]:
    """No arguments."""
    return [UserMessage(_text("This is a simple prompt for testing."))]


@server.prompt()
def test_prompt_with_arguments(arg1: str, arg2: str) -> list[UserMessage]:
    """Two arguments."""
    return [UserMessage(_text(f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"))]


@server.prompt()
def test_prompt_with_embedded_resource(resourceUri: str) -> list[UserMessage]:  # noqa: N803
    """A resource inside a message."""
    embedded = _embedded(resourceUri, "text/plain", "Embedded resource content for testing.")
    return [UserMessage(embedded), UserMessage(_text("Please process the embedded resource above."))]


@server.prompt()
def test_prompt_with_image() -> list[UserMessage]:
    """An image inside a message."""
    return [UserMessage(_image()), UserMessage(_text("Please analyze the image above."))]


@server.completion()
async def complete(
    ref: types.PromptReference | types.ResourceTemplateReference,
    argument: types.CompletionArgument,
    context: types.CompletionContext | None,
) -> types.Completion:
    """Whatever begins as it does."""
    return types.Completion(values=[argument.value + "…"] if argument.value else [], total=None, has_more=False)


async def _noted(ctx: object, params: object) -> types.EmptyResult:
    return types.EmptyResult()


for _method, _params in (
    ("logging/setLevel", types.SetLevelRequestParams),
    ("resources/subscribe", types.SubscribeRequestParams),
    ("resources/unsubscribe", types.UnsubscribeRequestParams),
):
    server._lowlevel_server.add_request_handler(_method, _params, _noted)


# --- pieces ---------------------------------------------------------------------------------------------------------


def _text(text: str) -> types.TextContent:
    return types.TextContent(type="text", text=text)


def _image() -> types.ImageContent:
    return types.ImageContent(type="image", data=PIXEL, mime_type="image/png")


def _embedded(uri: str, mime_type: str, text: str) -> types.EmbeddedResource:
    resource = types.TextResourceContents(uri=uri, mime_type=mime_type, text=text)
    return types.EmbeddedResource(type="resource", resource=resource)


def _said(answer: object) -> str:
    content = answer.content if isinstance(answer, types.CreateMessageResult) else None
    return content.text if isinstance(content, types.TextContent) else "nothing"


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def main(transport: str) -> None:
    """Serve."""
    if transport == "stdio":
        server.run(transport="stdio")
        return
    if transport == "sse":
        app = server.sse_app()
    else:
        app = server.streamable_http_app(event_store=Events(), retry_interval=RETRY_MS)
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # asyncio looks at the protocol, which is 0 here
    print(listening.getsockname()[1], flush=True)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # h11 takes the white space off around a header value, as RFC 9110 has it; httptools leaves it.
    uvicorn.Server(uvicorn.Config(app, log_level="error", http="h11")).run([listening])


if __name__ == "__main__":
    main(sys.argv[1])
