"""Set algebra on wildcard patterns.

Patterns have one kind of wildcard (`*`, any run of characters) and match whole names. They run together as small
automata over the characters that they name and one or two that represent all others, within a `GlobShape`: the grammar
of names of one kind. The search is breadth first and exact: no result means that no such name exists.
"""

import re
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import compress
from typing import NamedTuple

from sidecar.policy import grammar
from sidecar.policy.patterns import WILDCARD, glob
from sidecar.settings.field_types import SLUG
from sidecar.vocabulary import PermissionKind

MAX_STATES = 50_000  # far more than handwritten patterns need; exceeding it raises TooManyStates

_LOWER = frozenset("abcdefghijklmnopqrstuvwxyz0123456789")
_NAME = _LOWER | frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ_.-/")
_ID = frozenset(map(chr, range(33, 127))) - frozenset("\"',|*")
_URI = frozenset(map(chr, range(33, 127))) - frozenset('"|*')
_SERVER_NAME = re.compile(SLUG)
_DEAD, _SERVER, _IN_SERVER, _NAMED, _IN_NAME = -1, 0, 1, 2, 3
_FILLERS = ("any", "some", "other", "x", "")  # preferred texts for wildcards in a witness


class TooManyStates(Exception):
    """These patterns together exceed `MAX_STATES`, so the answer is unknown."""


class GlobShape(NamedTuple):
    """Names of one kind: `prefix`, then `<server>/` if they are on servers, then at least one of `characters`. After
    the prefix there are at most `most` characters."""

    prefix: str
    characters: frozenset[str]
    most: int
    on_server: bool = False

    def step(self, state: int, character: str) -> int:
        if state >= _NAMED:
            return _IN_NAME if character in self.characters else _DEAD
        if character in _LOWER:
            return _IN_SERVER
        if state == _IN_SERVER:
            return {"-": _SERVER, "/": _NAMED}.get(character, _DEAD)
        return _DEAD

    def has(self, text: str) -> bool:
        rest = text.removeprefix(self.prefix)
        server, _, name = rest.partition("/") if self.on_server else ("x", "", rest)
        fits = text.startswith(self.prefix) and len(rest) <= self.most and _SERVER_NAME.fullmatch(server)
        return bool(fits and name and self.characters.issuperset(name))


Shapes = tuple[GlobShape, ...]
_SHAPES = {
    "user": GlobShape("user:", _ID, 256),
    "nhi": GlobShape("nhi:", _ID, 256),
    "tool": GlobShape("tool:", _NAME, 256, True),
    "prompt": GlobShape("prompt:", _NAME, 256, True),
    "resource": GlobShape("resource:", _URI, 2048, True),
}
SUBJECTS: Mapping[PermissionKind, Shapes] = {
    kind: tuple(_SHAPES[word] for word in words if word in _SHAPES) for kind, words in grammar.SUBJECTS.items()
}
"""The shapes of subjects by kind. `anonymous` has no shape: callers of this module that need this name try it too."""
OBJECTS: Mapping[PermissionKind, Shapes] = {
    kind: tuple(_SHAPES[word] for word in words if word in _SHAPES) for kind, words in grammar.OBJECTS.items()
}


def may_overlap(one: str, other: str) -> bool:
    """Whether some text may match both: False is certain. Of two patterns, only the parts before the first and after
    the last wildcard are compared."""
    if WILDCARD not in one:
        return glob(one, other)
    if WILDCARD not in other:
        return glob(other, one)
    head, other_head = one[: one.index(WILDCARD)], other[: other.index(WILDCARD)]
    if not head.startswith(other_head) and not other_head.startswith(head):
        return False
    tail, other_tail = one[one.rindex(WILDCARD) + 1 :], other[other.rindex(WILDCARD) + 1 :]
    return tail.endswith(other_tail) or other_tail.endswith(tail)


def witness(
    shapes: Shapes, all_of: Sequence[str], none_of: Collection[str] = (), avoid: Collection[str] = ()
) -> str | None:
    """Returns a name of these shapes that matches each of `all_of` and none of `none_of`, and is not in `avoid`; None
    if there is none. Raises TooManyStates if the search exceeds MAX_STATES."""
    for name in _natural(shapes, all_of):
        fits = name not in avoid and all(glob(name, pattern) for pattern in all_of)
        if fits and not any(glob(name, pattern) for pattern in none_of):
            return name
    if any(WILDCARD not in pattern for pattern in all_of):
        return None  # the only possible name is among the natural ones
    banned = list(none_of)
    while True:  # each iteration removes one name to avoid: there are few of them
        found = next((name for shape in shapes for _, name in _walk(shape, all_of, (), banned)), None)
        if found is None or found not in avoid:
            return found
        banned.append(found)


