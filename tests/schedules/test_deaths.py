"""Does each due time run exactly once, whoever dies, and wherever?

But where a message is just on its way to its agent: whether it was heard is not known then, and it is not said again.
`tests/a2a/check_task_restarts.py` dies there.
"""

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from sidecar.tasks.api.task_record import TaskState
from tests.a2a.test_task_api import DONE, WORKING
from tests.a2a.world import ScriptedAgent, task
from tests.schedules.clockwork import ANSWER, MINUTELY, clockwork, moment
from tests.valkey import LosingProxy, running_valkey

POINTS = ("owed", "charged", "added", "ordered", "running")
MINUTES, STEP_S = 60, 10


def done(_: str, params: dict[str, Any]) -> Any:
    return task(params["id"], f"c{params['id'][1:]}", DONE)


async def test_an_hour_of_three_replicas_of_which_whoever_is_at_it_dies(tmp_path: Path) -> None:
    chance, deaths, names = Random(1), Counter[str](), iter(range(MINUTES))
    dying = [""]

    def sent(_: str, params: dict[str, Any]) -> Any:
        return {"task": task(f"t{(n := next(names))}", f"c{n}", WORKING)} if dying[0] == "running" else ANSWER

    agent = ScriptedAgent(script={"SendMessage": sent, "GetTask": done})
    async with clockwork(tmp_path, agent=agent, replicas=0, settings="tasks: {ask_every_s: 0.05}\n") as works:
        works.write(minutely={**MINUTELY, "overlap": "allow"})
        alive, begin_s = [works.replica() for _ in range(3)], works.now_s
        for second in range(0, MINUTES * 60, STEP_S):
            works.now_s = begin_s + second
            chance.shuffle(alive)
            for replica in list(alive):
                await replica.runner.worker.turn()
                is_next = second % 60 == 30 and replica.scheduler.holds and chance.random() < 0.6
                if is_next and deaths.total() < 30:
                    dying[0] = POINTS[deaths.total() % len(POINTS)]
                    await replica.dies_at(dying[0])
                if not await replica.looks():
                    deaths[dying[0]] += 1
                    alive.remove(replica)
                    alive.append(works.replica())
                dying[0] = ""
        for _ in range(3):  # what the last that died had on their hands
            works.now_s += STEP_S
            for replica in alive:
                await replica.runner.worker.turn()
                await replica.looks()
        await works.settle()
        ran = Counter(one["message"]["messageId"] for one in works.told())
        standing = await works.standing()
        due = [standing.task_for(moment("2026-11-28T12:01:00") + 60 * n) for n in range(MINUTES)]
        assert ran == Counter(dict.fromkeys(due, 1)), "once each, and nothing else"
        ends = [(await works.tasks.get(one)).state for one in due]
        assert ends == [TaskState.COMPLETED] * MINUTES
        assert set(deaths) == set(POINTS) and min(deaths.values()) >= 3, deaths
        assert works.counted.ran.get(("minutely", "missed"), 0) == 0


async def test_whichever_reply_of_the_store_is_lost_each_due_time_runs_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One reply in each minute, another in each: of schedules and tasks, or of whose tasks are."""
    monkeypatch.setattr("sidecar.tasks.api.task_lifecycle.AGAIN_S", 0.02)
    minutes, names = 32, iter(range(32))

    def sent(_: str, params: dict[str, Any]) -> Any:
        return {"task": task(f"t{(n := next(names))}", f"c{n}", WORKING)}

    agent = ScriptedAgent(script={"SendMessage": sent, "GetTask": done})
    with running_valkey() as ours, running_valkey() as owners:
        proxies = LosingProxy(ours.path), LosingProxy(owners.path)
        async with proxies[0].listening() as url, proxies[1].listening() as whose:
            settings = f'tasks: {{ask_every_s: 0.05, store: redis}}\nstore: {{url: "{whose}"}}\n'
            async with clockwork(tmp_path, agent=agent, store="redis", url=url, settings=settings) as works:
                (replica,) = works.replicas
                begin_s = moment("2026-11-28T12:01:00")
                await replica.scheduler.worker.turn()
                lost = Counter[int]()
                for minute in range(minutes):
                    which, before = (1, minute // 4 % 4) if minute % 4 == 3 else (0, minute - minute // 4)
                    proxies[which].before = before
                    for second in (0, 5, 10, 30):
                        works.now_s = begin_s + 60 * minute + second
                        await replica.runner.worker.turn()
                        await replica.scheduler.worker.turn()
                        await works.settle()
                    lost[which] += proxies[which].before is None
                standing = await works.standing()
                due = [standing.task_for(begin_s + 60 * n) for n in range(minutes)]
                ran = Counter(one["message"]["messageId"] for one in works.told())
                ends = [(await works.tasks.get(one)).state for one in due]
                assert (ran, ends) == (Counter(dict.fromkeys(due, 1)), [TaskState.COMPLETED] * minutes)
                assert lost[0] > 15 and lost[1] > 3, lost
                assert works.counted.ran.keys() == {("minutely", "success")}
