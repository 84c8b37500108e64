"""Does JSON that is kept take the memory that it needs?"""

import tracemalloc

import orjson

from sidecar.protocols.jsonrpc import compact_json

COUNT = 1_000


def test_a_short_value_takes_few_bytes_and_is_what_orjson_writes() -> None:
    value = {"b": ["nhi:corp/researcher"], "a": 1}
    tracemalloc.start()
    try:
        kept = [compact_json(value) for _ in range(COUNT)]
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert taken / COUNT < 200
    assert set(kept) == {orjson.dumps(value)}
    assert compact_json(value, orjson.OPT_SORT_KEYS) == b'{"a":1,"b":["nhi:corp/researcher"]}'
