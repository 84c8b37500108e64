"""Computes access: the engine's answers for every known principal and object, page by page.

Names come from rows, roles and sets, from keys and settings, and from servers' lists. Each answer is for all calls of a
chain on an object, whatever their arguments, at one moment. Limits are not checked. `open_objects` and
`open_principals` are the patterns of unknown names that rules could allow. Long work lets other requests run in
between.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple, TypeVar

from sidecar.gateway.kill_switch.known_names import names_beside_rules
from sidecar.gateway.snapshot import Service, Snapshot
from sidecar.policy.engine import BLOCK, PossibleAnswer
from sidecar.policy.patterns import WILDCARD, NamePattern
from sidecar.policy_tools.audit_records import question_of
from sidecar.policy_tools.explanation import rule_data
from sidecar.policy_tools.rule_text import csv_row
from sidecar.settings.field_types import is_caller
from sidecar.settings.timestamps import rfc3339
from sidecar.vocabulary import ACTION_ON, ANONYMOUS, DELEGATE, Chain, Decision, Link, Principal, Question

T = TypeVar("T")
PrincipalKind = Literal["user", "nhi", "anonymous"]
ObjectKind = Literal["tool", "prompt", "resource", "nhi"]
PRINCIPALS: Final[tuple[PrincipalKind, ...]] = ("user", "nhi", "anonymous")
NAMED: Final[tuple[PrincipalKind, ...]] = ("user", "nhi")
"""The kinds of principals that have names of their own."""
OBJECTS: Final[tuple[ObjectKind, ...]] = ("tool", "prompt", "resource", "nhi")
STATES: Final[tuple[PossibleAnswer, ...]] = ("allow", "approval", "conditional", "deny")
MAX_ANSWERS: Final = 3_000
MAX_CASBIN_ANSWERS: Final = 200
"""The number of answers for one window of a list, if pycasbin decides: it takes milliseconds for each."""
PASS_EVERY: Final = 16
MAX_RULES: Final = 5
UNNAMED: Final = "~"  # the id of an unknown principal


class NamesByKind:
    """Unique names, sorted within each kind. Work on all of them lets other work run after each block."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._kinds: dict[str, tuple[int, int]] = {}

    async def add(self, kind: str, blocks: Iterable[Sequence[str]]) -> None:
        """Adds the names of a kind, which must be sorted and unique."""
        first = len(self.all)
        for block in blocks:
            self.all += block
            await asyncio.sleep(0)
        self._kinds[kind] = first, len(self.all)

    def __contains__(self, name: object) -> bool:
        first, end = self._kinds.get(str(name).partition(":")[0], (0, 0))
        at = bisect_left(self.all, str(name), first, end)
        return at < end and self.all[at] == name

    async def selected(self, kind: str, wanted: str) -> Sequence[str]:
        """Returns the names of a kind (of all kinds for "") that match `wanted` if it has a `*`, otherwise those that
        contain it, in upper or lower case."""
        first, end = self._kinds[kind] if kind else (0, len(self.all))
        names = self.all if end - first == len(self.all) else self.all[first:end]
        if WILDCARD in wanted:
            return await chosen(names, NamePattern(wanted).among)
        text = wanted.casefold()
        return await chosen(names, lambda some: [name for name in some if text in name.casefold()]) if text else names


async def chosen(names: Sequence[str], choose: Callable[[Sequence[str]], Iterable[str]]) -> Sequence[str]:
    """Returns the results of `choose` for each block of names."""
    found: list[str] = []
    for first in range(0, len(names), BLOCK):
        found += choose(names[first : first + BLOCK])
        await asyncio.sleep(0)
    return found


class AccessNames(NamedTuple):
    """The principals and the objects that are known."""

    principals: NamesByKind
    objects: NamesByKind


async def known_names(now: Snapshot) -> AccessNames:
    """Returns all names that a snapshot knows."""
    servers = sorted(f"nhi:{name}" for name in now.services)  # left out: an MCP server is not an agent
    beside = await asyncio.to_thread(lambda: {name for name in names_beside_rules(now) if is_caller(name)})
    listed = {f"{kind}:{server}/{name}" for server, service in now.services.items() for kind, name in _listed(service)}
    found = AccessNames(NamesByKind(), NamesByKind())
    for names, kinds, more in ((found.principals, PRINCIPALS, beside), (found.objects, OBJECTS, beside | listed)):
        for kind in kinds:
            prefix = kind if kind == ANONYMOUS else f"{kind}:"
            blocks = now.engine.names_with(prefix, (name for name in more if name.startswith(prefix)))
            await names.add(kind, (_without(servers, block) for block in blocks))
    return found


def _without(servers: Sequence[str], block: list[str]) -> list[str]:
    """Returns sorted names without those of servers, which few blocks contain."""
    held = {*servers[bisect_left(servers, block[0]) : bisect_right(servers, block[-1])]} if block else set()
    return [name for name in block if name not in held] if held else block


def _listed(service: Service) -> Iterator[tuple[str, str]]:
    """Yields the kind and the name of everything that a server has listed."""
    discovered = service.catalogue.discovered()
    yield from ((kind, name) for kind in ACTION_ON for name in discovered[f"{kind}s"])


