"""How much memory do large answers take, all of them together?"""

import asyncio

import pytest

from sidecar.http.client.room import FREE_BYTES, Room, Share

MIB = 2**20


async def holding(room: Room, size: int) -> Share:
    share = Share(room)
    await share.hold(FREE_BYTES + size, None)
    return share


async def test_small_answers_are_not_counted_and_large_ones_by_their_size() -> None:
    room = Room(10 * MIB)
    small = Share(room)
    await small.hold(FREE_BYTES, None)
    assert room.held == 0
    large = await holding(room, MIB)
    await large.hold(FREE_BYTES + 3 * MIB, None)
    assert (room.held, room.most) == (3 * MIB, 3 * MIB)
    await large.hold(10, None)
    assert (room.held, room.most) == (0, 3 * MIB)
    large.close()
    large.close()
    assert room.held == 0


async def test_one_goes_beyond_the_bound_and_the_others_wait_for_it() -> None:
    room = Room(4 * MIB)
    first, second = await holding(room, 2 * MIB), await holding(room, 2 * MIB)
    await first.hold(FREE_BYTES + 6 * MIB, None)  # of two that are half read, one must come to its end
    waits = asyncio.create_task(second.hold(FREE_BYTES + 3 * MIB, None))
    await asyncio.sleep(0)
    assert not waits.done() and room.held == 8 * MIB
    first.close()
    await asyncio.wait_for(waits, 5)
    assert room.held == 3 * MIB


async def test_who_waits_too_long_holds_what_it_held_and_no_more() -> None:
    room = Room(MIB)
    first, second = await holding(room, 2 * MIB), Share(room)
    with pytest.raises(TimeoutError):
        await second.hold(2 * MIB, asyncio.get_running_loop().time() + 0.01)
    assert (room.held, second.held) == (2 * MIB, 0)
    first.close()
    await second.hold(2 * MIB, None)


async def test_what_nobody_knows_any_more_holds_nothing() -> None:
    room = Room(MIB)
    await holding(room, 2 * MIB)
    assert room.held == 0
    await holding(room, 2 * MIB)
    assert room.held == 0
