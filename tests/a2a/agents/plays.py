"""What does an agent do when it is told something? The same on either line of the SDK; a `Tongue` is where they differ.

The first word of a message says what: `echo: hello`. What is not in `PLAYS` is done as the official TCK's own agent of
that line does it; the TCK of 1.0 says what it wants by the id of the message.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater

STEP_S = 0.02
SHOWN = "https://example.com/output.txt"


@dataclass(frozen=True)
class Tongue:
    """How a line of the SDK makes parts, a new task, and a task that waits for its user."""

    text: Callable[[str], Any]
    raw: Callable[[bytes], Any]
    url: Callable[[str], Any]
    data: Callable[[Any], Any]
    new_task: Callable[[Any], Any]
    wait_for_user: Callable[[TaskUpdater, Any], Awaitable[None]]


@dataclass(frozen=True)
class Act:
    """One message that is acted on: `text` is what it says after the first word, or all where nothing is after it."""

    tongue: Tongue
    updater: TaskUpdater
    queue: EventQueue
    text: str
    message_id: str

    def says(self, text: str) -> Any:
        return self.updater.new_agent_message([self.tongue.text(text)])

    async def waits(self, text: str) -> None:
        await self.tongue.wait_for_user(self.updater, self.says(text))


Play = Callable[[Act], Awaitable[None]]


async def echo(act: Act) -> None:
    """Says what it was told, at once."""
    await act.updater.complete(act.says(act.text))


async def slow(act: Act) -> None:
    """As many updates as it was told."""
    for number in range(1, int(act.text) + 1):
        await act.updater.start_work(act.says(f"step {number}"))
        await asyncio.sleep(STEP_S)
    await act.updater.complete(act.says("done"))


async def chunks(act: Act) -> None:
    """One artifact, word by word."""
    *words, last = act.text.split()
    await act.updater.start_work()
    for number, word in enumerate(words):
        part = act.tongue.text(f"{word} ")
        await act.updater.add_artifact([part], "words", "words", append=number > 0, last_chunk=False)
    await act.updater.add_artifact([act.tongue.text(last)], "words", "words", append=bool(words), last_chunk=True)
    await act.updater.complete()


async def kinds(act: Act) -> None:
    """One artifact of every kind of part."""
    tongue = act.tongue
    parts = [tongue.text(act.text), tongue.raw(b"\x00\xff"), tongue.url(SHOWN), tongue.data({"n": 1, "deep": [None]})]
    await act.updater.add_artifact(parts, "kinds", "kinds")
    await act.updater.complete()


async def ask(act: Act) -> None:
    """Wants to hear more; `echo: …` to the same task ends it."""
    await act.waits(f"{act.text}?")


async def permit(act: Act) -> None:
    """Wants an authorization."""
    await act.updater.requires_auth(act.says(act.text))


async def fail(act: Act) -> None:
    await act.updater.failed(act.says(act.text))


async def reject(act: Act) -> None:
    await act.updater.reject(act.says(act.text))


async def crash(act: Act) -> None:
    raise RuntimeError(act.text)


async def forever(act: Act) -> None:
    """Works until it is cancelled."""
    await act.updater.start_work(act.says("on it"))
    await asyncio.Event().wait()


async def ticks(act: Act) -> None:
    """Works until it is cancelled, and keeps saying so."""
    for number in count(1):
        await act.updater.start_work(act.says(f"tick {number}"))
        await asyncio.sleep(STEP_S)


async def reply(act: Act) -> None:
    """A message, and no task."""
    await act.queue.enqueue_event(act.says(act.text))


_ALL = (echo, slow, chunks, kinds, ask, permit, fail, reject, crash, forever, ticks, reply)
PLAYS: Mapping[str, Play] = {play.__name__: play for play in _ALL}
TASKLESS = frozenset({reply})


class Player(AgentExecutor):
    """An executor that looks for its play by the first word, and asks `otherwise` about any other message."""

    def __init__(self, tongue: Tongue, otherwise: Callable[[Act], Play], taskless: frozenset[Play] = TASKLESS) -> None:
        self._tongue, self._otherwise, self._taskless = tongue, otherwise, taskless

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        word, _, rest = context.get_user_input().partition(":")
        message = context.message
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        act = Act(self._tongue, updater, event_queue, rest.strip() or word, message.message_id)
        play = PLAYS.get(word) or self._otherwise(act)
        if context.current_task is None and play not in self._taskless:
            await event_queue.enqueue_event(self._tongue.new_task(message))
        await play(act)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()
