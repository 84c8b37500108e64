"""Streams the news of a run to operators.

Out of A2A's canonical events, in their order, what a terminal shows: more of its output, how it stands, and what else
it made. Who hears a whole task in place of events that were missed hears only what is new.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple

OUTPUT, STATUS, ARTIFACT, END = "output", "status", "artifact", "end"


class RunNews(NamedTuple):
    """One thing. `data` is

    output    `artifact`, `text`, and `anew` where what was told of that artifact does not count any more
    artifact  `artifact`, and `parts` that are no text, in A2A's form
    status    `state` in A2A's words, `message`, and `progress` and `total` where the program says
    end       the run, in full
    """

    event: str
    data: Mapping[str, Any]


@dataclass(slots=True)
class NewsArtifact:
    """What was heard of one: how many characters, their digest, and how many parts that are no text."""

    chars: int = 0
    parts: int = 0
    digest: Any = field(default_factory=sha256)

    def add(self, text: str, parts: int) -> None:
        """More of it was heard."""
        self.chars += len(text)
        self.parts += parts
        self.digest.update(text.encode("utf-8", "surrogatepass"))

    def begins(self, text: str, parts: int) -> bool:
        """Whether an artifact of this text goes on where this one ends."""
        begun = sha256(text[: self.chars].encode("utf-8", "surrogatepass"))
        return len(text) >= self.chars and parts >= self.parts and begun.digest() == self.digest.digest()


@dataclass(slots=True)
class RunStream:
    """What one listener has heard so far."""

    _heard: dict[str, NewsArtifact] = field(default_factory=dict)
    _status: Mapping[str, Any] = field(default_factory=dict)

    def of(self, response: Mapping[str, Any]) -> Iterator[RunNews]:
        """What is new in an event of the run's stream."""
        if (task := response.get("task")) is not None:
            yield from self._whole(task.get("artifacts", ()))
            yield from self._stands(task.get("status", {}))
        elif (update := response.get("artifactUpdate")) is not None:
            name, text, others = _read(update.get("artifact", {}))
            yield from self._told(name, text, others, anew=not update.get("append"))
        elif (update := response.get("statusUpdate")) is not None:
            yield from self._stands(update.get("status", {}))

    def _whole(self, artifacts: Sequence[Mapping[str, Any]]) -> Iterator[RunNews]:
        """All of it so far, of which a part may have been heard."""
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
    """The text of all that a run made so far, artifact after artifact."""
    texts = (_parted(artifact.get("parts", ()))[0] for artifact in task.get("artifacts", ()))
    return "".join(texts)


def message_of(status: Mapping[str, Any]) -> str:
    """The text of the message in a task's status, "" where there is none."""
    return _parted((status.get("message") or {}).get("parts", ()))[0]


def _read(artifact: Mapping[str, Any]) -> tuple[str, str, list[Mapping[str, Any]]]:
    """Its name, its text, and its parts that are none."""
    return str(artifact.get("artifactId", "")), *_parted(artifact.get("parts", ()))


def _parted(parts: Sequence[Mapping[str, Any]]) -> tuple[str, list[Mapping[str, Any]]]:
    """The text of some parts, and those that are none."""
    text = "".join(part["text"] for part in parts if isinstance(part.get("text"), str))
    return text, [part for part in parts if not isinstance(part.get("text"), str)]
