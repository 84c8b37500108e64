"""Is a large piece of a stream read in turns?"""

import asyncio
from collections.abc import AsyncGenerator

from sidecar.gateway.response_stream import SLICE_BYTES, _slices


async def test_others_have_their_turn_between_the_slices_of_a_chunk() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def chunks() -> AsyncGenerator[bytes, None]:
        yield b"x" * (40 * SLICE_BYTES + 1)
        yield b"y"

    counting = asyncio.create_task(count())
    pieces = [piece async for piece in _slices(chunks())]
    counting.cancel()
    assert [len(piece) for piece in pieces] == [SLICE_BYTES] * 40 + [1, 1]
    assert turns >= 40
