"""Finds names that no rule, role, key or upstream knows, to catch misspellings.

An issuer may name any principal. A name is known if a rule, role, budget, key, the settings or `disabled.yaml` mentions
it, if this process has charged it, or if it is an upstream. Any other may still match a pattern of a rule, such as
`user:*`; it counts as known unless it is similar to a known name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import NamedTuple

from sidecar.gateway.kill_switch import is_name
from sidecar.gateway.snapshot import Snapshot
from sidecar.policy.patterns import glob

ALIKE = 0.8


class KnownNames(NamedTuple):
    """Whether a principal's name is known, and the known name most similar to it, "" if there is none."""

    known: bool
    nearest: str = ""


def known(name: str, now: Snapshot, seen: Iterable[str]) -> KnownNames:
    """Looks up a name. `seen` are names that are known from elsewhere."""
    texts = {*_texts(now), *seen}
    if name in texts:
        return KnownNames(True)
    kind, _, _ = name.partition(":")
    of_kind = {text.partition(":")[2]: text for text in texts if text.startswith(f"{kind}:") and is_name(text)}
    near = get_close_matches(name.partition(":")[2][:256], of_kind, n=1, cutoff=ALIKE)
    fits = any(glob(name, pattern) for pattern in now.engine.allowed_patterns())
    return KnownNames(fits and not near, of_kind[near[0]] if near else "")


def _texts(now: Snapshot) -> Iterator[str]:
    """Yields names of principals, and other texts that equal no name."""
    yield from now.engine.names()
    yield from names_beside_rules(now)


def names_beside_rules(now: Snapshot) -> Iterator[str]:
    """Yields the names of principals that others than rules hold, and texts that equal no name."""
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
