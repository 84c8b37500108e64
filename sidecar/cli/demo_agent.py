"""The demo's agent, on the official A2A SDK: `python -m sidecar.cli.demo_agent PORT`."""

import sys
from typing import Any

import uvicorn
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill, Part, Task, TaskState, TaskStatus
from starlette.applications import Starlette


class Researcher(AgentExecutor):
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        task_id, context_id = context.task_id or "", context.context_id or ""
        status = TaskStatus(state=TaskState.TASK_STATE_SUBMITTED)
        await event_queue.enqueue_event(Task(id=task_id, context_id=context_id, status=status))
        updater = TaskUpdater(event_queue, task_id, context_id)
        await updater.start_work()
        await updater.add_artifact([Part(text=f"in short: {context.get_user_input()}")], name="summary")
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await TaskUpdater(event_queue, context.task_id or "", context.context_id or "").cancel()


def card(port: int) -> AgentCard:
    """Returns the agent card, with the agent's own address, which callers must never see, and its skills."""
    skills = [("summarise", "Summarise"), ("publish", "Publish")]
    return AgentCard(
        name="Researcher",
        description="Sums things up, and publishes them.",
        version="1.0.0",
        supported_interfaces=[
            AgentInterface(url=f"http://127.0.0.1:{port}/", protocol_binding="JSONRPC", protocol_version="1.0")
        ],
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id=name, name=title, description=title, tags=["demo"]) for name, title in skills],
    )


def application(port: int) -> Any:
    shown = card(port)
    handler = DefaultRequestHandler(agent_executor=Researcher(), task_store=InMemoryTaskStore(), agent_card=shown)
    return Starlette(routes=[*create_agent_card_routes(shown), *create_jsonrpc_routes(handler, rpc_url="/")])


def main() -> None:
    port = int(sys.argv[1])
    uvicorn.run(application(port), host="127.0.0.1", port=port, log_level="error")


if __name__ == "__main__":
    main()
