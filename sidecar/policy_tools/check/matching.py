"""Lints for rules that can never match."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice

from sidecar.limits.plan import BudgetRule
from sidecar.policy.faults import meant, shown
from sidecar.policy.grammar import ACTIONS, USED, home_of
from sidecar.policy.patterns import glob, meets_prefix
from sidecar.policy_tools.catalogue import KnownCatalogue
from sidecar.policy_tools.check.linted_policy import KINDS_ASKED, LintedPolicy, PolicyFinding, possible_actions
from sidecar.vocabulary import DELEGATE, PermissionKind, RuleRef

MAX_NEAR = 500  # names that are searched for a hint
_ASKS_WHOM = "user_to_nhi asks users, nhi_to_nhi asks NHIs, agent_to_tool asks both"
_WORDS = {"tool": "a tool", "prompt": "a prompt", "resource": "a resource", "nhi": "an NHI"}


def never_asked(policy: LintedPolicy) -> Iterator[PolicyFinding]:
    """P601: a set or role all of whose members are of a kind that no question has."""
    for rule in policy.rules:
        if rule.object.startswith("set:") and policy.things(rule.object) and not policy.object_kinds(rule):
            objects = _listed(KINDS_ASKED[rule.kind][1])
            message = f"{rule.kind.value} asks about {objects}, and {shown(rule.object)} holds none"
            yield PolicyFinding("P601", message, "agent_to_tool asks about tools", rule, "obj")
        if rule.subject.startswith("role:") and _is_of_others(policy, rule):
            message = f"{rule.kind.value} never asks anybody who has {shown(rule.subject)}"
            yield PolicyFinding("P601", message, _ASKS_WHOM, rule, "sub")


def _is_of_others(policy: LintedPolicy, rule: RuleRef) -> bool:
    people = policy.people(rule.subject)
    kinds = {name.partition(":")[0] for name in people}
    return bool(people) and not kinds & KINDS_ASKED[rule.kind][0] and not policy.may_be_granted(rule.subject)


def _listed(words: Iterable[str]) -> str:
    return ", ".join(f"{word}:…" for word in sorted(words))


def actions_never_asked(policy: LintedPolicy) -> Iterator[PolicyFinding]:
    """P602: none of a rule's actions is possible on its object. P603: some are not, and were written one by one."""
    for rule in policy.rules:
        kinds = policy.object_kinds(rule)
        if not kinds:
            continue
        if not policy.asked(rule):
            yield PolicyFinding("P602", *_none_asked(rule, kinds), rule, "act")
        elif not set(USED) <= set(rule.actions):
            yield from _some_not_asked(rule, kinds)


def _none_asked(rule: RuleRef, kinds: frozenset[str]) -> tuple[str, str]:
    """Return the message and the hint."""
    word = max(kinds)
    if rule.kind is PermissionKind.AGENT_TO_TOOL and word == "nhi":
        server = rule.object.removeprefix("nhi:")
        what = "opens its sessions and lists, and nothing else" if rule.effect == "allow" else "forbids nothing"
        if _asks_agents(rule):
            kind = home_of(rule.subject, rule.object) or PermissionKind.NHI_TO_NHI
            file = f"{kind.value}.csv" if rule.file.endswith(".csv") else f"kind: {kind.value}"
            return f"on an MCP server as a whole this {what}", f"for an agent of this name it belongs in {file}"
        hint = f"for what is on it write tool:{server}/*, prompt:{server}/*, resource:{server}/*"
        return f"on an MCP server as a whole this {what}", f"{hint}; for the server itself, initialize or *"
    asked = " or ".join(sorted(possible_actions(rule.kind, kinds))) if word != "nhi" else "message/send, delegate …"
    return f"no call of {_WORDS[word]} is asked as {' or '.join(rule.actions[:3])}", f"write {asked}, or use"


def _asks_agents(rule: RuleRef) -> bool:
    """Whether all actions of a rule are possible on agents."""
    return set(rule.actions) <= possible_actions(PermissionKind.NHI_TO_NHI, ("nhi",))


def _some_not_asked(rule: RuleRef, kinds: frozenset[str]) -> Iterator[PolicyFinding]:
    possible = possible_actions(rule.kind, kinds)
    for action in rule.actions:
        if action in ACTIONS and action not in possible and action != DELEGATE:
            message = f"{action} is never asked of {_WORDS[max(kinds)]}"
            yield PolicyFinding("P603", message, "take it away, or write use", rule, "act", action)


def roles_nobody_has(policy: LintedPolicy) -> Iterator[PolicyFinding]:
    """P604: no `g` row fills the role, and no token can grant it."""
    filled = [role for role in policy.members if policy.people(role) or policy.may_be_granted(role)]
    known = set(filled)
    for rule in policy.rules:
        role = rule.subject
        if role.startswith("role:") and role not in known and not policy.may_be_granted(role):
            hint = partial(_who_has, policy, role, filled)
            yield PolicyFinding("P604", f"nobody has {shown(role)}", hint, rule, "sub")


