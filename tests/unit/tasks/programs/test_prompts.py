"""Does a message say to a program what its caller may say, and nothing more?"""

import base64
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from sidecar.protocols.a2a.errors import AgentError
from sidecar.settings.agents import Allowed, CliAgent
from sidecar.tasks.programs.attempt import Prompt
from sidecar.tasks.programs.command_line import command_from
from sidecar.tasks.programs.prompts import prompt_from
from tests.tables import tables

TABLES = tables("tasks/programs/prompts")

FOLDER = "/srv/work"


def agent(**settings: Any) -> CliAgent:
    per_call = {
        "cli_args": {
            "--language": {"values": ["de", "en", ""]},
            "-n": {"matches": "[0-9]+"},
            "-s": {"values": ["", "x"]},
            "--style": {"matches": ".*"},
            "--dash": {"values": ["-", "--all"]},
            "-q": {"values": [""]},
        },
        "envs": {"LEVEL": {"matches": "[a-z]{1,8}"}, "QUIET": {"values": ["true"]}},
        "working_directories": [Path(FOLDER)],
    }
    return CliAgent.model_validate({"executable": "/bin/true", "per_call": per_call} | settings)


def read(*parts: dict[str, Any], **settings: Any) -> Prompt:
    return prompt_from({"messageId": "m", "role": "ROLE_USER", "parts": list(parts)}, agent(**settings))


def refused(*parts: dict[str, Any], **settings: Any) -> AgentError:
    return prompt_from({"parts": list(parts)}, agent(**settings))


def raw(content: bytes) -> str:
    return base64.b64encode(content).decode()


@pytest.mark.parametrize(("parts", "text"), TABLES["chosen"])
def test_what_it_says_is_one_text(parts: list[dict[str, Any]], text: str) -> None:
    prompt = read(*parts)
    assert (prompt.text, prompt.cli_args, prompt.envs, prompt.working_directory) == (text, {}, {}, None)
    assert prompt.message["parts"] == parts


def test_a_call_chooses_what_the_operator_lets_it_choose() -> None:
    chosen = {
        "parameters": {"language": "de", "-n": 3.0, "dash": "--all"},
        "environment": {"LEVEL": "low", "QUIET": True},
        "working_directory": FOLDER,
    }
    prompt = read({"text": "go"}, {"data": chosen})
    assert prompt.text == "go"
    assert prompt.cli_args == {"--language": "de", "-n": "3", "--dash": "--all"}
    assert prompt.envs == {"LEVEL": "low", "QUIET": "true"}
    assert prompt.working_directory == FOLDER


@pytest.mark.parametrize(("parameters", "arguments"), TABLES["empty"])
def test_an_empty_value_does_not_let_its_option_take_the_next(parameters: dict[str, str], arguments: list[str]) -> None:
    definition = agent(executable="/bin/true", args=["--", "{prompt}"], input_pattern="args", cli_args={"-v": ""})
    prompt = prompt_from({"parts": [{"text": "-rm"}, {"data": {"parameters": parameters}}]}, definition)
    assert list(command_from("a", definition, {}).program(prompt).argv[1:]) == arguments


@pytest.mark.parametrize("name", ["language", "-", "--", "---x", "--a=b", "--a b"])
def test_only_the_name_of_an_option_can_be_chosen(name: str) -> None:
    with pytest.raises(ValidationError) as caught:
        agent(per_call={"cli_args": {name: {"values": ["x"]}}})
    assert "is not an option" in str(caught.value.errors())


NOT_CHOSEN: list[tuple[dict[str, Any], str]] = [
    *TABLES["not_chosen"],
    ({"parameters": {"a/b~\x1b" + "c" * 100: "x"}}, "/parameters/a~1b~0?" + "c" * 59 + " cannot be chosen"),
    ({"environment": {"LEVEL": "a" * 300}}, "/environment/LEVEL has a value that cannot be chosen"),
]


@pytest.mark.parametrize(("data", "told"), NOT_CHOSEN)
def test_what_it_may_not_choose_is_refused_by_place_and_never_by_value(data: dict[str, Any], told: str) -> None:
    error = refused({"data": data})
    assert told in error.message and error.kind.reason == "INVALID_PARAMS"
    for value in ("secret", "evil", "/etc", "/bin/sh"):
        assert value not in error.message


def test_without_leave_nothing_can_be_chosen() -> None:
    for data in ({"parameters": {"language": "de"}}, {"environment": {"PATH": "/x"}}, {"working_directory": "/"}):
        assert "cannot be chosen" in refused({"data": data}, per_call={}).message


