"""How deep a call on the common way is, so that no layer is added unseen: the table of `sidecar.gateway`."""

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import sidecar.gateway
from tests.flow.talk import Talk
from tests.flow.world import world

ROWS = re.findall(r"^ +\d  (\S+) +\d  (\S+)$", sidecar.gateway.__doc__ or "", re.MULTILINE)
WAYS = list(map(list, zip(*ROWS, strict=True)))


def above(frame: FrameType | None, first: str) -> list[str]:
    """The functions on the stack from `first` to this frame."""
    names: list[str] = []
    while frame is not None:
        names.append(frame.f_code.co_qualname)
        if names[-1] == first:
            return names[::-1]
        frame = frame.f_back
    return []


async def test_a_call_passes_the_functions_of_the_table_and_no_others(tmp_path: Path) -> None:
    assert [len(way) for way in WAYS] == [4, 4]
    seen: list[list[str]] = []  # a coroutine that goes on is called again

    def look(frame: FrameType, event: str, _: Any) -> None:
        for way in WAYS:
            if event == "call" and frame.f_code.co_qualname == way[-1] and (found := above(frame, way[0])):
                seen.append(found)

    async with world(tmp_path) as running:
        talk = Talk(running, "stateless")
        await talk.call("search_code", {"repo": "acme/site"})  # the era is found, the tools are learned
        sys.setprofile(look)
        try:
            await talk.call("search_code", {"repo": "acme/site"})
        finally:
            sys.setprofile(None)
    assert [way for way in WAYS if way in seen] == WAYS and all(way in WAYS for way in seen)
