"""Implements JSON-RPC with a program over its pipes: one message per line, as documented in
`docs/reference/cli-agents.md`.

    sidecar   {"id": 1, "method": "message/send", "params": {…}}     one at a time; the sidecar's ids, counted from 1
              {"method": "cancel", "params": {"id": 1}}
    program   {"method": "progress" | "output" | "artifact", "params": {…}}                  any number
              {"id": 1, "result": …} or {"id": 1, "error": {…}}                              once, the end of the turn

An invalid or ambiguous message breaks the conversation: an author notices this at once, but a lost answer only at the
timeout. A line that does not begin with `{` is noise and skipped within bounds, and so are messages out of turn.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import orjson

from sidecar.errors import Refusal
from sidecar.protocols.a2a.messages import V10
from sidecar.protocols.a2a.schema import UnreadableMessage
from sidecar.protocols.jsonrpc import (
    MAX_ANSWER_KEYS,
    MAX_ANSWER_VALUES,
    METHOD_NOT_FOUND,
    Notification,
    Request,
    Response,
    encode_notification,
    encode_request,
    encode_response,
    message_from,
    parse_json,
)
from sidecar.tasks.programs.attempt import (
    DialogueBroken,
    Heard,
    OutputArtifact,
    OutputChunk,
    ProgramOrder,
    ProgressNote,
    TurnAnswer,
    TurnReply,
    UnsayableError,
)
from sidecar.tasks.programs.run_record import Category, Failure

MAX_LINE_BYTES: Final = 4 * 2**20  # longer output must be split
EACH_BYTES: Final = 16  # a message counts for at least this, because many empty ones are work too
MAX_ARTIFACTS: Final = 1_000  # different ones per turn; each is searched for among the others, here and by clients
MAX_NOISE: Final = 1_000  # lines per turn that are not JSON-RPC: a banner is skipped, a log is not
STATES: Final[Mapping[str, str]] = {
    "completed": "TASK_STATE_COMPLETED",
    "failed": "TASK_STATE_FAILED",
    "rejected": "TASK_STATE_REJECTED",
    "canceled": "TASK_STATE_CANCELED",
    "input-required": "TASK_STATE_INPUT_REQUIRED",
    "auth-required": "TASK_STATE_AUTH_REQUIRED",
}
# The categories that a program may name; `system` is the sidecar's own.
_CATEGORIES: Final = {one.value: one for one in (Category.TRANSIENT, Category.PERMANENT, Category.AGENT)}
_UNSAID: Final = "it says that it failed, and not why"


class RpcDialogue:
    """JSON-RPC with one process. A turn, like the time between turns, has at most `max_said_bytes`, counted as JSON."""

    def __init__(self, max_said_bytes: int, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self._max_said_bytes = max_said_bytes
        self._max_line_bytes = max_line_bytes
        self._rest = bytearray()  # of a line that has not ended
        self._last_id = self._said_bytes = self._noise = 0
        self._asked = self._has_output = False
        self._artifacts: set[str] = set()

    @property
    def strays(self) -> bool:
        return False

    def begin(self, order: ProgramOrder) -> bytes:
        try:
            line = encode_request(Request(self._last_id + 1, "message/send", _params(order)))
        except TypeError:  # an unpaired surrogate, or nested too deeply
            raise UnsayableError("the message cannot be written as JSON") from None
        self._last_id += 1
        self._asked = True
        self._said_bytes, self._noise, self._has_output = 0, 0, False
        self._artifacts.clear()
        return line + b"\n"

    def cancel(self) -> bytes:
        return encode_notification(Notification("cancel", {"id": self._last_id})) + b"\n" if self._asked else b""

    def hear(self, chunk: bytes) -> Iterator[Heard]:
        *ends, begun = chunk.split(b"\n")
        for end in ends:
            self._bound_line(len(end))
            line = bytes(self._rest) + end
            self._rest.clear()
            yield from self._line(line.strip(b" \t\r"))
        self._bound_line(len(begun))
        self._rest += begun

    def _bound_line(self, more: int) -> None:
        if len(self._rest) + more > self._max_line_bytes:
            raise DialogueBroken(f"it wrote a line of more than {self._max_line_bytes} bytes")

    def over(self) -> Iterator[Heard]:
        yield from self.hear(b"\n")

    def _line(self, line: bytes) -> Iterator[Heard]:
        if not line.startswith(b"{"):
            self._count(len(line))
            self._forgive(bool(line))
            return
        try:
            message = message_from(parse_json(line, max_keys=MAX_ANSWER_KEYS, max_values=MAX_ANSWER_VALUES))
        except Refusal as refusal:
            raise DialogueBroken(f"it wrote a line that is not a JSON-RPC message: {refusal.detail}") from None
        match message:
            case Request(id=number, method=method, params=params):
                self._count(_size(params))
                self._forgive()
                error = {"code": METHOD_NOT_FOUND, "message": f"nothing can be asked here, such as {method}"}
                yield TurnReply(encode_response(Response(number, error=error)) + b"\n")
            case Notification(method=method, params=params):
                self._count(_size(params))
                yield from self._told(method, params)
            case Response() as response:
                yield from self._answered(response)

    def _told(self, method: str, params: dict[str, Any]) -> Iterator[Heard]:
        about = params.get("id", self._last_id)
        read = _NOTIFICATIONS.get(method)
        if read is None or not self._asked or about != self._last_id:
            self._forgive()
            return
        heard = read({name: value for name, value in params.items() if name != "id"}, "/params")
        self._number(heard)
        self._has_output |= not isinstance(heard, ProgressNote)
        yield heard

    def _answered(self, response: Response) -> Iterator[Heard]:
        number = response.id
        if number is None:  # JSON-RPC 2.0, 5: an unreadable request, which can only be the present one
            number = self._last_id
        if type(number) is not int or not 0 < number <= self._last_id:
            raise DialogueBroken("it answered what it was never asked")
        if number != self._last_id or not self._asked:
            self._count(_size(response.result) + _size(response.error))
            self._forgive()
            return
        self._count(_size(response.result if response.error is None else response.error))
        if response.error is not None:
            self._end_turn()
            yield TurnAnswer("TASK_STATE_FAILED", failure=_failure(response.error))
            return
        heard = _result(response.result)
        for one in heard:
            self._number(one)
        if self._has_output and any(isinstance(one, TurnAnswer) and one.alone for one in heard):
            raise DialogueBroken("it answered with a message, which is not a task, and had begun one")
        self._end_turn()
        yield from heard

    def _end_turn(self) -> None:
        self._asked = False
        self._said_bytes, self._noise = 0, 0

    def _number(self, heard: Heard) -> None:
        if isinstance(heard, OutputArtifact):
            self._artifacts.add(heard.update["artifact"].get("artifactId", ""))
        if len(self._artifacts) > MAX_ARTIFACTS:
            raise DialogueBroken(f"it made more than {MAX_ARTIFACTS} artifacts")

    def _count(self, size: int) -> None:
        self._said_bytes += size + EACH_BYTES
        if self._said_bytes > self._max_said_bytes:
            raise DialogueBroken(f"it said more than {self._max_said_bytes} bytes")

    def _forgive(self, something: bool = True) -> None:
        self._noise += something
        if self._noise > MAX_NOISE:
            raise DialogueBroken(f"it wrote more than {MAX_NOISE} lines that are not part of an answer")


def _params(order: ProgramOrder) -> dict[str, Any]:
    parameters = {name.lstrip("-"): value for name, value in order.prompt.cli_args.items()}
    return {
        "message": dict(order.prompt.message),
        "text": order.prompt.text,
        "parameters": parameters,
        "taskId": order.task_id,
        "contextId": order.context_id,
        "executionId": order.execution_id,
        "attempt": order.attempt,
    }


def _size(value: object) -> int:
    return 0 if value is None else len(orjson.dumps({"": value})) - len('{"":}')


def _progress(params: Mapping[str, Any], at: str) -> ProgressNote:
    said = _members(params, at, message=str, progress=float, total=float)
    return ProgressNote(said.get("message", ""), said.get("progress"), said.get("total"))


def _output(params: Mapping[str, Any], at: str) -> OutputChunk:
    said = _members(params, at, text=str)
    if "text" not in said:
        raise DialogueBroken(f"{at}/text is missing")
    return OutputChunk(said["text"])


def _artifact(params: Mapping[str, Any], at: str) -> OutputArtifact:
    said = _members(params, at, artifact=dict, append=bool, lastChunk=bool, metadata=dict)
    if "artifact" not in said:
        raise DialogueBroken(f"{at}/artifact is missing")
    told = said | {"artifact": _read("Artifact", said["artifact"], f"{at}/artifact")}
    return OutputArtifact({name: value for name, value in told.items() if value or name == "artifact"})


_NOTIFICATIONS: Final[Mapping[str, Callable[[Mapping[str, Any], str], OutputChunk | OutputArtifact | ProgressNote]]] = {
    "progress": _progress,
    "output": _output,
    "artifact": _artifact,
}


def _result(result: object) -> list[Heard]:
    if result is None:
        return [TurnAnswer()]
    if isinstance(result, str):
        result = {"text": result}
    said = _members(result, "/result", text=str, parts=list, artifacts=list, state=str, message=(str, dict))
    if "message" in said:
        if len(said) > 1:
            raise DialogueBroken("/result/message is a response that is not a task, and allows no other member")
        return [TurnAnswer(message=_message_parts(said["message"]), alone=True)]
    state = STATES.get(said.get("state", "completed"))
    if state is None:
        raise DialogueBroken(f"/result/state is none of {', '.join(STATES)}")
    text, parts = said.get("text", ""), _parts(said.get("parts", []), "/result/parts")
    artifacts: list[Heard] = [
        OutputArtifact({"artifact": _read("Artifact", one, f"/result/artifacts/{index}"), "lastChunk": True})
        for index, one in enumerate(said.get("artifacts", []))
    ]
    if state == STATES["completed"]:
        more: list[Heard] = [OutputChunk(text)] if text else []
        more += [OutputArtifact({"artifact": {"parts": parts}})] if parts else []
        return [*more, *artifacts, TurnAnswer()]
    words = tuple([{"text": text}] * bool(text) + parts)
    failure = None
    if said["state"] == "failed":
        failure = Failure(Category.AGENT, "\n".join(part["text"] for part in words if "text" in part) or _UNSAID)
    return [*artifacts, TurnAnswer(state, words, failure=failure)]


def _message_parts(said: Any) -> tuple[Mapping[str, Any], ...]:
    """Returns the parts of a message, given as text or as an A2A message; its ids and other members are ignored."""
    if isinstance(said, str):
        said = {"parts": [{"text": said}]}
    parts = _parts(said.get("parts"), "/result/message/parts")
    if not parts:
        raise DialogueBroken("/result/message/parts is empty")
    return tuple(parts)


def _failure(error: Mapping[str, Any]) -> Failure:
    data = error.get("data")
    named = data.get("category") if isinstance(data, dict) else None
    # Unknown categories are not retried.
    category = _CATEGORIES.get(named, Category.AGENT) if isinstance(named, str) else Category.AGENT
    return Failure(category, error["message"] or _UNSAID)


def _members(given: object, at: str, **types: type | tuple[type, ...]) -> dict[str, Any]:
    """Returns the members of an object, checked by type; null counts as absent, and an unknown member is an error."""
    if not isinstance(given, dict):
        raise DialogueBroken(f"{at} must be an object")
    said = {name: value for name, value in given.items() if value is not None}
    for name, value in said.items():
        wanted = types.get(name)
        if wanted is None:
            raise DialogueBroken(f"{at} may have {', '.join(types)}, and nothing else")
        if wanted is float:
            wanted = (int, float)
        if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
            raise DialogueBroken(f"{at}/{name} must be {_named(wanted)}")
    return said


def _named(types: type | tuple[type, ...]) -> str:
    names = {str: "a string", dict: "an object", list: "a list", bool: "true or false", int: "a number"}
    every = types if isinstance(types, tuple) else (types,)
    return " or ".join(names[one] for one in every if one in names)


def _parts(given: object, at: str) -> list[Mapping[str, Any]]:
    if not isinstance(given, list):
        raise DialogueBroken(f"{at} must be a list")
    return [_whole(_read("Part", part, f"{at}/{index}"), f"{at}/{index}") for index, part in enumerate(given)]


def _whole(part: Mapping[str, Any], at: str) -> Mapping[str, Any]:
    if not part.keys() & {"text", "raw", "url", "data"}:
        raise DialogueBroken(f"{at} must have one of text, raw, url and data")
    return part


def _read(name: str, given: object, at: str) -> dict[str, Any]:
    try:
        read = V10.read(name, given)
    except UnreadableMessage as error:
        raise DialogueBroken(f"{at}{error.pointer} {error.problem}") from None
    if name == "Artifact":
        parts = [_whole(part, f"{at}/parts/{index}") for index, part in enumerate(read.get("parts", ()))]
        if not parts:
            raise DialogueBroken(f"{at}/parts is empty")  # A2A 1.0, 4.1.7: at least one
    return read
