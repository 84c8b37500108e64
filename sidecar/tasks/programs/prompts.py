"""Reads a prompt and the chosen arguments from a message.

Text, and files that are text, form the prompt, in order. A data part that is an object with any of these members sets
options of the call instead; only what `per_call` allows is accepted:

    prompt              more text
    parameters          values of options, by name, with or without dashes
    environment         values of variables
    working_directory   one of the folders that the operator lists

All other data becomes JSON text in the prompt; a JSON-RPC program also gets the message. URLs are never fetched.
"""

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeGuard

import orjson

from sidecar.policy.patterns import glob
from sidecar.protocols.a2a.errors import BY_REASON, AgentError
from sidecar.settings.agents import PROMPT, Allowed, CliAgent
from sidecar.tasks.programs.attempt import Prompt
from sidecar.tasks.programs.line_protocol import is_sayable

MAX_ARGUMENT_BYTES: Final = 128 * 1024 - 1  # MAX_ARG_STRLEN of Linux, less the terminating byte
_JSON: Final = "application/json"
_CALL: Final = frozenset({"prompt", "parameters", "environment", "working_directory"})
_SHOWN_CHARS: Final = 64
_HALF: Final = re.compile("[\ud800-\udfff]")


class _UnsaidError(Exception):
    """The fault of the message and its place (a JSON Pointer), without values."""

    def __init__(self, pointer: str, problem: str, reason: str = "INVALID_PARAMS") -> None:
        super().__init__(f"{pointer} {problem}")
        self.error = AgentError(BY_REASON[reason].code, f"{pointer} {problem}")


def prompt_from(message: Mapping[str, Any], definition: CliAgent) -> Prompt | AgentError:
    """Returns the prompt in a canonical message, or the error for the refusal."""
    try:
        reading = _Reading(definition)
        for index, part in enumerate(message.get("parts", ())):
            reading.part(part, f"/message/parts/{index}")
        text = "\n".join(reading.texts)
        _check(text, definition)
    except _UnsaidError as unsaid:
        return unsaid.error
    return Prompt(text, reading.options, reading.variables, reading.folder, message)


class _Reading:
    def __init__(self, definition: CliAgent) -> None:
        self.texts: list[str] = []
        self.options: dict[str, str] = {}
        self.variables: dict[str, str] = {}
        self.folder: str | None = None
        self._definition = definition
        self._allowed = definition.per_call

    def part(self, part: Mapping[str, Any], at: str) -> None:
        if "url" in part:
            raise _UnsaidError(f"{at}/url", "is an address, and nothing is fetched; send the text itself")
        self._check_type(part, at)
        if "raw" in part:
            self.texts.append(_text_of(part["raw"], f"{at}/raw"))
        elif "data" in part:
            self._data(part["data"], f"{at}/data")
        else:
            self.texts.append(part.get("text", ""))

    def _check_type(self, part: Mapping[str, Any], at: str) -> None:
        type_ = part.get("mediaType", _JSON if "data" in part else "text/plain").partition(";")[0].strip().lower()
        data = part.get("data")
        if type_ == _JSON and _is_of_call(data) and data.keys() <= _CALL:  # it only sets options: it has no type
            return
        taken = self._definition.a2a.capabilities.supported_content_types
        if not any(glob(type_, pattern.lower()) for pattern in taken):
            problem = f"is not accepted by this agent, which accepts {', '.join(taken)}"
            raise _UnsaidError(f"{at}/mediaType", problem, "CONTENT_TYPE_NOT_SUPPORTED")

    def _data(self, data: Any, at: str) -> None:
        if not _is_of_call(data):
            self.texts.append(orjson.dumps(data).decode())
            return
        others = sorted(data.keys() - _CALL)
        if others and self._definition.patterns.input != "json-rpc":
            # Fail closed: content that its caller may have meant as options must not reach the program as text.
            beside = ", ".join(sorted(_CALL))
            raise _UnsaidError(f"{at}/{_shown(others[0])}", f"is next to one of {beside}, and is none of them")
        if "prompt" in data:
            self.texts.append(_string(data["prompt"], f"{at}/prompt"))
        for name, value in _object(data, "parameters", at):
            self._option(name, value, f"{at}/parameters/{_shown(name)}")
        for name, value in _object(data, "environment", at):
            here = f"{at}/environment/{_shown(name)}"
            if name not in self._allowed.envs:
                raise _UnsaidError(here, "cannot be chosen")
            _once(self.variables, name, _chosen(self._allowed.envs[name], value, here), here)
        if "working_directory" in data:
            self._folder(data["working_directory"], f"{at}/working_directory")

    def _option(self, given: str, value: Any, at: str) -> None:
        options = self._allowed.cli_args
        name = next((name for name in (given, f"--{given}", f"-{given}") if name in options), None)
        if name is None:
            raise _UnsaidError(at, "cannot be chosen")
        text = _chosen(options[name], value, at)
        if text.startswith("-") and text not in options[name].values:
            # Fail closed: a pattern that happens to match does not permit an option.
            raise _UnsaidError(at, "has a value that looks like an option")
        if not (text or options[name].is_flag or name.startswith("--")):
            raise _UnsaidError(at, "has an empty value, which only an option of two dashes can have")
        _once(self.options, name, text, at)

    def _folder(self, value: Any, at: str) -> None:
        text = _string(value, at)
        if text not in {str(folder.absolute()) for folder in self._allowed.working_directories}:
            raise _UnsaidError(at, "cannot be chosen")
        if self.folder not in (None, text):
            raise _UnsaidError(at, "is chosen twice")
        self.folder = text


