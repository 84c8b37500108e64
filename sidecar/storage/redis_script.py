"""Loads the Lua scripts, which work on keys that replicas share."""

from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

SCRIPTS: Final = Path(__file__).with_name("scripts")
Run = Callable[[str, str, Sequence[str]], Awaitable[Any]]
"""Runs a script on one key that replicas share, and returns its reply; None if the store is not shared. Raises
ConnectionError if no reply arrives in time."""


@cache
def script_text(name: str) -> str:
    """Returns the Lua source of one script in `storage/scripts/`."""
    return (SCRIPTS / f"{name}.lua").read_text(encoding="utf-8")
