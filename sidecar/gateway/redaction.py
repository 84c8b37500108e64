"""Redacts the answers of an upstream by its response rules.

    screen.reading(method, tool)      the rules for the answers to one call
    reading.message(message)          redacts a message in place: a generator, which must be run to its end

All texts of a message are searched, including errors, a server's messages during a call, names of members, and whole
numbers (for card numbers). Base64 where MCP defines it (`blob`, `data` of images and audio), protocol members (ids,
cursors, state), and results that describe the server (lists, `initialize`) are not searched.

Every finder has its own position in a text, because a match may end beyond a slice. The replacement is in brackets, so
that it is part of no token. A changed text is searched again until there is no match, because a removal can create a
new match: redacting twice equals redacting once. Generators yield where other work may run.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from sidecar.errors import Reason, Refusal
from sidecar.policy.patterns import glob
from sidecar.protocols import jsonrpc
from sidecar.protocols.json_pointers import Pointer, parse_pointer, places
from sidecar.protocols.jsonrpc import Message, Response
from sidecar.protocols.secret_patterns import CLASSES, LOCAL_CHARS, MIN_CHARS, Finder, Span, is_card, prefixed_alike
from sidecar.settings.responses import RedactionSettings, ResponseSettings

TOOL_CALL: Final = "tools/call"
# Methods whose results are data without a tool's name, so that the rules for all tools apply.
OTHER_DATA: Final = frozenset({"prompts/get", "resources/read", "completion/complete"})
# Methods whose results describe the server or are empty.
NO_DATA: Final = frozenset(
    {"initialize", "ping", "server/discover", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"}
    | {"tools/list", "prompts/list", "resources/list", "resources/templates/list", "subscriptions/listen"}
)
_ALL = "*"
_VALUE_WORK: Final = 32  # the cost of one value, in characters
# Members that must stay unchanged: values to be sent back, and addresses.
_OF_THE_PROTOCOL = frozenset(
    {"resultType", "requestState", "nextCursor", "cacheScope", "progressToken", "requestId", "elicitationId", "taskId"}
    | {"uri", "url"}
)
_JSON = re.compile(r"\s*[\[{]")
_BASE64 = re.compile(r"[A-Za-z0-9+/_\r\n-]*(?:={1,2}[\r\n]*)?")
SLICE_CHARS: Final = 64 * 1024  # between two yields; all finders together take a few milliseconds for it
MAX_PASSES: Final = 8


@dataclass(frozen=True, slots=True)
class Wiping:
    finders: tuple[Finder, ...]
    replacement: str


Steps = Generator[None, None, int]
"""Yields where other work may run; returns the number of replacements."""
TextSteps = Generator[None, None, tuple[str, int]]
"""The same; returns the text as well."""


def wiped(text: str, wipings: Sequence[Wiping]) -> TextSteps:
    """Returns the text with the matches of `wipings` replaced, and the number of replacements."""
    if len(text) < MIN_CHARS:
        return text, 0
    replaced = 0
    for _ in range(MAX_PASSES):
        before = text
        for wiping in wipings:
            text, found = yield from _once(text, wiping)
            replaced += found
        if text is before:
            return text, replaced
    return wipings[0].replacement, replaced + 1  # a text that keeps matching is replaced as a whole


def _once(text: str, wiping: Wiping) -> TextSteps:
    """Replaces the matches slice by slice: a million matches in one step would block the loop."""
    cut, spans = TextCut(text, wiping.replacement), list[Span]()
    places = [0] * len(wiping.finders)
    for start in range(0, len(text), SLICE_CHARS):
        if start:
            yield
        stop = min(start + SLICE_CHARS, len(text))
        for index, find in enumerate(wiping.finders):
            if places[index] < stop:
                places[index] = find(text, places[index], stop, spans)
        spans = cut.without(sorted(spans), before=stop - LOCAL_CHARS)
    cut.without(spans, before=len(text) + 1)
    return (cut.rest(), cut.replaced) if cut.replaced else (text, 0)


@dataclass(slots=True)
class TextCut:
    """A text from which matches are removed, front to back."""

    text: str
    replacement: str
    replaced: int = 0
    _pieces: list[str] = field(default_factory=list)
    _done: int = 0

    def without(self, spans: Sequence[Span], *, before: int) -> list[Span]:
        """Removes ordered spans; overlapping ones count as one. Returns those that end at or after `before`."""
        apart: list[Span] = []
        for start, end in spans:
            if apart and start < apart[-1][1]:
                apart[-1] = (apart[-1][0], max(apart[-1][1], end))
            else:
                apart.append((start, end))
        final = sum(end < before for _, end in apart)
        pieces: list[str] = []
        for start, end in apart[:final]:
            pieces += (self.text[self._done : start], self.replacement)
            self._done = end
        self._pieces.append("".join(pieces))
        self.replaced += final
        return apart[final:]

    def rest(self) -> str:
        return "".join(self._pieces) + self.text[self._done :]


@dataclass(frozen=True, slots=True)
class RedactionRule:
    tools: tuple[str, ...]
    wiping: Wiping | None
    card_replacement: str | None
    pointers: tuple[Pointer, ...]
    replacement: str

    @property
    def for_all(self) -> bool:
        return _ALL in self.tools


@dataclass(frozen=True, slots=True)
class CompiledReading:
    """The rules for the answers to one call. `of_data` states whether its results are searched."""

    rules: tuple[RedactionRule, ...]
    of_data: bool = True
    max_bytes: int | None = None
    checks_output: bool = False
    keeps: bool = False

    def message(self, message: Message) -> Steps:
        """Redacts the message in place and returns the number of replacements. Raises Refusal(RESPONSE_REFUSED)."""
        if not self.rules:
            return 0
        if not isinstance(message, Response):
            return (yield from self._words(message.params))
        if message.error is not None:
            return (yield from self._words(message.error))
        if not self.of_data or not isinstance(message.result, dict):
            return 0
        replaced = yield from self._pointed(message.result)
        return replaced + (yield from self._words(message.result))

    def text(self, text: str) -> str:
        """Redacts a short text of the sidecar that quotes the upstream."""
        steps = wiped(text, self._wipings)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return str(end.value[0])

    @property
    def _wipings(self) -> tuple[Wiping, ...]:
        return tuple(rule.wiping for rule in self.rules if rule.wiping is not None)

    def _words(self, root: dict[str, Any]) -> Steps:
        wipings = self._wipings
        if not wipings:
            return 0
        card = next((rule.card_replacement for rule in self.rules if rule.card_replacement is not None), None)
        return (yield from _search(root, wipings, card))

    def _pointed(self, result: dict[str, Any]) -> Steps:
        replaced = 0
        for rule in self.rules:
            for pointer in rule.pointers:
                replaced += yield from _replace(result, pointer, rule.replacement)
            twins = [
                pointer[1:] for pointer in rule.pointers if pointer[0] in ("structuredContent", _ALL) and pointer[1:]
            ]
            if twins:
                replaced += yield from _replace_in_twins(result, twins, rule.replacement)
        return replaced


@dataclass(frozen=True, slots=True)
class ResponseScreen:
    rules: tuple[RedactionRule, ...]
    settings: ResponseSettings

    def reading(self, method: str, tool: str = "", *, strictly: bool = False) -> CompiledReading:
        """Returns the rules for the answers to a call of a method; for `tools/call`, of a tool. `strictly` applies
        every rule of every tool, for answers whose call is uncertain."""
        if method in NO_DATA:  # a stream may carry messages of any kind
            return CompiledReading(self.rules, of_data=strictly)
        if method in OTHER_DATA and not strictly:
            return CompiledReading(tuple(rule for rule in self.rules if rule.for_all), True, self.settings.max_bytes)
        if method != TOOL_CALL:  # the tool is unknown, so every rule applies
            return CompiledReading(self.rules, True, self.settings.max_bytes)
        return CompiledReading(
            tuple(rule for rule in self.rules if strictly or _fits(tool, rule.tools)),
            True,
            self._max_bytes(tool),
            self.settings.check_output,
            _fits(tool, self.settings.evidence),
        )

    def _max_bytes(self, tool: str) -> int | None:
        own = [size for pattern, size in self.settings.max_bytes_of.items() if glob(tool, pattern)]
        return min(own) if own else self.settings.max_bytes


def screen_from(responses: ResponseSettings | None) -> ResponseScreen | None:
    """Returns the compiled rules of an upstream; None if it has none, so that its answers have no overhead."""
    if responses is None or responses == ResponseSettings():
        return None
    return ResponseScreen(tuple(map(_rule, responses.redact)), responses)


def _rule(redaction: RedactionSettings) -> RedactionRule:
    finders = [CLASSES[name] for name in redaction.classes]
    if redaction.prefixes:
        finders.append(prefixed_alike(redaction.prefixes))
    return RedactionRule(
        redaction.tools,
        Wiping(tuple(finders), redaction.replace) if finders else None,
        redaction.replace if "card" in redaction.classes else None,
        tuple(map(parse_pointer, redaction.pointers)),
        redaction.replace,
    )


def _fits(tool: str, patterns: Sequence[str]) -> bool:
    return any(glob(tool, pattern) for pattern in patterns)


def _replace(value: object, pointer: Pointer, replacement: str) -> Steps:
    replaced = work = 0
    for place in places(value, pointer):
        work += _VALUE_WORK
        if work > SLICE_CHARS:
            work = 0
            yield
        if place is not None and place[0][place[1]] != replacement:
            place[0][place[1]] = replacement
            replaced += 1
    return replaced


def _replace_in_twins(result: dict[str, Any], pointers: Sequence[Pointer], replacement: str) -> Steps:
    """Redacts the text that repeats a tool's structured content as JSON, as MCP recommends."""
    replaced = 0
    for block in _blocks(result.get("content")):
        text = block.get("text")
        if not isinstance(text, str) or not _JSON.match(text):
            continue
        yield
        if text.count(",") > jsonrpc.MAX_ANSWER_VALUES:  # too large to search, so it is refused
            raise Refusal(Reason.RESPONSE_REFUSED, "a text of its result holds too much JSON to be searched")
        twin = _parsed(text)
        before = replaced
        for pointer in pointers:
            replaced += yield from _replace(twin, pointer, replacement)
        if replaced != before:
            block["text"] = orjson.dumps(twin).decode()
    return replaced