def _is_of_call(data: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(data, dict) and bool(data.keys() & _CALL)


def _check(text: str, definition: CliAgent) -> None:
    size, at = len(text.encode("utf-8", "surrogatepass")), "/message/parts"
    largest = definition.a2a.capabilities.max_input_size
    if size > largest:
        raise _UnsaidError(at, f"say {size} bytes, and this agent takes {largest}")
    if "\0" in text:
        raise _UnsaidError(at, "hold a NUL character, which no program can receive")
    if _HALF.search(text):
        raise _UnsaidError(at, "hold half of a character, which is not text")
    if not is_sayable(text, definition):
        raise _UnsaidError(at, "say several lines, and to this agent a line is a message of its own")
    if definition.patterns.input != "args":
        return
    if size > MAX_ARGUMENT_BYTES:
        most = f"this agent receives its input as an argument, which holds {MAX_ARGUMENT_BYTES}"
        raise _UnsaidError(at, f"say {size} bytes, and {most}")
    args = definition.args
    # Behind `--`, nothing can be an option.
    if text.startswith("-") and PROMPT in args and "--" not in args[: args.index(PROMPT)]:
        raise _UnsaidError(at, "begin with -, which this agent would take for an option")


def _chosen(allowed: Allowed, value: Any, at: str) -> str:
    text = value if isinstance(value, str) else _scalar(value, at)
    if not allowed.admits(text):
        raise _UnsaidError(at, "has a value that cannot be chosen")
    return text


def _scalar(value: Any, at: str) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    if not isinstance(value, bool | int | float):
        raise _UnsaidError(at, "must be a text, a number, true or false")
    return orjson.dumps(value).decode()


def _once(chosen: dict[str, str], name: str, value: str, at: str) -> None:
    if chosen.setdefault(name, value) != value:
        raise _UnsaidError(at, "is chosen twice")


def _object(data: Mapping[str, Any], key: str, at: str) -> Iterator[tuple[str, Any]]:
    value = data.get(key, {})
    if not isinstance(value, dict):
        raise _UnsaidError(f"{at}/{key}", "must be an object")
    yield from value.items()


def _string(value: Any, at: str) -> str:
    if not isinstance(value, str):
        raise _UnsaidError(at, "must be a text")
    return value


def _text_of(raw: str, at: str) -> str:
    try:
        return base64.b64decode(raw).decode("utf-8")
    except ValueError:
        raise _UnsaidError(at, "is not text in UTF-8", "CONTENT_TYPE_NOT_SUPPORTED") from None


def _shown(name: str) -> str:
    plain = "".join(character if character.isprintable() else "?" for character in name[:_SHOWN_CHARS])
    return plain.replace("~", "~0").replace("/", "~1")
