"""Finds argument keys that a reader could mistake for another key.

Servers differ in how they read keys: many decoders ignore case, some compare a Unicode normal form. `{"repo": …,
"Repo": …}` can then have one meaning for a rule and another for its server. A key is similar to a name if the two
differ only in case or in Unicode normal form. The keys of one object are compared with each other, with the properties
that the tool's schema has at that place, and with the names that conditions read.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sidecar.vocabulary import Read

SIMILAR_KEY: Final = "distinct-names"  # the keyword reported when a call is refused
MAX_STEPS: Final = 50_000  # schemas visited while the places of one schema are distinguished
_IN_PLACE_LISTS = ("allOf", "anyOf", "oneOf")
_IN_PLACE = ("if", "then", "else", "not")
_IN_PLACE_MAPS = ("dependentSchemas", "dependencies")
_OF_OTHERS = ("additionalProperties", "unevaluatedProperties")
_OF_ITEMS = ("items", "prefixItems", "additionalItems", "contains", "unevaluatedItems")

_WITH_PLACES = ("properties", "patternProperties", *_OF_OTHERS, *_OF_ITEMS)

_CONTAINERS = frozenset({dict, list})
_NO_NAMES: frozenset[str] = frozenset()

Path = tuple[str, ...]
Schema = Mapping[str, Any]
Led = Mapping[int, Sequence[object]]


def folded(key: str) -> str:
    """Returns a form that is equal for similar keys."""
    if key.isascii():
        return key.lower()
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", key).casefold())


NOTHING: Final = Read()


def read_of(paths: Iterable[Path], anywhere: Iterable[str]) -> Read:
    """Returns the names that rules read at these paths, and those that they read at any place."""
    tree: dict[str, Any] = {}
    for path in paths:
        branch = tree
        for step in path:
            branch = branch.setdefault(step, {})
    return Read(tree, frozenset(anywhere))


@dataclass(slots=True, eq=False)
class Keys:
    """The properties of one place in a schema, and the places below it: of each property, of other keys, and of items.
    `similar` are the properties in folded form; `distinct`: no two are similar. `covered` are the reads that `covers`
    accepted last."""

    names: frozenset[str] = frozenset()
    similar: frozenset[str] = frozenset()
    below: dict[str, Keys | None] = field(default_factory=dict)
    others: Keys | None = None
    items: Keys | None = None
    distinct: bool = True
    covered: Sequence[Read] | None = None

    def covers(self, reads: Sequence[Read]) -> bool:
        """Whether the properties are distinct, and rules read no other names here. Accepted reads are stored if they
        are a tuple, which never changes."""
        covers = self.distinct and all(tree.keys() | anywhere <= self.names for tree, anywhere in reads)
        self.covered = reads if covers and isinstance(reads, tuple) else None
        return covers

    def at(self, key: str) -> Keys | None:
        return self.below.get(key, self.others)


class _KeyPlaces:
    """The places of one schema. All schemas that apply to one value are one place."""

    def __init__(self, led: Led) -> None:
        self._led = led
        self._known: dict[frozenset[int], Keys] = {}
        self._waiting: list[tuple[Keys, list[Schema]]] = []
        self._steps = 0

    def of(self, root: Schema) -> Keys | None:
        top = self._place([root])
        while self._waiting and self._steps <= MAX_STEPS:
            self._fill(*self._waiting.pop())
        return top if self._steps <= MAX_STEPS else _everywhere(self._led, root)

    def _place(self, schemas: Iterable[object]) -> Keys | None:
        holding = {id(schema): schema for schema in _holding(schemas, self._led)}
        self._steps += len(holding)
        if not any(keyword in schema for schema in holding.values() for keyword in _WITH_PLACES):
            return None
        ids = frozenset(holding)
        if ids not in self._known:
            self._known[ids] = Keys()
            self._waiting.append((self._known[ids], list(holding.values())))
        return self._known[ids]

    def _fill(self, keys: Keys, schemas: list[Schema]) -> None:
        properties: dict[str, list[object]] = {}
        for schema in schemas:
            for name, below in _mapping(schema, "properties").items():
                properties.setdefault(name, []).append(below)
        keys.names = frozenset(properties)
        keys.similar = frozenset(map(folded, properties))
        keys.distinct = len(keys.similar) == len(keys.names)
        keys.below = {name: self._place(below) for name, below in properties.items()}
        keys.others = self._place(below for schema in schemas for below in _below_others(schema))
        keys.items = self._place(below for schema in schemas for below in _below_items(schema))


def keys_of(root: Schema, led: Led) -> Keys | None:
    """Returns the properties of a schema, place by place; None for a schema that describes neither keys nor items.
    `led` maps a schema's identity (`id`) to the targets of its references."""
    return _KeyPlaces(led).of(root)