def _who_has(policy: LintedPolicy, role: str, filled: Iterable[str]) -> str:
    spaces = [f"role:{one.namespace}/…" for one in policy.granting or ()] if "/" in role else []
    grants = f"issuers grant {', '.join(spaces)}" if spaces else "write a g row that fills it"
    return near(role, filled) or grants


def near(name: str, names: Iterable[str]) -> str:
    """Return `did you mean …?`, searched among names of about the same length."""
    alike = (other for other in names if other != name and abs(len(other) - len(name)) <= 2)
    return meant(name, islice(alike, MAX_NEAR))


def on_no_upstream(policy: LintedPolicy) -> Iterator[PolicyFinding]:
    """P607: a server pattern that matches no upstream, or a set's object on an unknown one. (P121 is for exact names in
    rules.)
    """
    names = policy.names or frozenset()
    for rule in policy.rules:
        server = rule.object.partition(":")[2].partition("/")[0]
        if "*" in server and not policy.on_known_server(rule.object):
            yield PolicyFinding(
                "P607", f"no upstream fits {shown(rule.object)}", f"there are {_some(names)}", rule, "obj"
            )
    for element in policy.source.sets.parents:
        if not policy.on_known_server(element):
            server = element.partition(":")[2].partition("/")[0]
            yield PolicyFinding("P607", f"no upstream {shown(server)}", meant(server, names), name=element)


def on_nothing_there(policy: LintedPolicy) -> Iterator[PolicyFinding]:
    """P609: an object on servers whose objects of that kind are all known, and none of them matches."""
    if policy.catalogue is None:
        return
    there = _Things(policy.catalogue)
    for rule in policy.rules:
        ahead = rule.effect == "deny" and "*" in rule.object  # it forbids future objects
        if not ahead and there.lack(rule.object, policy.names):
            yield PolicyFinding("P609", f"nothing fits {shown(rule.object)}", there.near(rule.object), rule, "obj")
    for element in policy.source.sets.parents:
        if there.lack(element, policy.names):
            yield PolicyFinding("P609", f"there is no {shown(element)}", there.near(element), name=element)


class _Things:
    """The tools and prompts that a catalogue lists, by kind and server. Where it lists none of a kind at a server, that
    kind is unknown there; so are resources, since templates create more of them.
    """

    def __init__(self, catalogue: KnownCatalogue) -> None:
        self._by_place: dict[tuple[str, str], set[str]] = {("tool", server): set() for server in catalogue.servers}
        self._lack: dict[str, bool] = {}
        for name in catalogue.objects:
            word, _, rest = name.partition(":")
            if word in ("tool", "prompt"):
                self._by_place.setdefault((word, rest.partition("/")[0]), set()).add(name)

    def lack(self, obj: str, names: Iterable[str] | None) -> bool:
        """Whether no existing object matches an object or pattern."""
        if obj not in self._lack:
            self._lack[obj] = self._lacks(obj, names)
        return self._lack[obj]

    def _lacks(self, obj: str, names: Iterable[str] | None) -> bool:
        word, _, rest = obj.partition(":")
        server = rest.partition("/")[0]
        places = [server] if "*" not in server else [name for name in names or () if meets_prefix(rest, f"{name}/")]
        known = [self._by_place[word, name] for name in places if (word, name) in self._by_place]
        if not known or len(known) < len(places):
            return False
        return not any(obj in one or any(glob(name, obj) for name in one) for one in known)

    def near(self, obj: str) -> str:
        word, _, rest = obj.partition(":")
        found = sorted(self._by_place.get((word, rest.partition("/")[0]), ()))
        return (meant(obj, found) if "*" not in obj else "") or (f"there is {_some(found)}" if found else "")


def limits_nothing(policy: LintedPolicy) -> Iterator[PolicyFinding]:
    """P608: an entry of budgets.yaml that counts no calls: a typing error there disables that limit."""
    written = [entry.object if entry.unit else entry.pattern for entry in policy.budgets.entries if _on_objects(entry)]
    for pattern in dict.fromkeys([*written, *(cost.object for cost in policy.budgets.costs)]):
        if not policy.passes_here(pattern):
            server = pattern.partition(":")[2].partition("/")[0]
            names = (policy.names or frozenset()) | (policy.programs if pattern.startswith("nhi:") else frozenset())
            hint = meant(server, names) or f"there are {_some(names)}"
            message = f"no upstream fits {shown(pattern)}: nothing is counted there"
            yield PolicyFinding("P608", message, hint, file=policy.budgets_file, part=pattern)
    roles = [entry.pattern for entry in policy.budgets.entries if entry.pattern.startswith("role:")]
    for role in dict.fromkeys(roles):
        if "*" not in role and not policy.members.get(role) and not policy.may_be_granted(role):
            message = f"nobody has {shown(role)}: nothing is counted for it"
            yield PolicyFinding("P608", message, near(role, policy.members), file=policy.budgets_file, part=role)


def _on_objects(entry: BudgetRule) -> bool:
    return entry.names_objects or bool(entry.unit)


def _some(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:5]) + (" …" if len(ordered) > 5 else "") if ordered else "no upstreams"
