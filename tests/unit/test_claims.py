"""Do the pages say what is so, where a test can tell? Issue 15, number 38."""

import re
from typing import Any

import pytest
from click.testing import CliRunner

from sidecar.cli import main
from sidecar.cli.demo import AGENT_SCENES, APPROVAL_SCENES, SCENES
from sidecar.errors import Reason, Refusal
from sidecar.policy.grammar import USED
from sidecar.protocols import jsonrpc
from sidecar.settings.sidecar_file import Settings
from sidecar.upstreams.mcp.arguments import MAX_SCHEMA_BYTES
from sidecar.upstreams.mcp.sessions import upstream_id_from
from sidecar.upstreams.mcp.tools import MAX_CATALOGUE_PATTERNS, tools_from
from tests.conformance.__main__ import NOT_IN_SESSIONS, NOT_ON_PIPES, REFUSED
from tests.pages import NAMES, ROOT
from tests.tables import tables

TEXTS = {name: (ROOT / name).read_text("utf-8") for name in NAMES}
MCP = TEXTS["docs/reference/mcp.md"]
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
OBJECT: dict[str, Any] = {"type": "object"}


def test_policy_says_all_that_use_stands_for() -> None:
    said = re.search(r"`use` stands for (`.*?)\.\n", TEXTS["docs/reference/policy-language.md"], re.DOTALL)
    assert said is not None and set(re.findall(r"`([^`]+)`", said[1])) == set(USED)


def test_no_page_says_that_a_protocol_is_not_spoken_yet() -> None:
    assert {name for name, text in TEXTS.items() if re.search(r"not speak yet|not spoken yet", text)} == set()


def test_where_sessions_are_said_to_live_in_the_process_the_setting_stands_beside() -> None:
    assert Settings.model_fields["sessions"].default_factory is not None
    for name, text in TEXTS.items():
        for found in re.finditer(r"live in (?:the|one) process", text):
            near = text[max(0, found.start() - 300) : found.end() + 300]
            assert "sessions.store" in near or "What lives in one process" in near, name


def test_help_counts_what_the_demo_shows() -> None:
    said = f"{NUMBERS[len(SCENES) + len(AGENT_SCENES) + len(APPROVAL_SCENES)]} calls"
    for command in (["--help"], ["demo", "--help"]):
        assert said in " ".join(CliRunner().invoke(main, command).output.split())


def test_the_readme_says_what_cannot_pass_the_official_suites() -> None:
    line = next(line for line in TEXTS["README.md"].splitlines() if "`make conformance SUITE=mcp`" in line)
    left = (len(REFUSED), len(NOT_ON_PIPES), len(NOT_IN_SESSIONS))
    assert left == (2, 2, 14)
    assert "two checks that must not pass, two that a server on pipes" in line and "fourteen that sessions" in line


SHAPES: dict[str, tuple[Any, str]] = {
    **tables("claims")["shapes"],
    "large": ({**OBJECT, "title": "x" * MAX_SCHEMA_BYTES}, "bytes, more than"),
    "heavy": (
        {**OBJECT, "properties": {f"p{n}": {"pattern": "a"} for n in range(1_500)}},
        "has too many subschemas or patterns",
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_page_names_why_a_tool_is_quarantined(shape: str) -> None:
    schema, reason = SHAPES[shape]
    tool = tools_from([{"name": "t", "inputSchema": schema}], {})["t"]
    assert tool.schema is None and reason in tool.quarantine_reason, tool.quarantine_reason
    assert reason in MCP


def test_the_page_names_why_tools_of_a_list_are_quarantined() -> None:
    twice = tools_from([{"name": "t", "inputSchema": OBJECT}] * 2, {})["t"]
    hidden = tools_from([{"name": "t", "description": "\u200b", "inputSchema": OBJECT}], {}, refuse_hidden=True)["t"]
    lies = tools_from([{"name": "t", "inputSchema": OBJECT, "outputSchema": []}], {}, checks_output=True)["t"]
    for tool, said in ((twice, "the tool is listed twice"), (hidden, "hidden characters in its texts")):
        assert tool.quarantine_reason == said and said in MCP
    assert lies.quarantine_reason.startswith("its outputSchema: it must be an object") and "its outputSchema: " in MCP
    assert f"more than {MAX_CATALOGUE_PATTERNS:,} patterns" in MCP


def test_the_page_names_the_bounds_of_a_message() -> None:
    for number, what in (
        (jsonrpc.MAX_ID_CHARS, "up to {} characters"),
        (jsonrpc.MAX_DEPTH, "{} levels"),
        (jsonrpc.MAX_VALUES, "{} values"),
        (jsonrpc.MAX_KEYS, "{} keys"),
        (jsonrpc.MAX_ANSWER_VALUES, "at most {} values"),
        (jsonrpc.MAX_ANSWER_KEYS, "{} keys"),
    ):
        assert what.format(f"{number:,}") in MCP


def test_the_page_names_the_bound_of_a_servers_session_id() -> None:
    assert upstream_id_from("x" * 1024) == "x" * 1024
    with pytest.raises(Refusal) as refused:
        upstream_id_from("x" * 1025)
    assert refused.value.reason is Reason.RESPONSE_REFUSED
    assert "A session id of a server is 1 to 1,024 visible ASCII characters" in MCP