@dataclass(frozen=True)
class AccessView:
    """Answers at one moment for chains that begin with a varying principal and continue with `via`. An empty `action`
    is the usual one of each object."""

    now: Snapshot
    now_s: float
    via: tuple[Principal, ...] = ()
    action: str = ""

    @cached_property
    def most(self) -> int:
        return MAX_CASBIN_ANSWERS if self.now.engine.asks_casbin else MAX_ANSWERS

    def question(self, obj: str) -> Question:
        kind, _, name = obj.partition(":")
        # An agent receives messages, any other NHI receives authority.
        usual = ACTION_ON.get(kind) or ("message/send" if name in self.now.agents else DELEGATE)
        return question_of(obj, self.action or usual)

    def chain(self, principal: str) -> Chain:
        """Returns the chain of a principal, or of a user whose token brings a role."""
        is_role = principal.startswith("role:")
        first = Principal(f"user:{UNNAMED}", roles=frozenset((principal,))) if is_role else Principal(principal)
        return (first, *self.via)

    def asker(self, principal: str) -> Mapping[str, str]:
        """Returns the chain in the form of the fields of the page Try."""
        first, *others = self.chain(principal)
        roles = {"roles": principal} if first.roles else {}
        return {"as": ",".join([first.name, *(one.name for one in others)]), **roles}

    def answer(self, principal: str, obj: str) -> tuple[PossibleAnswer, Decision]:
        return self.now.engine.survey(self.chain(principal), self.question(obj), self.now_s)

    def cell(self, principal: str, obj: str) -> Mapping[str, Any]:
        """Returns the answer as data, with the rules that led to it: those of the principal's own link, or of the link
        that denied it."""
        state, decision = self.answer(principal, obj)
        own = decision.links[len(self.via)]
        denied = [one for one in decision.links if not one.allowed]
        link = next((one for one in denied if one.reason is decision.reason), own)
        return {
            "principal": principal,
            "object": obj,
            "action": self.question(obj).action,
            "state": state,
            "reason": decision.reason.value if decision.reason else None,
            "until": None if decision.until is None else rfc3339(decision.until),
            "rules": [rule_data(rule, csv_row(rule)) for rule in link.rules[:MAX_RULES]],
            "more_rules": max(0, len(link.rules) - MAX_RULES),
            "denied_link": None if link.allowed or link is own else _link(link),
        }

    async def table(self, principals: Sequence[str], objects: Sequence[str]) -> list[list[Mapping[str, Any]]]:
        """Returns the cells of a matrix, row by row."""
        pairs = [(principal, obj) for principal in principals for obj in objects]
        cells = [self.cell(*pair) async for pair in self._passing(pairs)]
        return [cells[first : first + len(objects)] for first in range(0, len(cells), len(objects))] if objects else []

    async def objects_of(self, principal: str, names: Sequence[str]) -> list[tuple[str, PossibleAnswer]]:
        """Returns each object with the principal's access."""
        return [(name, self.answer(principal, name)[0]) async for name in self._passing(names)]

    async def principals_of(self, obj: str, names: Sequence[str]) -> list[tuple[str, PossibleAnswer]]:
        """Returns each principal with its access to the object."""
        return [(name, self.answer(name, obj)[0]) async for name in self._passing(names)]

    def granted_objects(self, principal: str) -> frozenset[str] | None:
        """Returns the objects that allow rows of a principal name; None if they could allow any name. Blocks."""
        chain, found = self.chain(principal), set[str]()
        for kind in OBJECTS:
            held = self.now.engine.objects_of(chain, Question(f"{kind}:*", "", ""))
            if held is None:
                return None
            found |= {name for name in held if name.startswith(f"{kind}:")}
        return frozenset(found)

    def granted_principals(self, obj: str) -> frozenset[str] | None:
        """Returns the principals that allow rows of an object name; None if they could allow any name. Blocks."""
        found = {ANONYMOUS}
        for kind in NAMED:
            example = self.chain(f"{kind}:{UNNAMED}")
            held = self.now.engine.subjects_of(example, self.question(obj), f"{kind}:*")
            if held is None:
                return None
            found |= {name for name in held if name.startswith(f"{kind}:")}
        return frozenset(found)

    def open_objects(self, principal: str) -> list[str]:
        """Returns the patterns of objects for which rules could allow unknown names. The tools and prompts of a server
        that has listed them are all known."""
        chain, engine = self.chain(principal), self.now.engine
        patterns = [
            *(f"tool:{name}/*" for name, service in self.now.services.items() if not service.catalogue.lists),
            *(f"prompt:{name}/*" for name, one in self.now.services.items() if one.catalogue.has("prompt", "") is None),
            *(f"resource:{name}/*" for name in self.now.services),  # templates may give others than are listed
            "nhi:*",
        ]
        return [pattern for pattern in patterns if engine.may_allow_more(chain, self.question(pattern))]

    def open_principals(self, obj: str) -> list[str]:
        """Returns the patterns of principals for which rules could allow unknown names, also by roles that tokens
        grant."""
        grants = any(issuer.roles_from is not None for issuer in self.now.settings.identity.issuers)
        question, engine = self.question(obj), self.now.engine
        examples = {f"{kind}:*": self.chain(f"{kind}:{UNNAMED}") for kind in NAMED}
        return [
            pattern
            for pattern, chain in examples.items()
            if engine.may_allow_more(chain, question, pattern, open_roles=grants)
        ]

    async def _passing(self, asked: Sequence[T]) -> AsyncIterator[T]:
        """Yields the items, and lets other requests run in between."""
        every = 1 if self.now.engine.asks_casbin else PASS_EVERY
        for number, one in enumerate(asked, start=1):
            yield one
            if number % every == 0:
                await asyncio.sleep(0)


def _link(link: Link) -> Mapping[str, str]:
    return {"kind": link.kind.value, "subject": link.subject, "object": link.object, "action": link.action}
