"""What is an agent like that is written on the 1.x line of the official SDK?

    python -m tests.a2a.agents.sdk1 [--http PORT] [--grpc PORT] [--compat] [--no-push] [--no-extended-card]

`--compat` speaks 0.3 beside 1.0 at the same addresses; the other two leave out what they say.
"""

import argparse
import asyncio
from collections.abc import Mapping
from functools import partial

import a2a.compat.v0_3.a2a_v0_3_pb2_grpc as grpc03
import a2a.types.a2a_pb2_grpc as grpc10
import grpc.aio
import httpx
from a2a import types as t
from a2a.compat.v0_3.grpc_handler import CompatGrpcHandler
from a2a.helpers.proto_helpers import new_data_part, new_task_from_user_message
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.request_handlers.grpc_handler import GrpcHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import BasePushNotificationSender, InMemoryPushNotificationConfigStore, InMemoryTaskStore
from a2a.utils.errors import A2AError
from starlette.applications import Starlette

from tests.a2a.agents.plays import PLAYS, SHOWN, TASKLESS, Act, Play, Player, Tongue, echo
from tests.a2a.agents.serving import App, arguments, run, skills

# The TCK subscribes to this one while it works.
SUBSCRIBED_S = 4.0
FILE = {"media_type": "text/plain", "filename": "output.txt"}
TONGUE = Tongue(
    text=lambda text: t.Part(text=text),
    raw=lambda content: t.Part(raw=content, **FILE),
    url=lambda url: t.Part(url=url, **FILE),
    data=new_data_part,
    new_task=new_task_from_user_message,
    wait_for_user=lambda updater, message: updater.requires_input(message),
)


def _shows(part: t.Part, *, working: bool = False) -> Play:
    async def play(act: Act) -> None:
        if working:
            await act.updater.start_work()
        await act.updater.add_artifact([part])
        await act.updater.complete()

    return play


async def _answers(act: Act) -> None:
    await act.queue.enqueue_event(act.says("Direct message response"))


async def _in_silence(act: Act) -> None:
    await act.updater.complete()


async def _waits(act: Act) -> None:
    await act.updater.requires_input()


async def _refuses(act: Act) -> None:
    raise A2AError("rejected")


async def _lingers(act: Act) -> None:
    await act.updater.start_work()
    await asyncio.sleep(SUBSCRIBED_S)
    await act.updater.complete()


async def _chunks(act: Act) -> None:
    await act.updater.start_work()
    await act.updater.add_artifact([t.Part(text="chunk-1 ")], "chunked")
    await act.updater.add_artifact([t.Part(text="chunk-2")], "chunked", append=True, last_chunk=True)
    await act.updater.complete()


# The scenarios of the TCK, 1.0: what its messages' ids begin with; the first that fits.
SCENARIOS: Mapping[str, Play] = {
    "tck-stream-artifact-chunked": _chunks,
    "test-resubscribe-message-id": _lingers,
    "tck-stream-artifact-text": _shows(TONGUE.text("Streamed text content"), working=True),
    "tck-stream-artifact-file": _shows(TONGUE.raw(b"tck"), working=True),
    "tck-stream-ordering-001": _shows(TONGUE.text("Ordered output"), working=True),
    "tck-stream-001": _shows(TONGUE.text("Stream hello from TCK"), working=True),
    "tck-stream-002": _in_silence,
    "tck-stream-003": _shows(TONGUE.text("Stream task lifecycle"), working=True),
    "tck-artifact-file-url": _shows(TONGUE.url(SHOWN)),
    "tck-artifact-file": _shows(TONGUE.raw(b"tck")),
    "tck-artifact-text": _shows(TONGUE.text("Generated text content")),
    "tck-artifact-data": _shows(TONGUE.data({"key": "value", "count": 42})),
    "tck-message-response": _answers,
    "tck-input-required": _waits,
    "tck-reject-task": _refuses,
}


def scenario(act: Act) -> Play:
    """The play of a message that names none."""
    return next((play for prefix, play in SCENARIOS.items() if act.message_id.startswith(prefix)), echo)


def card(url: str, far: str, options: argparse.Namespace, *names: str) -> t.AgentCard:
    """What it says of itself."""
    versions = ("1.0", "0.3") if options.compat else ("1.0",)
    addresses = (("JSONRPC", f"{url}/"), ("HTTP+JSON", f"{url}/rest"), ("GRPC", far))
    return t.AgentCard(
        name="Player",
        description="Does as it is told.",
        version="1.0.0",
        provider=t.AgentProvider(organization="Acme", url="https://acme.example"),
        supported_interfaces=[
            t.AgentInterface(url=address, protocol_binding=binding, protocol_version=version)
            for version in versions
            for binding, address in addresses
        ],
        capabilities=t.AgentCapabilities(
            streaming=True, push_notifications=not options.no_push, extended_agent_card=not options.no_extended_card
        ),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[t.AgentSkill(**skill) for skill in skills(names)],
    )


def build(options: argparse.Namespace, url: str, far: str, remote: grpc.aio.Server) -> App:
    """All three bindings over one handler."""
    shown = card(url, far, options, *PLAYS)
    configs = InMemoryPushNotificationConfigStore()
    handler = DefaultRequestHandler(
        agent_executor=Player(TONGUE, scenario, TASKLESS | {_answers}),
        task_store=InMemoryTaskStore(),
        agent_card=shown,
        push_config_store=None if options.no_push else configs,
        push_sender=BasePushNotificationSender(httpx.AsyncClient(trust_env=False), configs),
        extended_agent_card=None if options.no_extended_card else card(url, far, options, *PLAYS, "secret"),
    )
    grpc10.add_A2AServiceServicer_to_server(GrpcHandler(handler), remote)
    if options.compat:
        grpc03.add_A2AServiceServicer_to_server(CompatGrpcHandler(handler), remote)
    return Starlette(
        routes=[
            *create_agent_card_routes(shown, cache_control="public, max-age=60"),
            *create_jsonrpc_routes(handler, "/", enable_v0_3_compat=options.compat),
            *create_rest_routes(handler, path_prefix="/rest", enable_v0_3_compat=options.compat),
        ]
    )


if __name__ == "__main__":
    options = arguments("--compat", "--no-push", "--no-extended-card")
    run(options, partial(build, options))
