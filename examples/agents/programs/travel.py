#!/usr/bin/env python3
"""Plans a journey by asking: an agent that speaks JSON-RPC on its pipes, and remembers what it was told.

A conversation is one process, so it may keep what it knows in variables. It asks until it knows where to and for how
long, then packs one day after the other, and says how far it is.
"""

import json
import re
import sys
import time
from typing import Any


def say(message: dict[str, Any]) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def answer(number: Any, state: str, text: str) -> None:
    say({"id": number, "result": {"state": state, "text": text}})


def plan(number: Any, where: str, days: int) -> None:
    for day in range(1, days + 1):
        say({"method": "progress", "params": {"message": f"day {day}", "progress": day, "total": days}})
        say({"method": "output", "params": {"text": f"Day {day}: {where}, on foot.\n"}})
        time.sleep(0.05)
    answer(number, "completed", f"{days} days in {where} are planned.")


def main() -> None:
    where, days = "", 0
    for line in sys.stdin:
        asked = json.loads(line)
        if asked.get("method") != "message/send":
            continue
        text = asked["params"]["text"].strip()
        if not where:
            where = text if text.lower() not in ("", "hello", "plan a journey") else ""
        elif found := re.search(r"\d+", text):
            days = min(int(found[0]), 30)
        if not where:
            answer(asked["id"], "input-required", "Where to?")
        elif not days:
            answer(asked["id"], "input-required", f"How many days in {where}?")
        else:
            plan(asked["id"], where, days)
            days = 0


if __name__ == "__main__":
    main()
