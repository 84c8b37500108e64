"""How does a test see what takes two minutes?

Inside the block the event loop's clock runs so many times faster: whatever waits by it (deadlines, timers, `sleep`)
waits that much less. What takes processor time takes as long as ever, and so seems slow.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def haste(times: float, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    loop: Any = asyncio.get_running_loop()
    clock, select, began = loop.time, loop._selector.select, loop.time()

    def sooner(timeout: float | None = None) -> Any:
        return select(timeout / times if timeout else timeout)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "time", lambda: began + (clock() - began) * times)
        patch.setattr(loop._selector, "select", sooner)
        yield
