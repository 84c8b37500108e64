"""What does a step say to an agent? The tools of `play.py`, as agents and messages: `talk.mjs` in Python.

`closed` refuses every message, `metered` takes one an hour; the others go to `player`.
"""

from __future__ import annotations

from typing import Any


def addressed(tool: str, arguments: dict[str, Any]) -> tuple[str, str]:
    """The agent, and the message to it."""
    if tool == "weather":
        return "metered", "echo: fair"
    if tool == "steps":
        return "player", "slow: 3"
    if tool == "slow":
        return "player", f"forever: {arguments['tag']}"
    text = arguments["text"]
    return ("closed" if text == "forbidden" else "player"), f"echo: {text}"
