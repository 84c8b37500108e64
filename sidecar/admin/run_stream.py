"""Converts A2A events of a run into events for operators: new output, changes of state, and other artifacts.

Of a whole task, only the part that is new is sent. Texts of runs that operators ordered are sent unchanged, those of
other runs without anything that looks like a secret.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple

from sidecar.tasks.programs.stored_text import SanitizedLines, all_sanitized

OUTPUT, STATUS, ARTIFACT, END = "output", "status", "artifact", "end"


class RunNews(NamedTuple):
    """One event. `data` is

    output    `artifact`, `text`, and `anew` if the text replaces the earlier text of that artifact
    artifact  `artifact`, and `parts` other than text, in A2A's form
    status    `state` in A2A's terms, `message`, and `progress` and `total` if the program reports them
    end       the run, in full"""

    event: str
    data: Mapping[str, Any]


@dataclass(slots=True)
class NewsArtifact:
    """What was sent of one artifact: the number of characters, their digest, and the number of parts other than
    text."""

    chars: int = 0
    parts: int = 0
    digest: Any = field(default_factory=sha256)

    def add(self, text: str, parts: int) -> None:
        self.chars += len(text)
        self.parts += parts
        self.digest.update(text.encode("utf-8", "surrogatepass"))

    def begins(self, text: str, parts: int) -> bool:
        """Whether `text` begins with the text sent so far, and there are no fewer `parts`."""
        begun = sha256(text[: self.chars].encode("utf-8", "surrogatepass"))
        return len(text) >= self.chars and parts >= self.parts and begun.digest() == self.digest.digest()


@dataclass(slots=True)
class RunStream:
    """The events for one follower of a run. `of` converts one A2A response."""

    _heard: dict[str, NewsArtifact] = field(default_factory=dict)
    _status: Mapping[str, Any] = field(default_factory=dict)

    def of(self, response: Mapping[str, Any]) -> Iterator[RunNews]:
        if (task := response.get("task")) is not None:
            yield from self._whole(task.get("artifacts", ()))
            yield from self._stands(task.get("status", {}))
        elif (update := response.get("artifactUpdate")) is not None:
            name, text, others = _read(update.get("artifact", {}))
            yield from self._told(name, text, others, anew=not update.get("append"))
        elif (update := response.get("statusUpdate")) is not None:
            yield from self._stands(update.get("status", {}))

    def _whole(self, artifacts: Sequence[Mapping[str, Any]]) -> Iterator[RunNews]:
        """The events for a whole task, of which a part may have been sent."""
        read = [_read(artifact) for artifact in artifacts]
        for name in self._heard.keys() - {name for name, _, _ in read}:
            yield from self._told(name, "", (), anew=True)
        for name, text, others in read:
            known = self._heard.get(name, NewsArtifact())
            if known.begins(text, len(others)):
                yield from self._told(name, text[known.chars :], others[known.parts :], anew=False)
            else:
                yield from self._told(name, text, others, anew=True)

    def _told(self, name: str, text: str, others: Sequence[Any], *, anew: bool) -> Iterator[RunNews]:
        known = self._heard.get(name)
        anew = anew and known is not None and (known.chars > 0 or known.parts > 0)
        if known is None or anew:
            known = self._heard[name] = NewsArtifact()
        known.add(text, len(others))
        if text or anew:
            yield RunNews(OUTPUT, {"artifact": name, "text": text} | ({"anew": True} if anew else {}))
        if others:
            yield RunNews(ARTIFACT, {"artifact": name, "parts": list(others)})

    def _stands(self, status: Mapping[str, Any]) -> Iterator[RunNews]:
        figures = (status.get("message") or {}).get("metadata") or {}
        data = {"state": status.get("state"), "message": message_of(status) or None}
        data |= {name: figures[name] for name in ("progress", "total") if name in figures}
        if data != self._status:
            self._status = data
            yield RunNews(STATUS, data)


def text_of(task: Mapping[str, Any]) -> str:
    """The text of all artifacts of a run so far, in order."""
    texts = (_parted(artifact.get("parts", ()))[0] for artifact in task.get("artifacts", ()))
    return "".join(texts)


def message_of(status: Mapping[str, Any]) -> str:
    return _parted((status.get("message") or {}).get("parts", ()))[0]


def _read(artifact: Mapping[str, Any]) -> tuple[str, str, list[Mapping[str, Any]]]:
    return str(artifact.get("artifactId", "")), *_parted(artifact.get("parts", ()))


def _parted(parts: Sequence[Mapping[str, Any]]) -> tuple[str, list[Mapping[str, Any]]]:
    """The text of some parts, and the parts other than text."""
    text = "".join(part["text"] for part in parts if isinstance(part.get("text"), str))
    return text, [part for part in parts if not isinstance(part.get("text"), str)]


@dataclass(slots=True)
class RunVisibility:
    """Removes secrets from the events for one follower, unless `is_theirs`: an operator ordered the run. Text is held
    until its line is complete; `rest` returns what is held at the end."""

    is_theirs: bool
    _lines: dict[str, SanitizedLines] = field(default_factory=dict)

    async def of(self, heard: RunNews) -> list[RunNews]:
        if self.is_theirs:
            return [heard]
        data = heard.data
        if heard.event == OUTPUT:
            if data.get("anew"):
                self._lines.pop(data["artifact"], None)
            text = await self._lines.setdefault(data["artifact"], SanitizedLines()).feed(data["text"])
            return [RunNews(OUTPUT, {**data, "text": text})] if text or data.get("anew") else []
        if heard.event == ARTIFACT:
            return [RunNews(ARTIFACT, {**data, "parts": await _value(data["parts"])})]
        if heard.event == STATUS:
            return [RunNews(STATUS, {**data, "message": await _value(data["message"])})]
        return [heard]

    async def rest(self) -> list[RunNews]:
        found = [(artifact, await lines.rest()) for artifact, lines in self._lines.items()]
        return [RunNews(OUTPUT, {"artifact": artifact, "text": text}) for artifact, text in found if text]


async def _value(said: Any) -> Any:
    """A JSON value with secrets removed from all texts."""
    if isinstance(said, str):
        return await all_sanitized(said)
    if isinstance(said, Mapping):
        return {name: await _value(value) for name, value in said.items()}
    return [await _value(value) for value in said] if isinstance(said, list) else said
