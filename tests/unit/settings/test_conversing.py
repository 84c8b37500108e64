"""Which definitions of a program that is talked with cannot hold?"""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from sidecar.settings.agents import CliAgent

TALKS = {"executable": "chat", "mode": "interactive"}


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"mode": "task", "turn_end": "."}, "turn_end is for a conversation on standard input, and this is none"),
        ({"keep_alive": False, "greets": True}, "greets is for a conversation on standard input, and this is none"),
        ({"agent_type": "json-rpc", "newlines": "space"}, "newlines is for a conversation on standard input"),
        ({"max_sessions": 3}, "4 conversations may speak at once, and max_sessions is 3"),
    ],
)
def test_what_has_no_effect_or_leaves_no_room_is_a_fault(more: dict[str, Any], what: str) -> None:
    with pytest.raises(ValidationError) as caught:
        CliAgent.model_validate(TALKS | more)
    assert what in str(caught.value.errors()[0]["ctx"]["findings"])


@pytest.mark.parametrize(
    "more", [{"newlines": "json", "greets": True}, {"max_sessions": 1, "access_type": "read-write"}]
)
def test_what_holds_is_taken(more: dict[str, Any]) -> None:
    assert CliAgent.model_validate(TALKS | more).keeps_processes