def classes(
    shapes: Shapes, all_of: Sequence[str], others: Sequence[str], avoid: Collection[str] = ()
) -> Iterator[tuple[frozenset[str], str]]:
    """Yields each set of `others` that some name matches together, with such a name: it matches `all_of`, no other one
    of `others`, and is not in `avoid`. Raises TooManyStates if the search exceeds MAX_STATES."""
    told: set[frozenset[str]] = set()
    for shape in shapes:
        for met, name in _walk(shape, all_of, others, ()):
            if met in told:
                continue
            told.add(met)
            missed = [pattern for pattern in others if pattern not in met]
            natural = witness((shape,), (*all_of, *sorted(met)), missed, avoid) or (name if name not in avoid else None)
            if natural is None:
                told.discard(met)  # another shape may have one
            else:
                yield met, natural


def _natural(shapes: Shapes, all_of: Sequence[str]) -> Iterator[str]:
    """Yields names that a person would choose: the only possible one, or the longest pattern with words for its
    wildcards. They may not match the other patterns."""
    pattern = max(all_of, key=lambda pattern: (WILDCARD not in pattern, len(pattern)), default=WILDCARD)
    if WILDCARD not in pattern:
        yield from (pattern for shape in shapes if shape.has(pattern))
        return
    for shape in shapes:
        for filler in _FILLERS:
            filled = pattern.replace(WILDCARD, filler)
            server = f"{filler}/" if shape.on_server else ""
            for name in (filled, shape.prefix + filled, shape.prefix + server + filled):
                if shape.has(name):
                    yield name


class _Automaton:
    """One pattern. A state is the set of reached positions, as bits; 0 is dead."""

    __slots__ = ("accepts", "forever", "stars", "steps")

    def __init__(self, pattern: str) -> None:
        while "**" in pattern:
            pattern = pattern.replace("**", WILDCARD)
        self.steps: dict[str, int] = {}
        self.stars = 0
        for place, character in enumerate(pattern):
            if character == WILDCARD:
                self.stars |= 1 << place
            else:
                self.steps[character] = self.steps.get(character, 0) | 1 << place
        self.accepts = 1 << len(pattern)
        self.forever = self.stars & (self.accepts >> 1)  # a wildcard at the end, once reached

    def settle(self, state: int) -> int:
        """Adds the position after a reached wildcard, which may match nothing. Drops the positions before the last
        reached wildcard, which can match nothing more than it does."""
        if stars := state & self.stars:
            last = 1 << (stars.bit_length() - 1)
            state = (state & -last) | last << 1
        return state

    def step(self, state: int, character: str) -> int:
        moved = (state & self.steps.get(character, 0)) << 1
        return self.settle(moved | (state & self.stars))


_automaton = lru_cache(4096)(_Automaton)


def _walk(
    shape: GlobShape, all_of: Sequence[str], others: Sequence[str], none_of: Sequence[str]
) -> Iterator[tuple[frozenset[str], str]]:
    """Yields (the `others` that match, a shortest name) for each way to match all of `all_of` and none of `none_of`.
    The same set of others can occur several times."""
    parts = [_automaton(pattern) for pattern in (*all_of, *others, *none_of)]
    must, ban = len(all_of), len(all_of) + len(others)
    banned = parts[ban:]

    def alive(states: tuple[int, ...]) -> bool:
        """Whether every required pattern can still match, and no forbidden one matches every continuation."""
        lost = (state & part.forever for part, state in zip(banned, states[ban:], strict=True))
        return all(states[:must]) and not any(lost)

    states = tuple(part.settle(1) for part in parts)
    for character in shape.prefix:
        states = tuple([part.step(state, character) for part, state in zip(parts, states, strict=True)])
    first = (_SERVER if shape.on_server else _NAMED, states)
    if not alive(states):
        return
    seen, todo = {first}, deque([(first, shape.prefix)])
    alphabet = _alphabet(shape, (*all_of, *others, *none_of))
    while todo:
        (place, reached), text = todo.popleft()
        hits = [bool(state & part.accepts) for part, state in zip(parts, reached, strict=True)]
        if place == _IN_NAME and all(hits[:must]) and not any(hits[ban:]):
            yield frozenset(compress(others, hits[must:ban])), text
        if len(text) >= len(shape.prefix) + shape.most:
            continue
        for character in alphabet:
            onward = shape.step(place, character)
            if onward == _DEAD:
                continue
            after = tuple([part.step(state, character) for part, state in zip(parts, reached, strict=True)])
            key = (onward, after)
            if key not in seen and alive(after):
                if len(seen) >= MAX_STATES:
                    raise TooManyStates
                seen.add(key)
                todo.append((key, text + character))


def _alphabet(shape: GlobShape, patterns: Sequence[str]) -> list[str]:
    """Returns the characters that the patterns name, those of server names, and one or two for all others."""
    named = {character for pattern in patterns for character in pattern} & (shape.characters | _LOWER | {"-", "/"})
    rest = [character for character in "x" + "".join(sorted(_LOWER)) if character not in named][:1]
    rest += sorted(shape.characters - named - _LOWER - {"-", "/"})[:1]
    return sorted(named | {"-", "/"} | set(rest), key=lambda character: (character not in _LOWER, character))
