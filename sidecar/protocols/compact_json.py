"""Writes compact JSON for storage.

orjson allocates at least 4 KiB and returns it with the result, however short. That is harmless for bytes that are sent
and freed, and a hundred times too much for a short value that is stored.
"""

from __future__ import annotations

import orjson


def compact_json(value: object, option: int | None = None) -> bytes:
    """The result of `orjson.dumps`, in as much memory as it needs."""
    return bytes(memoryview(orjson.dumps(value, option=option)))
