"""Writes compact JSON for storage.

orjson writes into 4 KiB at least, and gives all of it away with the answer, however short. That is nothing for bytes
that are sent and gone, and a hundred times too much for a short value that stays.
"""

from __future__ import annotations

import orjson


def compact_json(value: object, option: int | None = None) -> bytes:
    """What `orjson.dumps` gives, in as much memory as it needs."""
    return bytes(memoryview(orjson.dumps(value, option=option)))
