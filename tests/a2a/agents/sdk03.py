"""What is an agent like that is written on the 0.3 line of the official SDK?

    python -m tests.a2a.agents.sdk03 [--http PORT] [--grpc PORT] [--no-push] [--no-extended-card]

Runs under an interpreter that has `a2a-sdk` 0.3. The flags leave out what they say.
"""

from __future__ import annotations

import argparse
import asyncio
from base64 import b64encode
from functools import partial

import grpc.aio
import httpx
from a2a import types as t
from a2a.grpc import a2a_pb2_grpc
from a2a.server.apps import A2ARESTFastAPIApplication, A2AStarletteApplication
from a2a.server.request_handlers import DefaultRequestHandler, GrpcHandler
from a2a.server.tasks import BasePushNotificationSender, InMemoryPushNotificationConfigStore, InMemoryTaskStore
from a2a.utils import new_task

from tests.a2a.agents.plays import PLAYS, Act, Play, Player, Tongue
from tests.a2a.agents.serving import App, arguments, run, skills

# The official TCK cancels and subscribes while a task works.
WORKS_S = 3.0
FILE = {"mime_type": "text/plain", "name": "output.txt"}


def _raw(content: bytes) -> t.Part:
    return t.Part(root=t.FilePart(file=t.FileWithBytes(bytes=b64encode(content).decode(), **FILE)))


TONGUE = Tongue(
    text=lambda text: t.Part(root=t.TextPart(text=text)),
    raw=_raw,
    url=lambda url: t.Part(root=t.FilePart(file=t.FileWithUri(uri=url, **FILE))),
    data=lambda value: t.Part(root=t.DataPart(data=value)),
    new_task=new_task,
    wait_for_user=lambda updater, message: updater.requires_input(message, final=True),
)


async def works_and_waits(act: Act) -> None:
    """What the official TCK expects of any message."""
    await act.updater.start_work(act.says("Processing your question"))
    await asyncio.sleep(WORKS_S)
    await act.waits("Hello world!")


def otherwise(act: Act) -> Play:
    """The play of a message that names none."""
    return works_and_waits


def card(url: str, far: str, options: argparse.Namespace, *names: str) -> t.AgentCard:
    """What it says of itself."""
    return t.AgentCard(
        name="Player",
        description="Does as it is told.",
        version="1.0.0",
        protocol_version="0.3.0",
        provider=t.AgentProvider(organization="Acme", url="https://acme.example"),
        url=f"{url}/",
        preferred_transport="JSONRPC",
        additional_interfaces=[
            t.AgentInterface(url=f"{url}/", transport="JSONRPC"),
            t.AgentInterface(url=f"{url}/rest", transport="HTTP+JSON"),
            t.AgentInterface(url=f"http://{far}", transport="GRPC"),
        ],
        capabilities=t.AgentCapabilities(streaming=True, push_notifications=not options.no_push),
        supports_authenticated_extended_card=not options.no_extended_card,
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[t.AgentSkill(**skill) for skill in skills(names)],
    )


def build(options: argparse.Namespace, url: str, far: str, remote: grpc.aio.Server) -> App:
    """All three bindings over one handler."""
    shown = card(url, far, options, *PLAYS)
    extended = None if options.no_extended_card else card(url, far, options, *PLAYS, "secret")
    configs = InMemoryPushNotificationConfigStore()
    handler = DefaultRequestHandler(
        agent_executor=Player(TONGUE, otherwise),
        task_store=InMemoryTaskStore(),
        push_config_store=None if options.no_push else configs,
        push_sender=BasePushNotificationSender(httpx.AsyncClient(trust_env=False), configs),
    )
    a2a_pb2_grpc.add_A2AServiceServicer_to_server(GrpcHandler(shown, handler), remote)
    app = A2AStarletteApplication(shown, handler, extended).build()
    app.mount("/", A2ARESTFastAPIApplication(shown, handler, extended).build(rpc_url="/rest"))
    return app


if __name__ == "__main__":
    options = arguments("--no-push", "--no-extended-card")
    run(options, partial(build, options))
