"""Holds the processes of conversations, and ends them when they are idle.

A process belongs to one owner and one context and serves no other; its turns never overlap. The next turn after its end
starts a new process and begins with the reason. Without conversations, each order has a process of its own.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from sidecar.errors import Reason
from sidecar.settings.agents import CliAgent
from sidecar.tasks.programs.attempt import (
    CHANGED,
    AttemptEnd,
    Event,
    Objection,
    ProgramOrder,
    ProgressNote,
    Prompt,
    Started,
    TurnAnswer,
    UnsayableError,
    failure_of_start,
    fell,
    no_objection,
    overdue,
    withdrawn,
)
from sidecar.tasks.programs.conversation import PATIENCE_S, ConversationProcess, Launch, ProcessLost
from sidecar.tasks.programs.run_record import Category, Failure
from sidecar.tasks.worker import to_its_end
from sidecar.upstreams.processes.launcher import StartFailed
from sidecar.vocabulary import Caller

SWEEP_S: Final = 1.0
MAX_REMEMBERED: Final = 1_024  # conversations whose next turn reports why the process ended

log = logging.getLogger("sidecar.tasks.programs")


class ConversationKey(NamedTuple):
    agent: str
    owner: str
    context: str


class Endings(dict[ConversationKey, str]):
    """The reasons why the newest conversations' processes ended, until the next turn of each reports it. They outlive a
    definition."""

    def keep(self, key: ConversationKey, why: str) -> None:
        self.pop(key, None)
        self[key] = why
        if len(self) > MAX_REMEMBERED:
            del self[next(iter(self))]


@dataclass(slots=True, eq=False)
class _Conversation:
    """One conversation. `used` counts turns that run or wait, `prompt` is that of its process's first turn, `since_s`
    is when its process began to speak or became idle. `fall` is why its last process ended. `is_withdrawn`: its owner
    lost the permission. `changing` starts or ends a process; everything else waits for it."""

    key: ConversationKey
    turns: asyncio.Lock = field(default_factory=asyncio.Lock)
    used: int = 0
    speaks: bool = False
    partner: ConversationProcess | None = None
    caller: Caller | None = None
    skill: str = ""
    prompt: Prompt | None = None
    born_s: float = 0.0
    since_s: float = 0.0
    fall: str = ""
    is_withdrawn: bool = False
    changing: asyncio.Task[Any] | None = None

    @property
    def changes(self) -> bool:
        return self.changing is not None and not self.changing.done()

    async def settled(self) -> None:
        while self.changing is not None and self.changes:
            await asyncio.wait({self.changing})


class Conversations:
    def __init__(
        self,
        name: str,
        definition: CliAgent,
        launch: Launch,
        *,
        objection: Objection = no_objection,
        endings: Endings | None = None,
        clock_mono: Callable[[], float] = time.monotonic,
        sweep_s: float = SWEEP_S,
    ) -> None:
        self._name, self._definition, self._launch, self._objection = name, definition, launch, objection
        self._endings = Endings() if endings is None else endings
        self._clock, self._sweep_s = clock_mono, sweep_s
        self._conversations: dict[ConversationKey, _Conversation] = {}
        self._keeps = definition.keeps_processes
        self._places = definition.max_sessions if self._keeps else definition.places
        self._free = asyncio.Semaphore(self._places)
        self._taken, self._wanted, self._leaving = 0, 0, 0
        self._sweeper: asyncio.Task[None] | None = None
        self._closed = ""

    @property
    def count(self) -> int:
        return self._taken  # including those that are being ended

    async def run(self, order: ProgramOrder) -> AsyncGenerator[Event]:
        until_s = self._clock() + order.deadline_s
        key = ConversationKey(self._name, order.owner, order.context_id if self._keeps else order.execution_id)
        conversation = self._conversations.setdefault(key, _Conversation(key))
        conversation.used += 1
        try:
            async with AsyncExitStack() as turn:
                try:
                    async with asyncio.timeout(until_s - self._clock()):
                        await turn.enter_async_context(conversation.turns)
                except TimeoutError:
                    yield overdue(order)
                    return
                await conversation.settled()  # an earlier process was ended if necessary
                async with aclosing(self._turn(conversation, order, until_s)) as events:
                    async for event in events:
                        yield event
        finally:
            conversation.used -= 1
            self._make_room()
            self._forget(conversation)

    async def close(self, why: str = CHANGED) -> None:
        self._closed = why
        if self._sweeper is not None:
            self._sweeper.cancel()
        conversations = list(self._conversations.values())
        for conversation in conversations:
            self._let_go(conversation, why)
        for conversation in conversations:
            await conversation.settled()

    async def _turn(self, conversation: _Conversation, order: ProgramOrder, until_s: float) -> AsyncGenerator[Event]:
        if self._closed:
            yield fell(Failure(Category.PERMANENT, self._closed))
            return
        refused = self._refused(order.caller, order.prompt.skill)
        if refused is not None:
            self._let_go(conversation, refused, is_withdrawn=True)
            yield withdrawn(refused)
            return
        conversation.caller, conversation.skill = order.caller, order.prompt.skill
        await self._look_at(conversation, order)
        resumed = conversation.partner is not None
        try:
            partner = await self._told(conversation, order, until_s)
        except UnsayableError as unsayable:
            yield fell(Failure(Category.PERMANENT, str(unsayable)))
        except StartFailed as failed:
            yield fell(failure_of_start(failed))
        except TimeoutError:
            yield overdue(order)
        else:
            async with aclosing(self._spoken(conversation, order, partner, resumed, until_s)) as events:
                async for event in events:
                    yield event

    async def _look_at(self, conversation: _Conversation, order: ProgramOrder) -> None:
        """Ends a process that this turn cannot use, and waits for its end."""
        partner = conversation.partner
        if partner is not None:
            is_quiet = await partner.is_quiet()
            if partner.is_lost:
                self._let_go(conversation)
            elif not is_quiet:
                self._let_go(conversation, "it talks without being asked")
            elif why := self._too_old(conversation):
                self._let_go(conversation, why)
            elif self._chose_other(conversation, order.prompt):
                self._let_go(conversation, "other options were chosen")
        await conversation.settled()

    async def _told(self, conversation: _Conversation, order: ProgramOrder, until_s: float) -> ConversationProcess:
        """Sends the turn to its process, or a new one. Raises UnsayableError, StartFailed, TimeoutError."""
        partner = conversation.partner
        if partner is not None:
            partner.begin(order)
            conversation.speaks, conversation.since_s = True, self._clock()
            return partner
        await self._take_room(until_s)
        launching = asyncio.ensure_future(self._launch(order))
        conversation.changing = launching
        try:
            partner = await launching
        except BaseException:
            if launching.done() and not launching.cancelled() and launching.exception() is None:
                await to_its_end(launching.result().end())  # the turn was abandoned just as the process had started
            self._give_room()
            raise
        conversation.partner, conversation.prompt, conversation.speaks = partner, order.prompt, True
        conversation.born_s = conversation.since_s = self._clock()
        if self._closed:
            self._let_go(conversation, self._closed)
        elif self._sweeper is None or self._sweeper.done():
            self._sweeper = asyncio.create_task(self._sweep(), name=f"sweeps {self._name}")
        return partner

    async def _spoken(
        self,
        conversation: _Conversation,
        order: ProgramOrder,
        partner: ConversationProcess,
        resumed: bool,
        until_s: float,
    ) -> AsyncGenerator[Event]:
        answer = TurnAnswer()
        try:
            yield Started(partner.pid, resumed)
            if not resumed and (why := self._endings.pop(conversation.key, "")):
                yield ProgressNote(f"the conversation's process ended ({why}); a new one began", stays=True)
            async with aclosing(partner.turn(until_s - self._clock())) as told:
                async for one in told:
                    if isinstance(one, TurnAnswer):
                        answer = one
                    else:
                        yield one
            self._falls_silent(conversation, partner)
            await to_its_end(conversation.settled())
            exit_ = None if self._keeps else partner.exit
            end = AttemptEnd(exit_, partner.usage, answer.failure, False, *answer[:3])
        except TimeoutError:
            await to_its_end(self._give_up(conversation, partner, "a turn took too long"))
            end = overdue(order, partner.exit, partner.usage)
        except ProcessLost:
            end = await self._fallen(conversation, partner)
        finally:
            if conversation.partner is partner and conversation.speaks:  # the turn was abandoned
                await to_its_end(self._give_up(conversation, partner, "a turn was given up"))
        yield end

    async def _give_up(self, conversation: _Conversation, partner: ConversationProcess, why: str) -> None:
        """Cancels a turn. Continues with a program that agrees, and ends the process of one that does not."""
        if await partner.give_up():
            self._falls_silent(conversation, partner)
        elif conversation.partner is partner:
            self._let_go(conversation, why)
        await conversation.settled()

    async def _fallen(self, conversation: _Conversation, partner: ConversationProcess) -> AttemptEnd:
        if conversation.partner is partner:
            exit_, failure = await to_its_end(partner.failed())
            if conversation.partner is partner:
                self._let_go(conversation, partner.how)
            return fell(failure, exit_, partner.usage)
        await conversation.settled()
        if conversation.is_withdrawn:
            return withdrawn(conversation.fall, partner.exit, partner.usage)
        return fell(Failure(Category.PERMANENT, conversation.fall), partner.exit, partner.usage)

    def _refused(self, caller: Caller | None, skill: str) -> str | None:
        """Returns why an owner may not use it, or None. Without a caller, the use is refused."""
        reason = Reason.UNAUTHENTICATED if caller is None else self._objection(caller, self._name, skill)
        return None if reason is None else f"its owner may not speak with it: {reason}"

    def _too_old(self, conversation: _Conversation) -> str:
        now_s, definition = self._clock(), self._definition
        if now_s - conversation.since_s >= definition.idle_timeout:
            return f"no output for {definition.idle_timeout:g} s"
        if now_s - conversation.born_s >= definition.session_timeout:
            return f"it had lived for {definition.session_timeout:g} s"
        return ""

    def _chose_other(self, conversation: _Conversation, chosen: Prompt) -> bool:
        """Whether a turn has choices that need a new process. With JSON-RPC, options are sent with each turn."""
        began = conversation.prompt
        if began is None:
            return False
        options = {} if self._definition.patterns.input == "json-rpc" else chosen.cli_args
        return bool(
            (options and options != began.cli_args)
            or (chosen.envs and chosen.envs != began.envs)
            or (chosen.working_directory and chosen.working_directory != began.working_directory)
        )

    async def _sweep(self) -> None:
        while self._taken:
            await asyncio.sleep(self._sweep_s)
            for conversation in list(self._conversations.values()):
                partner = conversation.partner
                if partner is None:
                    continue
                if (refused := self._refused(conversation.caller, conversation.skill)) is not None:
                    self._let_go(conversation, refused, is_withdrawn=True)
                elif not conversation.used and (partner.is_lost or (why := self._too_old(conversation))):
                    self._let_go(conversation, "" if partner.is_lost else why)

    def _falls_silent(self, conversation: _Conversation, partner: ConversationProcess) -> None:
        """Marks its process as idle after a turn, unless the process has ended in the meantime."""
        if conversation.partner is partner:
            conversation.speaks, conversation.since_s = False, self._clock()
            partner.rests()
            if not self._keeps:
                self._let_go(conversation, "it has answered")
            elif partner.is_lost:
                self._let_go(conversation)

    def _let_go(self, conversation: _Conversation, why: str = "", *, is_withdrawn: bool = False) -> None:
        """Ends its process, if there is one; without `why`, it ended on its own. A turn in progress fails."""
        partner = conversation.partner
        if partner is None:
            return
        conversation.partner, conversation.speaks = None, False
        conversation.fall, conversation.is_withdrawn = why, is_withdrawn
        self._leaving += 1
        leaves = self._leaves(conversation, partner, why)
        conversation.changing = asyncio.create_task(leaves, name=f"ends process {partner.pid}")

    async def _leaves(self, conversation: _Conversation, partner: ConversationProcess, why: str) -> None:
        try:
            if not self._keeps:
                await partner.end(patience_s=PATIENCE_S)
            elif why:
                self._endings.keep(conversation.key, why)
                await partner.end()
            else:
                await partner.failed()
                self._endings.keep(conversation.key, partner.how)
        finally:
            self._leaving -= 1
            self._give_room()
            conversation.changing = None
            self._forget(conversation)
        log.info("a conversation's process ended", extra={"agent": self._name, "pid": partner.pid})

    async def _take_room(self, until_s: float) -> None:
        self._wanted += 1
        try:
            self._make_room()
            async with asyncio.timeout(until_s - self._clock()):
                await self._free.acquire()
            self._taken += 1
        finally:
            self._wanted -= 1

    def _give_room(self) -> None:
        self._taken -= 1
        self._free.release()

    def _make_room(self) -> None:
        """Ends idle processes, the longest idle first, of the owner with the most, so that an owner with many ends only
        its own."""
        lacking = self._wanted - (self._places - self._taken) - self._leaving
        if lacking > 0:
            every = self._conversations.values()
            silent = [one for one in every if one.partner is not None and not one.used]
            # An owner that waits for a slot counts as having it; otherwise, on a tie, it would take another owner's.
            held = Counter(one.key.owner for one in every if one.partner is not None or one.used)
            for _ in range(min(lacking, len(silent))):
                goes = min(silent, key=lambda one: (-held[one.key.owner], one.since_s))
                silent.remove(goes)
                held[goes.key.owner] -= 1
                self._let_go(goes, "another conversation needed its place")

    def _forget(self, conversation: _Conversation) -> None:
        if not conversation.used and conversation.partner is None and not conversation.changes:
            self._conversations.pop(conversation.key, None)