def similar_key(
    arguments: Any, keys: Keys | None = None, reads: Sequence[Read] = (), *, siblings: bool = True
) -> str | None:
    """Returns a JSON Pointer to a key that a reader could mistake for another one; None if there is none. Without
    `siblings`, the keys of one object are not compared with each other; without `reads` too, nothing is compared."""
    if not siblings and not reads:
        return None
    # The common case: all keys are names of the schema, and there are no keys below them.
    names = keys.names if keys is not None and (reads is keys.covered or keys.covers(reads)) else _NO_NAMES
    if isinstance(arguments, dict) and names.issuperset(arguments):
        for below in arguments.values():
            if type(below) in _CONTAINERS and (type(below) is dict or not _CONTAINERS.isdisjoint(map(type, below))):
                break
        else:
            return None
    anywhere = _NO_NAMES
    trees: list[Mapping[str, Any]] = []
    for tree, names in reads:
        anywhere |= names
        if tree:
            trees.append(tree)
    everywhere = siblings or bool(anywhere)  # otherwise only places that a condition names matter
    waiting: list[tuple[Path, Any, Keys | None, list[Mapping[str, Any]]]] = [((), arguments, keys, trees)]
    while waiting:
        at, value, keys, trees = waiting.pop()
        if isinstance(value, list):
            items = keys.items if keys is not None else None
            if everywhere:
                waiting += [
                    ((*at, str(i)), item, items, []) for i, item in enumerate(value) if type(item) in _CONTAINERS
                ]
        elif isinstance(value, dict):
            names = keys.names if keys is not None and keys.distinct else _NO_NAMES
            clear = value.keys() <= names and anywhere <= names
            for tree in trees:
                clear = clear and tree.keys() <= names
            if not clear and (found := _similar_in(value, keys, trees, anywhere, siblings)) is not None:
                return "".join(f"/{step.replace('~', '~0').replace('/', '~1')}" for step in (*at, found))
            for key, below in value.items():
                kind = type(below)  # only a container with keys in it or below it matters
                if below if kind is dict else kind is list and not _CONTAINERS.isdisjoint(map(type, below)):
                    read = []
                    for tree in trees:
                        if inner := tree.get(key):
                            read.append(inner)  # noqa: PERF401 - in a loop, a list of its own costs a call
                    if everywhere or read:
                        place = keys.at(key) if keys is not None else None
                        waiting.append(((*at, key), below, place, read))
    return None


def _similar_in(
    value: Mapping[str, Any],
    keys: Keys | None,
    trees: Sequence[Mapping[str, Any]],
    anywhere: frozenset[str],
    siblings: bool,
) -> str | None:
    known: list[tuple[Container[str], frozenset[str]]] = [(keys.names, keys.similar)] if keys is not None else []
    known += [(tree.keys(), frozenset(map(folded, tree))) for tree in trees]
    if anywhere:
        known.append((anywhere, frozenset(map(folded, anywhere))))
    seen: set[str] = set()
    for key in value:
        fold = folded(key)
        if siblings:
            if fold in seen:
                return key
            seen.add(fold)
        for names, similar in known:
            if fold in similar and key not in names:
                return key
    return None


def _holding(schemas: Iterable[object], led: Led) -> Iterator[Schema]:
    """Yields these schemas and all that apply to the same value."""
    waiting, seen = list(schemas), set[int]()
    while waiting:
        schema = waiting.pop()
        if not isinstance(schema, dict) or id(schema) in seen:
            continue
        seen.add(id(schema))
        yield schema
        waiting += led.get(id(schema), ())
        waiting += [schema[keyword] for keyword in _IN_PLACE if keyword in schema]
        for keyword in _IN_PLACE_LISTS:
            waiting += schema[keyword] if isinstance(schema.get(keyword), list) else ()
        for keyword in _IN_PLACE_MAPS:
            waiting += _mapping(schema, keyword).values()


def _below_others(schema: Schema) -> Iterator[object]:
    yield from (schema[keyword] for keyword in _OF_OTHERS if isinstance(schema.get(keyword), dict))
    yield from _mapping(schema, "patternProperties").values()


def _below_items(schema: Schema) -> Iterator[object]:
    for keyword in _OF_ITEMS:
        found = schema.get(keyword)
        yield from found if isinstance(found, list) else (found,)


def _mapping(schema: Schema, keyword: str) -> Mapping[str, Any]:
    value = schema.get(keyword)
    return value if isinstance(value, dict) else {}


def _everywhere(led: Led, root: Schema) -> Keys:
    """Returns every property of a schema at every place, for a schema with too many places to distinguish."""
    names, waiting, seen = set[str](), [root], set[int]()
    while waiting:
        for schema in _holding([waiting.pop()], led):
            if id(schema) in seen:
                continue
            seen.add(id(schema))
            names.update(_mapping(schema, "properties"))
            below = [*_mapping(schema, "properties").values(), *_below_others(schema), *_below_items(schema)]
            waiting += [each for each in below if isinstance(each, dict) and id(each) not in seen]
    keys = Keys(frozenset(names), frozenset(map(folded, names)))
    keys.distinct, keys.others, keys.items = len(keys.similar) == len(names), keys, keys
    return keys