def _parsed(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None  # prose, which is searched by pattern


def _search(root: dict[str, Any], wipings: Sequence[Wiping], card: str | None) -> Steps:
    """Searches every text at any depth, in place. Protocol members stay."""
    encoded, addressed = dict(_encoded(root)), {id(root), *_questions(root)}
    replaced = work = 0
    waiting: list[Any] = [root]
    while waiting:
        node = waiting.pop()
        top, blob = id(node) in addressed, encoded.get(id(node))
        for key, value in list(node.items()) if isinstance(node, dict) else enumerate(node):
            work += _VALUE_WORK
            if work > SLICE_CHARS:
                work = 0
                yield
            if isinstance(value, str):
                if len(value) < MIN_CHARS or (top and key in _OF_THE_PROTOCOL):
                    continue
                if key == blob and _BASE64.fullmatch(value):
                    continue
                work += len(value)
                new, inside = yield from _searched_inside(value, wipings, card)
                node[key], found = yield from wiped(new, wipings)
                replaced += inside + found
            elif isinstance(value, dict | list):
                waiting.append(value)
            elif card is not None and type(value) is int and is_card(value):
                node[key] = card
                replaced += 1
        if isinstance(node, dict) and any(len(name) >= MIN_CHARS for name in node):
            replaced += yield from _search_names(node, wipings)
    return replaced


def _searched_inside(text: str, wipings: Sequence[Wiping], card: str | None) -> TextSteps:
    """Redacts a text that is JSON, including its escapes, so that it remains JSON. Only a few levels of JSON in JSON
    are searched."""
    if not _JSON.match(text) or text.count(",") > jsonrpc.MAX_ANSWER_VALUES:
        return text, 0
    value = _parsed(text)
    if value is None:
        return text, 0
    holder = {"": value}
    replaced = yield from _search(holder, wipings, card)
    return (orjson.dumps(holder[""]).decode(), replaced) if replaced else (text, 0)


def _search_names(node: dict[str, Any], wipings: Sequence[Wiping]) -> Steps:
    renamed: dict[str, Any] = {}
    replaced = work = 0
    for name, value in node.items():
        work += _VALUE_WORK + len(name)
        if work > SLICE_CHARS:
            work = 0
            yield
        new, found = yield from wiped(name, wipings)
        renamed[f"{new} {len(renamed)}" if found and new in renamed else new] = value
        replaced += found
    if replaced:
        node.clear()
        node.update(renamed)
    return replaced


def _questions(root: dict[str, Any]) -> Iterator[int]:
    """Yields the parameters of requests to the caller in a result, outside of protocol members."""
    asked = root.get("inputRequests")
    for question in asked.values() if isinstance(asked, dict) else ():
        if isinstance(question, dict) and isinstance(question.get("params"), dict):
            yield id(question["params"])


def _encoded(root: dict[str, Any]) -> Iterator[tuple[int, str]]:
    """Yields the objects that hold base64 by MCP's definition, and the member that holds it."""
    asked = root.get("messages")
    said = [each.get("content") for each in asked if isinstance(each, dict)] if isinstance(asked, list) else []
    for content in (root.get("content"), *said):
        for block in _blocks(content):
            if block.get("type") in ("image", "audio"):
                yield id(block), "data"
            resource = block.get("resource")
            if block.get("type") == "resource" and isinstance(resource, dict):
                yield id(resource), "blob"
    for block in _blocks(root.get("contents")):
        yield id(block), "blob"


def _blocks(content: object) -> list[dict[str, Any]]:
    listed = content if isinstance(content, list) else [content]
    return [block for block in listed if isinstance(block, dict)]
