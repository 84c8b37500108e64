"""Does what programs say without end take no more of the loop than its share?"""

import asyncio
import sys

from sidecar.tasks.programs.output_cleaner import CleaningRules
from sidecar.tasks.programs.supervised_process import SupervisedProcess
from sidecar.upstreams.processes.launcher import ASIDES_SHARE, CREDIT_S, OutputShare, Processes, Program
from tests.flow.world import PATIENCE_S

COMPLAINS = "import os\nos.write(2, b'words ' * 200_000 + b'\\nthe last')\nos.write(1, b'done')"


def test_whoever_took_more_than_the_share_rests_as_long_as_it_wants() -> None:
    now_s = 100.0
    share = OutputShare(0.1, lambda: now_s)
    assert share.owed_s(0.1 * CREDIT_S) == 0.0, "nothing was used for a while"
    assert round(share.owed_s(0.02), 6) == 0.2
    now_s += 0.2
    assert round(share.owed_s(0.0), 6) == 0.0
    assert round(share.owed_s(0.01) + share.owed_s(0.01), 6) == 0.3, "two have it together, one after the other"
    worked_s = slept_s = 0.0
    now_s += 1000.0
    while now_s < 1200.0:
        now_s += 0.003
        worked_s += 0.003
        owed_s = share.owed_s(0.003)
        now_s += owed_s
        slept_s += owed_s
    assert 0.09 < worked_s / (worked_s + slept_s) < 0.11


async def last_words_of(code: str, *, asides_share: float = ASIDES_SHARE) -> str:
    """What it complained of at last, once it has said `done` and ended."""
    processes = Processes({})
    processes._shares = processes._shares[0], OutputShare(asides_share)
    program = Program(sys.executable, ["python", "-I", "-S", "-c", code], {})
    attended = await SupervisedProcess.start(processes, program, CleaningRules())
    try:
        async with asyncio.timeout(PATIENCE_S):
            assert await attended.read() == b"done"
            await attended.exits()
        await attended.end()
        return attended.last_words.last
    finally:
        await attended.end()
        await processes.close()


async def test_a_program_that_complains_much_is_heard_to_its_end() -> None:
    assert await last_words_of(COMPLAINS) == "the last"


async def test_a_pause_ends_with_the_program() -> None:
    code = "import os, time\nos.write(2, b'first')\ntime.sleep(0.1)\nos.write(2, b'\\nthe last')\nos.write(1, b'done')"
    assert await last_words_of(code, asides_share=1e-6) == "the last"
