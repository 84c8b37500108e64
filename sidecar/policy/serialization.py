"""Serializes a loaded policy for another process.

The format is a sequence of small pickles: arrays as they are, texts and links some thousands at a time. Each unpickling
holds the GIL for a millisecond at most, so an event loop in another thread goes on. Conditions are sent as text and
compiled again. The pickles come only from a process that we started ourselves.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import IO, Any, TypeVar

from sidecar.policy.conditions import Language
from sidecar.policy.roles import RoleLinks
from sidecar.policy.source import PolicySource
from sidecar.policy.table import RowTable, TextPool
from sidecar.vocabulary import PermissionKind

PIECE = 5_000
_ARRAYS = ("sub", "obj", "shape", "line", "file", "flags")
T = TypeVar("T")


def pack(source: PolicySource, out: IO[bytes]) -> None:
    """Write a policy, piece by piece."""
    texts, files = _shared(source)
    head = {
        "models": dict(source.models),
        "revision": source.revision,
        "warnings": source.warnings,
        "conditions": list(source.conditions),
        "files": files,
        "domains": list(source.domains),
    }
    pickle.dump(head, out, protocol=5)
    _write_pieces(texts, out)
    for links in (source.roles, source.sets, *source.domains.values()):
        _write_pieces(links.parents.items(), out)
    for kind in source.models:
        table = source.tables[kind]
        for name in _ARRAYS:
            pickle.dump(getattr(table, name), out, protocol=5)
        pickle.dump(source.indexes[kind], out, protocol=5)
        _write_pieces(table.shapes, out)
        _write_pieces(table.notes.items(), out)
    out.flush()


def unpack(source: IO[bytes]) -> PolicySource:
    """Read what `pack` wrote."""
    head: Mapping[str, Any] = pickle.load(source)
    texts = TextPool()
    texts.texts.clear()
    texts.ids.clear()
    for piece in _pieces(source):
        texts.ids.update(zip(piece, range(len(texts.texts), len(texts.texts) + len(piece)), strict=True))
        texts.texts += piece
    links = [_links(source) for _ in range(2 + len(head["domains"]))]
    tables: dict[PermissionKind, RowTable] = {}
    indexes = {}
    for kind in head["models"]:
        table = tables[kind] = RowTable(kind, texts, head["files"])
        for name in _ARRAYS:
            setattr(table, name, pickle.load(source))
        indexes[kind] = pickle.load(source)
        for piece in _pieces(source):
            for shape in piece:
                table.add_shape(shape)
        for piece in _pieces(source):
            table.notes.update(piece)
    language = Language()
    return PolicySource(
        models=head["models"],
        tables=tables,
        indexes=indexes,
        roles=links[0],
        sets=links[1],
        domains=dict(zip(head["domains"], links[2:], strict=True)),
        conditions={text: language.compile(text) for text in head["conditions"]},
        revision=head["revision"],
        warnings=head["warnings"],
    )


def _shared(source: PolicySource) -> tuple[list[str], list[str]]:
    """Return the texts and files that all tables share."""
    table = next(iter(source.tables.values()))
    return table.texts.texts, table.files


def _links(source: IO[bytes]) -> RoleLinks:
    parents: dict[str, tuple[str, ...]] = {}
    for piece in _pieces(source):
        parents.update(piece)
    return RoleLinks(parents)


def _write_pieces(things: Iterable[T], out: IO[bytes]) -> None:
    left = iter(things)
    while piece := list(islice(left, PIECE)):
        pickle.dump(piece, out, protocol=5)
    pickle.dump(None, out, protocol=5)


def _pieces(source: IO[bytes]) -> Iterator[list[Any]]:
    while (piece := pickle.load(source)) is not None:
        yield piece
