"""The rows of a Casbin policy as rules of one permission kind."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256

from sidecar.policy.grammar import NONE, expires_at
from sidecar.policy.stock.expression import place_of
from sidecar.policy.stock.reading import EFFECT, EXPIRES_AT, LIMIT, WHEN, StockSource
from sidecar.policy.table import RuleRows, content_id
from sidecar.vocabulary import PermissionKind, RuleRef


class StockTable(RuleRows):
    """The rows in the order in which they are tried, as an iterable of `RuleRef`s. Subjects, objects and actions of
    these rules are the policy's own names. `digest` is that of the matcher."""

    def __init__(self, kind: PermissionKind, source: StockSource) -> None:
        super().__init__()
        self.kind, self.source = kind, source
        self.digest = sha256(source.model.matcher.encode()).hexdigest()
        columns = source.model.columns
        self._sub, self._obj, self._act = place_of("sub", columns), place_of("obj", columns), place_of("act", columns)
        self._places = {name: columns.index(name) for name in (EXPIRES_AT, LIMIT, WHEN, EFFECT) if name in columns}

    def text(self, name: str, row: int) -> str:
        """Returns the text of a row in one of the sidecar's columns. Without that column it is `-`, or `allow` for the
        effect."""
        place = self._places.get(name)
        return (NONE if name != EFFECT else "allow") if place is None else self.source.rows[row][place]

    def end_of(self, row: int) -> float | None:
        """Returns when a row expires, in seconds since the epoch; None for never."""
        return expires_at(self.text(EXPIRES_AT, row))

    def id_of(self, row: int) -> str:
        model = self.source.model
        return content_id("\x1f".join((self.kind.value, f"p{model.suffix}", *self.source.rows[row])))

    def __len__(self) -> int:
        return len(self.source.rows)

    def names(self) -> Iterator[str]:
        """Yields the subjects and objects of the rows."""
        for row in self.source.rows:
            yield from (row[place] for place in (self._sub, self._obj) if place is not None)

    def limited(self) -> Iterator[int]:
        return (row for row in range(len(self)) if self.text(LIMIT, row) != NONE) if LIMIT in self._places else iter(())

    def ending(self, after_s: float) -> Iterator[tuple[int, float]]:
        if EXPIRES_AT in self._places:
            for row in range(len(self)):
                if (end_s := self.end_of(row)) is not None and end_s > after_s:
                    yield row, end_s

    def _made(self, row: int) -> RuleRef:
        source, values = self.source, self.source.rows[row]
        limit, when = self.text(LIMIT, row), self.text(WHEN, row)
        subject, obj, act = ("" if place is None else values[place] for place in (self._sub, self._obj, self._act))
        return RuleRef(
            self.id_of(row),
            self.kind,
            subject,
            obj,
            (act,) if act else (),
            "deny" if self.text(EFFECT, row) == "deny" else "allow",
            self.end_of(row),
            None if limit == NONE else int(limit),
            "" if when == NONE else when,
            file=source.names[source.files[row]],
            line=source.lines[row],
        )
