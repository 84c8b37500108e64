"""Mutated bodies of AuthZEN requests, and what their answers must be.

python -m tests.flow.authzen_mutations [bodies]     10,000 by default; prints how many of each status
"""

import asyncio
import copy
import json
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from tests.flow.authzen import ALICE, BOB, PLANNER, arguments, ask, authzen_world, question
from tests.flow.world import World

QUESTION = question(ALICE, "read", "record:101", properties={"status": "active"}, context={"agent": "planner"})
TOOL = question(PLANNER, "tools/call", "tool:github/search_code", properties=arguments(repo="acme/a", limit=3))
BODIES: tuple[tuple[str, Any], ...] = (
    ("evaluation", QUESTION),
    ("evaluation", TOOL),
    ("evaluation", question(PLANNER, "tasks/get", "mcp_server:github", properties=arguments(taskId="1"))),
    ("evaluation", question(PLANNER, "prompts/get", "prompt:github/p", properties=arguments(a="b"))),
    ("evaluation", question(PLANNER, "completion/complete", "resource:github/docs://a/b")),
    ("evaluation", question(BOB, "message/send", "agent:planner", properties=arguments(message={"parts": []}))),
    ("evaluations", {**QUESTION, "evaluations": [TOOL, {"action": {"name": "write"}}], "options": {"a": 1}}),
    ("search/subject", {**QUESTION, "page": {"limit": 1}}),
    ("search/resource", {**QUESTION, "page": {"limit": 1, "token": "WyIiLDEsIiJd"}}),
    ("search/action", QUESTION),
)
ODD: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1.5,
        2**53,
        10**18,
        "",
        " ",
        "\x00",
        "é",
        "*",
        "user:*",
        "a/../b",
        "%2e%2e",
        "{action}",
    ),
    *("x" * 300, "a" * 5_000, [], {}, [[]], {"": ""}, {"type": "user"}, ["evaluations"], "\\", "${x}", "tools/call"),
    *(
        "{action}",
        "use",
        "github/get_file",
        "nhi:planner",
        "docs://a/b?c#d",
        "file:///etc",
        {"arguments": {"a": {"b": [1, None]}}},
    ),
    *("execute_all", "deny_on_first_deny", "record", "tool", "prompt", "resource", "mcp_server", "agent", "identity"),
)


def mutated(draw: random.Random, body: Any) -> bytes:
    """A body with one to four changes of its values, and sometimes of its bytes."""
    told = json.loads(json.dumps(body))
    for _ in range(draw.randint(1, 4)):
        _change(draw, told)
    raw = bytearray(json.dumps(told, ensure_ascii=draw.random() < 0.5).encode())
    while draw.random() < 0.2 and raw:
        at, byte = draw.randrange(len(raw)), draw.choice((*b'{}[]",:\\ue0', 0, 255))
        raw[at : at + draw.randint(0, 2)] = bytes([byte] * draw.randint(0, 2))
    return bytes(raw)


def _change(draw: random.Random, value: Any) -> None:
    while isinstance(value, dict | list) and value:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = draw.choice(keys)
        if isinstance(value[key], dict | list) and value[key] and draw.random() < 0.75:
            value = value[key]
            continue
        match draw.randint(0, 3):
            case 0:
                del value[key]
            case 1 if isinstance(value, dict):
                value[draw.choice(("type", "id", "name", "properties", "token", "agent", "charge"))] = copy.deepcopy(
                    draw.choice(ODD)
                )
            case _:
                value[key] = copy.deepcopy(draw.choice(ODD))
        return


async def send(running: World, seeds: range) -> Counter[int]:
    """Sends a mutated body for each seed, and checks its answer. Returns how many had each status."""
    counts = Counter[int]()
    for seed in seeds:
        draw = random.Random(seed)
        path, body = draw.choice(BODIES)
        raw = mutated(draw, body)
        status, told, _ = await ask(running, path, raw)
        counts[status] += 1
        assert status in (200, 400, 413), (seed, path, raw, status, told)
        if status != 200:
            assert isinstance(told["error"], str), (seed, path, raw, told)
        elif path.startswith("search/"):
            assert isinstance(told["results"], list), (seed, path, raw, told)
        else:
            for one in told.get("evaluations", [told]):
                assert isinstance(one["decision"], bool), (seed, path, raw, told)
                assert one["context"].get("reason") != "internal", (seed, path, raw, told)
    return counts


async def main(bodies: int) -> Counter[int]:
    with tempfile.TemporaryDirectory() as temporary:
        async with authzen_world(Path(temporary)) as running:
            return await send(running, range(bodies))


if __name__ == "__main__":
    print(dict(asyncio.run(main(int((sys.argv[1:] or ["10000"])[0])))))
