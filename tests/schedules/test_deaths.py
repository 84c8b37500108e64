"""Does each due time run exactly once, whoever dies, and wherever? (issue 7)

But where a message is just on its way to its agent: whether it was heard is not known then, and it is not said again.
`tests/a2a/test_task_restarts.py` dies there.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

from sidecar.task_api.records import State as TaskState
from tests.a2a.test_task_api import DONE, WORKING
from tests.a2a.world import ScriptedAgent, task
from tests.schedules.clockwork import ANSWER, MINUTELY, Killed, clockwork, moment
from tests.valkey import running_valkey

POINTS = ("owed", "charged", "added", "ordered", "running")
MINUTES, STEP_S = 60, 10


async def test_an_hour_of_three_replicas_of_which_whoever_is_at_it_dies(tmp_path: Path) -> None:
    chance, deaths, names = Random(1), Counter[str](), iter(range(MINUTES))
    dying = [""]

    def sent(_: str, params: dict[str, Any]) -> Any:
        return {"task": task(f"t{(n := next(names))}", f"c{n}", WORKING)} if dying[0] == "running" else ANSWER

    agent = ScriptedAgent(
        script={"SendMessage": sent, "GetTask": lambda _, params: task(params["id"], f"c{params['id'][1:]}", DONE)}
    )
    settings = "tasks: {ask_every_s: 0.05}\n"
    with running_valkey() as server:
        async with clockwork(
            tmp_path, agent=agent, store="redis", url=server.url, replicas=0, settings=settings
        ) as works:
            works.write(minutely={**MINUTELY, "overlap": "allow"})
            alive, begin_s = [works.replica() for _ in range(3)], works.now_s
            for second in range(0, MINUTES * 60, STEP_S):
                works.now_s = begin_s + second
                chance.shuffle(alive)
                for replica in list(alive):
                    await replica.runner.look()
                    is_next = second % 60 == 30 and replica.scheduler._hands and chance.random() < 0.6
                    if is_next and deaths.total() < 30:
                        dying[0] = POINTS[deaths.total() % len(POINTS)]
                        await replica.dies_at(dying[0])
                    try:
                        await replica.scheduler.look()
                    except Killed:
                        deaths[dying[0]] += 1
                        replica.kill()
                        alive.remove(replica)
                        alive.append(works.replica())
                    dying[0] = ""
            for _ in range(3):  # what the last that died had on their hands
                works.now_s += STEP_S
                for replica in alive:
                    await replica.runner.look()
                    await replica.scheduler.look()
            await works.settle()
            ran = Counter(one["message"]["messageId"] for one in works.told())
            standing = await works.standing()
            due = [standing.task_for(moment("2026-11-28T12:01:00") + 60 * n) for n in range(MINUTES)]
            assert ran == Counter(dict.fromkeys(due, 1)), "once each, and nothing else"
            ends = [record.state for one in due if (record := await works.tasks.get(one)) is not None]
            assert ends == [TaskState.COMPLETED] * MINUTES
            assert set(deaths) == set(POINTS) and min(deaths.values()) >= 3, deaths
            assert works.counted.ran.get(("minutely", "missed"), 0) == 0
