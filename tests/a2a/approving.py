"""People who answer requests for approval of what agents are asked, and the policy that demands them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from sidecar.app.application import Application
from sidecar.gateway.approvals import ApprovalRecord, ApprovalState, Approver, Outcome
from sidecar.vocabulary import Principal
from tests.a2a.world import EVERYTHING, AgentWorld, ScriptedAgent, agent_world
from tests.flow.world import PATIENCE_S

SENDS = "message/send|message/stream"
OTHERS = EVERYTHING.replace("use", "tasks/get|tasks/list|tasks/cancel|tasks/resubscribe|delegate")
DEMAND = "approval=role:oncall within=15m"


def rules_of(demand: str = DEMAND, who: str = "user:alice", kind: str = "user_to_nhi") -> dict[str, str]:
    rows = f"#: id=asks {demand}\np, {who}, nhi:researcher, {SENDS}, -, -, -, allow\n"
    rows += f"#: id=follows\np, {who}, nhi:researcher, {OTHERS}, -, -, -, allow\n"
    other = "#: id=other\np, user:bob, nhi:researcher, " + OTHERS + ", -, -, -, allow\n"
    return {kind: rows} if kind != "user_to_nhi" else {kind: rows + other}


ROLES = {"policies/roles.csv": "g, user:dmitri, role:oncall\ng, user:alice, role:oncall\n"}


DMITRI = Approver(Principal("user:dmitri"), "user:dmitri")


class Running(Protocol):
    @property
    def app(self) -> Application: ...


@asynccontextmanager
async def approving_world(
    folder: Path, agent: ScriptedAgent | None = None, demand: str = DEMAND, **more: Any
) -> AsyncIterator[AgentWorld]:
    rules = more.pop("rules", rules_of(demand))
    async with agent_world(folder, agent, rules=rules, files={**ROLES, **more.pop("files", {})}, **more) as world:
        yield world


async def requests(world: Running, state: ApprovalState | None = ApprovalState.WAITING) -> list[ApprovalRecord]:
    found, _ = await world.app.approvals.page(state, 100, 0)
    return list(found)


async def asked(world: Running) -> ApprovalRecord:
    """The one request that waits, once it is there."""
    async with asyncio.timeout(PATIENCE_S):
        while not (found := await requests(world)):
            await asyncio.sleep(0.01)
    (one,) = found
    return one


async def answer(
    world: Running, outcome: Outcome = "approve", who: str = "user:dmitri", reason: str = ""
) -> ApprovalRecord:
    one = await asked(world)
    return await world.app.approvals.answer(one.name, Approver(Principal(who), who), outcome, reason)


async def late(world: Running, by_s: float = 901.0) -> None:
    """The time of every request is over."""
    clock = world.app.approvals.clock
    world.app.approvals.clock = lambda: clock() + by_s
