"""What becomes of a run, from its order to its end?"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping
from typing import Any, NamedTuple, Protocol

from sidecar.agents.record import Execution
from sidecar.agents.running import Prompt, Runner
from sidecar.agents.states import State
from sidecar.settings.agents import CliAgent
from sidecar.vocabulary import Caller


class Pool(NamedTuple):
    """How one agent stands in this process: its runs at work, those that wait for their turn, and how many may be at
    work at once."""

    running: int
    waiting: int
    places: int


class Executions(Protocol):
    """Every run of every agent that is a program. Everything that asks the store raises
    Refusal(STORE_UNAVAILABLE)."""

    def offer(self, definitions: Mapping[str, CliAgent]) -> None:
        """These agents are in force: all of them, or, where one raises SettingsError, those before. An agent whose
        definition is the same keeps its conversations; what waits for one that is gone has failed."""

    def runner_of(self, name: str) -> Runner:
        """What makes the tries of an agent. Raises Refusal(UPSTREAM_UNKNOWN)."""

    def standing(self, name: str) -> Pool:
        """How an agent stands here. Raises Refusal(UPSTREAM_UNKNOWN)."""

    async def begin(self, name: str, prompt: Prompt, caller: Caller, context: str, *, schedule: str = "") -> Execution:
        """A new run, which waits for its turn from now on; it is kept when this returns. Raises Refusal:
        TOO_MANY_CONCURRENT where its queue is full, UPSTREAM_UNKNOWN, STORE_UNAVAILABLE."""

    async def goes_on(self, execution_id: str, prompt: Prompt, caller: Caller) -> Execution:
        """One more turn of a run whose task is INPUT_REQUIRED or AUTH_REQUIRED. Raises Refusal as `begin`, and
        TASK_UNKNOWN, and MALFORMED_CALL for what cannot go on."""

    def follow(self, execution_id: str) -> AsyncGenerator[Mapping[str, Any] | None]:
        """Its canonical StreamResponses: first the Task as it stands, then what becomes of it until its end; None is a
        sign of life. Who reads too slowly hears the whole Task again in place of what was missed. Raises Refusal:
        TASK_UNKNOWN."""

    async def get(self, execution_id: str) -> Execution | None:
        """The run of this id, whoever owns it; what is under way here is newer than what is kept."""

    async def page(
        self, owner: str | None, targets: Collection[str], state: State | None, limit: int, offset: int
    ) -> tuple[list[Execution], int]:
        """Some runs of an owner (None: of everybody), newest first, and how many there are in all."""

    async def cancel(self, execution_id: str, why: str) -> Execution:
        """Give a run up, wherever it is, and wait a while for its end. Raises Refusal: TASK_UNKNOWN, NOT_CANCELABLE."""

    async def run(self) -> None:
        """Hold what is ours, see what others ask of it, end what somebody left behind, forget what is old. Runs as long
        as the process."""

    async def close(self, grace_s: float) -> None:
        """Begin nothing more, give what runs a while, then end it; the store says so."""
