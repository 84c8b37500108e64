"""What is over is freed at once: is anything of a request left that only the collector would find?"""

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sidecar.gateway.request import RequestContext, WatchedExchange
from sidecar.http.client.http1 import ResponseReader
from tests.flow.world import PATIENCE_S

OF_A_REQUEST = (RequestContext, WatchedExchange, ResponseReader)


@asynccontextmanager
async def nothing_left() -> AsyncIterator[None]:
    """Fails for a request that is in memory when all inside is over. What was there before is not looked at."""
    gc.freeze()
    gc.disable()
    try:
        yield
        async with asyncio.timeout(PATIENCE_S):  # a handler comes to its end after its answer is out
            while left := Counter(type(one).__name__ for one in gc.get_objects() if isinstance(one, OF_A_REQUEST)):
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"only the collector would free them: {dict(left)}") from None
    finally:
        gc.enable()
