"""Do large bodies leave the loop and the memory to the others, and to one another their turn?"""

import asyncio
import math
from contextlib import ExitStack, closing

import pytest

from sidecar.errors import Reason, Refusal
from sidecar.http.server import body_admission
from sidecar.http.server.body_admission import (
    PATIENCE_S,
    PRINCIPAL_SHARE,
    TOTAL_SHARE,
    BodyAdmission,
    BodyRoom,
    cost_of,
    cost_of_wire,
)
from sidecar.protocols.a2a.wire import WIRES

COST_S = 0.01
MIB = 2**20


class Clock:
    """Time that passes only as the test says."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.pace = BodyAdmission(clock=lambda: self.now_s, sleep=self.sleep)

    async def sleep(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            await asyncio.sleep(0)

    async def passes(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += 0.001
            for _ in range(5):
                await asyncio.sleep(0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pace(clock: Clock) -> BodyAdmission:
    return clock.pace


async def gone(tasks: list[asyncio.Task[bool]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_small_bodies_and_long_texts_never_wait(pace: BodyAdmission) -> None:
    await pace.wait("nhi:a", COST_S)
    for body in (b'{"a":[' + b"1," * 1_000 + b"1]}", b'{"a":"' + b"x" * 100_000 + b'"}', b"", b"[" * 8 * 1024):
        assert not await pace.wait("nhi:a", cost_of(body))


async def test_the_first_large_one_goes_on_at_once_and_the_next_when_its_share_has_room(clock: Clock) -> None:
    """Who has sent none waits for one of another's, and not for its row."""
    done: dict[str, list[float]] = {"nhi:a": [], "nhi:b": []}

    async def one(who: str) -> None:
        assert await clock.pace.wait(who, COST_S)
        done[who].append(clock.now_s - 1_000.0)

    tasks = [asyncio.create_task(one(who)) for who in ["nhi:a"] * 20 + ["nhi:b"]]
    await clock.passes(3.0)
    distance_s = COST_S / PRINCIPAL_SHARE
    assert done["nhi:a"][:3] == pytest.approx([0, distance_s, 2 * distance_s], abs=0.01)
    assert done["nhi:b"][0] <= COST_S / TOTAL_SHARE + 0.003
    await asyncio.gather(*tasks)


@pytest.mark.parametrize("names", [1, 1_000], ids=["of one", "of everybody"])
async def test_who_would_wait_too_long_is_told_when_to_come_again(clock: Clock, names: int) -> None:
    pace, share = clock.pace, PRINCIPAL_SHARE if names == 1 else TOTAL_SHARE
    fit = int(PATIENCE_S * share / COST_S) + 1
    waiting = [asyncio.create_task(pace.wait(f"nhi:{number % names}", COST_S)) for number in range(fit)]
    await asyncio.sleep(0)
    with pytest.raises(Refusal) as caught:
        await pace.wait("nhi:0" if names == 1 else "nhi:new", COST_S)
    assert caught.value.reason is Reason.OVERLOADED
    assert caught.value.retry_after_s == pytest.approx(PATIENCE_S, rel=0.1)
    assert await pace.wait("nhi:b", 0.001) is False
    await gone(waiting)


async def test_who_leaves_a_line_leaves_nothing_owing_in_it(clock: Clock) -> None:
    pace = clock.pace
    assert await pace.wait("nhi:a", COST_S)
    waiting = [asyncio.create_task(pace.wait(f"nhi:{name}", COST_S)) for name in "abcdefgh" for _ in range(20)]
    await clock.passes(0.002)
    await gone(waiting)
    own, everybodys = pace.lines("nhi:b")
    assert own.left_s(clock.now_s) <= COST_S / PRINCIPAL_SHARE
    assert everybodys.left_s(clock.now_s) <= COST_S / TOTAL_SHARE
    await clock.passes(0.2)
    assert await asyncio.wait_for(pace.wait("nhi:a", COST_S), 1)


async def test_bodies_that_come_or_wait_have_a_room_and_one_principal_a_part_of_it(clock: Clock) -> None:
    pace = clock.pace
    with ExitStack() as stack:

        def fill(who: str) -> int:
            for number in range(1_000):
                room = stack.enter_context(closing(BodyRoom(pace, who)))
                try:
                    for size in (body_admission.FREE_BYTES, MIB // 2, MIB):
                        room.grow(size)
                except Refusal as refusal:
                    assert refusal.reason is Reason.OVERLOADED
                    return number
            return 1_000

        assert 32 <= fill("nhi:a") <= 36  # of a megabyte each, and what is free of each
        assert sum(fill(f"nhi:{name}") for name in "bcdefgh") <= 4 * 36
        assert body_admission.TOTAL_ROOM - MIB <= pace.held <= body_admission.TOTAL_ROOM
        BodyRoom(pace, "nhi:z").grow(body_admission.FREE_BYTES)  # who sends what is small finds it as ever
    assert pace.held == 0
    BodyRoom(pace, "nhi:a").grow(MIB)


async def test_the_table_of_names_is_bounded_and_forgets_who_has_its_share_again(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_admission, "MAX_NAMES", 3)
    pace = clock.pace
    pace.lines("nhi:0")[1].share = math.inf
    for number in range(3):
        await pace.wait(f"nhi:{number}", COST_S)
    strangers = [asyncio.create_task(pace.wait(f"nhi:{number}", COST_S)) for number in range(3, 20)]
    await clock.passes(0.01)
    assert len(pace) == 4  # and one for those who find no place, who have one share together
    await gone(strangers)
    clock.now_s += 10
    await pace.wait("nhi:5", COST_S)
    assert len(pace) == 1


@pytest.mark.parametrize(
    ("part", "values"),
    [
        ({"data": [None] * 20_000}, 20_000),
        ({"data": dict.fromkeys(map(str, range(10_000)), "x" * 40)}, 10_000),
        ({"text": "x" * 500_000}, 1),
    ],
    ids=["a list", "an object of longer texts", "one text"],
)
def test_what_a_body_costs_is_never_less_than_its_bytes_and_values(part: dict[str, object], values: int) -> None:
    """Nor what one of protocol buffers does."""
    assert cost_of(b'{"a":[' + b"1," * 40_000 + b"1]}") == pytest.approx(40_000 * 2.5e-7, rel=0.1)
    assert cost_of(b"x" * 2**20) == pytest.approx(0.0052, rel=0.1)
    body = WIRES["1.0"].encode("SendMessageRequest", {"message": {"messageId": "m", "parts": [part]}})
    counted = (cost_of_wire(body) - len(body) * body_admission.BYTE_S) / body_admission.VALUE_S
    assert values <= counted + 1 and counted <= 6 * values + len(body) // 30
