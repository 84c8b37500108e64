"""Recognizes names that no rule, role, key or upstream contains, to find misspellings.

An issuer may name any principal. A name is known if a rule, role, budget, key, the settings or `disabled.yaml` mentions
it, if this process has charged it, or if it is an upstream. Any other name may still match a pattern of a rule, such as
`user:*`, so it counts as known unless it is similar to a known name.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Set
from difflib import get_close_matches
from string import ascii_lowercase, digits
from typing import NamedTuple

from sidecar.gateway.snapshot import Snapshot
from sidecar.policy.patterns import glob
from sidecar.settings.field_types import is_caller

ALIKE = 0.8
COMPARED = 2_000
MAX_ID = 256
CHARACTERS = f"{ascii_lowercase}{digits}-_."  # the usual characters of ids


class KnownNames(NamedTuple):
    """Whether a principal's name is known or may match a rule's pattern. Otherwise `nearest` is the most similar known
    name, "" if none is similar."""

    known: bool
    nearest: str = ""


def known(name: str, now: Snapshot, seen: Iterable[str]) -> KnownNames:
    """Looks up a name. `seen` are names known from other sources."""
    beside = {*names_beside_rules(now), *seen}
    if name in beside or now.engine.has_name(name):
        return KnownNames(True)
    nearest = _nearest(name, now, beside)
    return KnownNames(not nearest and any(glob(name, pattern) for pattern in now.engine.allowed_patterns()), nearest)


def _nearest(name: str, now: Snapshot, beside: Set[str]) -> str:
    """Returns the most similar name, "" if none is similar. Neighbours in sort order are compared first, then names
    that differ by one edit. Comparing with a million names would take seconds."""
    kind, _, wanted = name.partition(":")
    prefix, wanted = f"{kind}:", wanted[:MAX_ID]
    others = sorted(text for text in beside if text.startswith(prefix))
    at = bisect_left(others, name)
    around = {*others[max(0, at - COMPARED // 2) : at + COMPARED // 2]}
    near = _closest(wanted, around | now.engine.names_around(name, prefix, COMPARED))
    if not near:
        edited = map(prefix.__add__, _edits(wanted))
        near = _closest(wanted, {text for text in edited if text in beside or now.engine.has_name(text)})
    return near and prefix + near


def _closest(wanted: str, names: Iterable[str]) -> str:
    ids = [name.partition(":")[2] for name in names if is_caller(name)]
    return next(iter(get_close_matches(wanted, ids, n=1, cutoff=ALIKE)), "")


def _edits(text: str) -> Iterator[str]:
    """Yields all texts that differ from this one by one added, removed or replaced character or two exchanged
    neighbours."""
    for at in range(len(text) + 1):
        head, tail = text[:at], text[at:]
        yield head + tail[1:]
        yield head + tail[1:2] + tail[:1] + tail[2:]
        for character in CHARACTERS:
            yield head + character + tail
            yield head + character + tail[1:]


def names_beside_rules(now: Snapshot) -> Iterator[str]:
    """Yields the names of principals from sources other than rules, and other texts, which equal no such name."""
    yield from now.identity.key_owners()
    yield from (f"nhi:{name}" for name in now.upstreams)
    yield from (f"nhi:{name}" for name in now.settings.schedules)
    yield from now.identity.added_schedules.values()
    yield from (entry.pattern for entry in now.budgets.entries)
    yield from now.budgets.asked_for
    yield from (entry.principal for entry in now.disabled.entries)
    yield from _strings(now.settings.model_dump(mode="json"))


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from (text for pair in value.items() for part in pair for text in _strings(part))
    elif isinstance(value, list):
        yield from (text for part in value for text in _strings(part))