def test_a_program_that_speaks_json_rpc_may_be_told_whatever_else_stands_there() -> None:
    data = {"prompt": "p", "depth": 3}
    prompt = read({"data": data}, input_pattern="json-rpc")
    assert prompt.text == "p" and prompt.message["parts"][0]["data"] == data


@pytest.mark.parametrize(
    ("part", "reason", "told"),
    [*TABLES["refused"], ({"text": "x" * 2000}, "INVALID_PARAMS", "say 2000 bytes, and this agent takes 1024")],
)
def test_what_a_program_cannot_be_told_is_refused(part: dict[str, Any], reason: str, told: str) -> None:
    error = refused(part, a2a={"capabilities": {"max_input_size": 1024}})
    assert error.kind.reason == reason and told in error.message
    assert "evil" not in error.message and "xxx" not in error.message


def test_content_types_may_be_patterns_and_have_parameters() -> None:
    takes = {"capabilities": {"supported_content_types": ["text/*"]}}
    assert read({"text": "x", "mediaType": "Text/Markdown; charset=utf-8"}, a2a=takes).text == "x"
    assert refused({"data": 1}, a2a=takes).kind.reason == "CONTENT_TYPE_NOT_SUPPORTED"


def test_who_takes_text_alone_is_told_by_operators_schedules_and_the_task_api_too() -> None:
    takes: dict[str, Any] = {"a2a": {"capabilities": {"supported_content_types": ["text/plain"]}}}
    order = {"prompt": "go", "parameters": {"language": "de"}}
    prompt = read({"data": order, "mediaType": "application/json"}, **takes)
    assert (prompt.text, prompt.cli_args) == ("go", {"--language": "de"})
    refusing = ({"data": order | {"more": 1}}, {"data": order, "mediaType": "image/png"}, {"data": {"topic": "tides"}})
    for part in refusing:
        assert refused(part, input_pattern="json-rpc", **takes).kind.reason == "CONTENT_TYPE_NOT_SUPPORTED"


@pytest.mark.parametrize(("args", "text", "is_told"), TABLES["words"])
def test_a_prompt_that_looks_like_an_option_is_told_only_behind_the_last_of_them(
    args: list[str], text: str, is_told: bool
) -> None:
    """BL-093: exactly the text, or a no."""
    prompt = prompt_from({"parts": [{"text": text}]}, agent(args=args, input_pattern="args"))
    assert isinstance(prompt, Prompt) is is_told


@pytest.mark.parametrize(
    "parts", [[{"text": "one"}, {"text": "two"}], [{"text": "one\u2028two"}], [{"text": "one\rtwo"}]]
)
def test_several_lines_are_refused_where_a_line_is_a_message(parts: list[dict[str, Any]]) -> None:
    error = refused(*parts, mode="interactive")
    assert error.message == "/message/parts say several lines, and to this agent a line is a message of its own"
    for settings in ({"newlines": "json"}, {"newlines": "space"}, {"keep_alive": False}, {"agent_type": "json-rpc"}):
        assert len(read(*parts, mode="interactive", **settings).text.splitlines()) == 2


@pytest.mark.parametrize(
    ("pattern", "value", "may"),
    [*TABLES["patterns"], ("(a|a)*b|[a-z]+x", "a" * 256, False), ("(a|a)*b|[a-z]+x", "a" * 255 + "b", True)],
)
def test_a_value_is_matched_as_a_whole_and_in_no_time(pattern: str, value: str, may: bool) -> None:
    assert Allowed(matches=pattern).admits(value) is may


@pytest.mark.parametrize("pattern", ["a(?!b)", r"(a)\1", "a)|(b", "(?x)a # b", "((a{1000}){1000}){1000}"])
def test_a_pattern_that_could_take_long_or_means_something_else_is_refused(pattern: str) -> None:
    with pytest.raises(ValidationError):
        Allowed(matches=pattern)


REFUSED = [
    ("nul \0", "NUL"),
    ("x" * 200_000, "131071"),
    ("é" * 70_000, "140000 bytes"),
    ("\ud800", "half of a character"),
]


@pytest.mark.parametrize(("text", "told_so"), REFUSED)
def test_what_cannot_be_an_argument_is_refused_before_anything_starts(text: str, told_so: str) -> None:
    """BL-093."""
    error = refused({"text": text}, input_pattern="args")
    assert told_so in error.message and "xxx" not in error.message


def test_a_prompt_and_an_answer_have_two_files() -> None:
    with pytest.raises(ValidationError) as caught:
        agent(agent_type="file-file", input_file_template="x.md", output_file_template="x.md")
    assert "both files have the same name" in str(caught.value.errors())
