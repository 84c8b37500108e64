"""Lints for rules that can never match, that match too much, that expire, or that demand approvals that no one can
give."""

from collections.abc import Iterable, Iterator
from functools import lru_cache, partial
from itertools import chain, islice

from sidecar.policy.faults import meant, shown
from sidecar.policy.grammar import ACTIONS, Wrong, duration_text, expires_at, home_of, named_actions
from sidecar.policy.patterns import glob, meets_prefix
from sidecar.policy.stock.reading import EXPIRES_AT
from sidecar.policy_tools.catalogue import KnownCatalogue, server_of
from sidecar.policy_tools.check.linted_policy import KINDS_ASKED, LintedPolicy, PolicyFinding, possible_actions
from sidecar.policy_tools.rule_text import cut, moment
from sidecar.vocabulary import ANONYMOUS, DELEGATE, PermissionKind, RuleRef

MAX_NEAR = 500  # names that are searched for one hint
_ASKS_WHOM = "user_to_nhi is for users, nhi_to_nhi for NHIs, agent_to_tool for both"
_WORDS = {"tool": "a tool", "prompt": "a prompt", "resource": "a resource", "nhi": "an NHI"}
_THINGS = {"tool": "tool", "prompt": "prompt", "resource": "resource", "nhi": "agent and server"}
_ALL_CALLERS = {"*": "every identified caller", "user:*": "every user", "nhi:*": "every NHI"}
_ANONYMOUS = "only upstreams with `anonymous: true` have such callers"
DAY_S = 86_400
SHADOW_DAYS = 30  # the maximum duration of `mode: shadow`


def never_asked(policy: LintedPolicy) -> Iterator[PolicyFinding]:
    """P601: a rule on a set or for a role whose members are all of kinds that no question of the rule's kind has."""
    for rule in policy.rules:
        if rule.object.startswith("set:") and policy.things(rule.object) and not policy.object_kinds(rule):
            objects = ", ".join(f"{word}:…" for word in sorted(KINDS_ASKED[rule.kind][1]))
            message = f"{rule.kind.value} applies to {objects}, and {shown(rule.object)} contains none"
            yield PolicyFinding("P601", message, "rules on tools belong in agent_to_tool", rule, "obj")
        kinds = {name.partition(":")[0] for name in policy.people(rule.subject)}
        if kinds and not kinds & KINDS_ASKED[rule.kind][0] and not policy.may_be_granted(rule.subject):
            message = f"{rule.kind.value} has no subject with {shown(rule.subject)}"
            yield PolicyFinding("P601", message, _ASKS_WHOM, rule, "sub")


def actions_never_asked(policy: LintedPolicy) -> Iterator[PolicyFinding]:
    """P602: none of a rule's actions is possible on its object. P603: an action that is written by name is not."""
    for rule in policy.rules:
        kinds = policy.object_kinds(rule)
        if not kinds:
            continue
        if not policy.asked(rule):
            yield PolicyFinding("P602", *_none_asked(rule, kinds), rule, "act")
        elif named := named_actions(rule.actions):
            possible = possible_actions(rule.kind, kinds) | {DELEGATE}
            for action in named:
                if action in ACTIONS and action not in possible:
                    message = f"{action} does not apply to {_WORDS[max(kinds)]}"
                    yield PolicyFinding("P603", message, "remove it, or write use", rule, "act", action)


def _none_asked(rule: RuleRef, kinds: frozenset[str]) -> tuple[str, str]:
    word = max(kinds)
    if rule.kind is PermissionKind.AGENT_TO_TOOL and word == "nhi":
        server = rule.object.removeprefix("nhi:")
        what = "opens its sessions and lists, and nothing else" if rule.effect == "allow" else "forbids nothing"
        if set(rule.actions) <= possible_actions(PermissionKind.NHI_TO_NHI, ("nhi",)):
            kind = home_of(rule.subject, rule.object) or PermissionKind.NHI_TO_NHI
            file = f"{kind.value}.csv" if rule.file.endswith(".csv") else f"kind: {kind.value}"
            return f"on an MCP server as a whole this {what}", f"for an agent of this name it belongs in {file}"
        hint = f"for what it offers, write tool:{server}/*, prompt:{server}/*, resource:{server}/*"
        return f"on an MCP server as a whole this {what}", f"{hint}; for the server itself, initialize or *"
    asked = " or ".join(sorted(possible_actions(rule.kind, kinds))) if word != "nhi" else "message/send, delegate …"
    return f"no call of {_WORDS[word]} has the action {' or '.join(rule.actions[:3])}", f"write {asked}, or use"


def empty_roles(policy: LintedPolicy) -> Iterator[PolicyFinding]:
    """P604: a rule for a role that no `g` row fills and no token can grant."""
    filled = [role for role in policy.members if policy.people(role) or policy.may_be_granted(role)]
    known = set(filled)
    for rule in policy.rules:
        role = rule.subject
        if role.startswith("role:") and role not in known and not policy.may_be_granted(role):
            hint = partial(_who_has, policy, role, filled)
            yield PolicyFinding("P604", f"no principal has {shown(role)}", hint, rule, "sub")


def _who_has(policy: LintedPolicy, role: str, filled: Iterable[str]) -> str:
    spaces = [f"role:{one.namespace}/…" for one in policy.granting or ()] if "/" in role else []
    grants = f"issuers grant {', '.join(spaces)}" if spaces else "add a member with a g row"
    return near(role, filled) or grants


def near(name: str, names: Iterable[str]) -> str:
    """Returns `did you mean …?` with a name of about the same length; "" if none is similar."""
    alike = (other for other in names if other != name and abs(len(other) - len(name)) <= 2)
    return meant(name, islice(alike, MAX_NEAR))


def on_no_upstream(policy: LintedPolicy) -> Iterator[PolicyFinding]:
    """P607: a pattern of servers that no upstream matches, or an object in a set that is on no upstream. (The loader
    reports exact names in rules as P121.)"""
    names = policy.names or frozenset()
    for rule in policy.rules:
        if "*" in server_of(rule.object) and not policy.on_known_server(rule.object):
            message = f"no upstream matches {shown(rule.object)}"
            yield PolicyFinding("P607", message, f"there are {some(names)}", rule, "obj")
    for element in policy.source.sets.parents:
        if not policy.on_known_server(element):
            server = server_of(element)
            yield PolicyFinding("P607", f"no upstream {shown(server)}", meant(server, names), name=element)


def on_nothing_there(policy: LintedPolicy) -> Iterator[PolicyFinding]:
    """P609: an object that matches none of the objects of its kind on servers where all of them are known."""
    if policy.catalogue is None:
        return
    there = _Things(policy.catalogue, policy.names or ())
    lack = lru_cache(None)(there.lack)
    for rule in policy.rules:
        ahead = rule.effect == "deny" and "*" in rule.object  # it denies future objects
        if not ahead and lack(rule.object):
            yield PolicyFinding("P609", f"nothing matches {shown(rule.object)}", there.near(rule.object), rule, "obj")
    for element in policy.source.sets.parents:
        if lack(element):
            yield PolicyFinding("P609", f"there is no {shown(element)}", there.near(element), name=element)


class _Things:
    """The tools and prompts that a catalogue lists, by kind and server. A kind that it does not list for a server is
    unknown there. Resources are unknown too, because templates create more of them."""

    def __init__(self, catalogue: KnownCatalogue, names: Iterable[str]) -> None:
        self._by_place: dict[tuple[str, str], set[str]] = {("tool", server): set() for server in catalogue.servers}
        self._names = names
        for name in catalogue.objects:
            if name.startswith(("tool:", "prompt:")):
                self._by_place.setdefault((name.partition(":")[0], server_of(name)), set()).add(name)

    def lack(self, obj: str) -> bool:
        word, _, rest = obj.partition(":")
        server = server_of(obj)
        places = [server] if "*" not in server else [name for name in self._names if meets_prefix(rest, f"{name}/")]
        known = [self._by_place[word, name] for name in places if (word, name) in self._by_place]
        if not known or len(known) < len(places):
            return False
        return not any(obj in one or any(glob(name, obj) for name in one) for one in known)

    def near(self, obj: str) -> str:
        found = sorted(self._by_place.get((obj.partition(":")[0], server_of(obj)), ()))
        return (meant(obj, found) if "*" not in obj else "") or (f"there is {some(found)}" if found else "")


def limits_nothing(policy: LintedPolicy) -> Iterator[PolicyFinding]:
    """P608: an entry of budgets.yaml that counts no calls, which can be a typing error that disables a limit."""
    on_objects = [entry for entry in policy.budgets.entries if entry.names_objects or entry.unit]
    written = [entry.object if entry.unit else entry.pattern for entry in on_objects]
    for pattern in dict.fromkeys([*written, *(cost.object for cost in policy.budgets.costs)]):
        if not policy.passes_here(pattern):
            names = (policy.names or frozenset()) | (policy.programs if pattern.startswith("nhi:") else frozenset())
            hint = meant(server_of(pattern), names) or f"there are {some(names)}"
            message = f"no upstream matches {shown(pattern)}: nothing is counted there"
            yield PolicyFinding("P608", message, hint, file=policy.budgets_file, part=pattern)
    roles = [entry.pattern for entry in policy.budgets.entries if entry.pattern.startswith("role:")]
    for role in dict.fromkeys(roles):
        if "*" not in role and not policy.members.get(role) and not policy.may_be_granted(role):
            message = f"no principal has {shown(role)}: nothing is counted for it"
            yield PolicyFinding("P608", message, near(role, policy.members), file=policy.budgets_file, part=role)


def some(names: Iterable[str]) -> str:
    """Returns the first five names for a hint; `no upstreams` if there are none."""
    return ", ".join(cut(sorted(names), 5)) or "no upstreams"


def wide(policy: LintedPolicy) -> Iterator[PolicyFinding]:
    """An allow rule, P651: for all callers, P652: on all objects, both without a condition; P653: for callers without a
    credential."""
    for rule in policy.rules:
        if rule.effect != "allow" or rule.shadow:
            continue
        if rule.subject == ANONYMOUS:
            yield PolicyFinding("P653", "allows callers without a credential", _ANONYMOUS, rule, "sub")
        if rule.when:
            continue
        if rule.subject in _ALL_CALLERS:
            message = f"{shown(rule.subject)} is {_ALL_CALLERS[rule.subject]}, and there is no condition"
            yield PolicyFinding("P651", message, "name a role or the callers, or add a condition", rule, "sub")
        word, _, rest = rule.object.partition(":")
        if rule.object == "*" or (word in _THINGS and not rest.strip("*/")):
            what = "everything" if rule.object == "*" else f"every {_THINGS[word]}"
            message = f"{shown(rule.object)} is {what}, and there is no condition"
            yield PolicyFinding("P652", message, "name the servers or a set, or add a condition", rule, "obj")


def ended(policy: LintedPolicy) -> Iterator[PolicyFinding]:
    """P621: expired. P622: expires within the given number of days."""
    dated = (table for table in policy.stock if EXPIRES_AT in table.source.model.columns)
    for rule in chain(policy.rules, *dated):
        if rule.expires_at is None:
            continue
        left_s = rule.expires_at - policy.now_s
        if left_s <= 0:
            hint = "remove it, or renew it"
            yield PolicyFinding("P621", f"expired at {moment(rule.expires_at)}", hint, rule, "expires_at")
        elif left_s <= policy.soon_days * DAY_S:
            message = f"expires in {_span(left_s)}, at {moment(rule.expires_at)}"
            yield PolicyFinding("P622", message, "renew it, or let it expire", rule, "expires_at")


def long_in_shadow(policy: LintedPolicy) -> Iterator[PolicyFinding]:
    """P623: a shadow rule whose `created_at` is more than SHADOW_DAYS ago."""
    for rule in policy.rules:
        created_s = _created(policy.written.note(rule, "created_at")) if rule.shadow else None
        if created_s is not None and policy.now_s - created_s > SHADOW_DAYS * DAY_S:
            message = f"in shadow for {_span(policy.now_s - created_s)}: it decides nothing"
            yield PolicyFinding("P623", message, "enforce it, or remove it", rule, "shadow")


def _created(text: str) -> float | None:
    try:
        return expires_at(text) if text else None
    except Wrong:
        return None


def _span(seconds: float) -> str:
    days, hours = int(seconds // DAY_S), int(seconds // 3600)
    return f"{days} days" if days >= 2 else f"{hours} hours" if hours >= 2 else f"{int(seconds // 60)} minutes"


def approved_by_no_one(policy: LintedPolicy) -> Iterator[PolicyFinding]:
    """P681: no user has the role that must approve. P682: only the caller has it, who may not approve."""
    for rule in policy.rules:
        if rule.approval is None or rule.shadow:
            continue
        role = rule.approval.role
        users = _users(policy, role)
        if policy.may_be_granted(role):
            continue
        if not users:
            known = (other for other in policy.members if _users(policy, other))
            hint = near(role, known) or "write a g row that gives a user the role"
            yield PolicyFinding("P681", f"no user has {shown(role)}", hint, rule, "approval", role)
        elif users == _callers(policy, rule.subject):
            message = f"only {users[0]} has {shown(role)}, who is in the chain of every call that this allows"
            hint = "give the role to more users: a person in the chain cannot approve"
            yield PolicyFinding("P682", message, hint, rule, "approval", role)


def _users(policy: LintedPolicy, role: str) -> list[str]:
    return [name for name in policy.people(role) if name.startswith("user:")]


def _callers(policy: LintedPolicy, subject: str) -> list[str]:
    """Returns a list of the only caller that a subject matches; [] if there are several, or they are not known."""
    names = policy.people(subject) if subject.startswith("role:") else [subject]
    return names if len(names) == 1 and "*" not in subject and not policy.may_be_granted(subject) else []


def asks_too_late(policy: LintedPolicy) -> Iterator[PolicyFinding]:
    """P683: an approver has more time to answer than the rule has left."""
    for rule in policy.rules:
        left_s = 0 if rule.expires_at is None else rule.expires_at - policy.now_s
        if rule.approval is not None and not rule.shadow and 0 < left_s < rule.approval.within_s:
            within = duration_text(rule.approval.within_s)
            message = f"an approver has {within} to answer, and this rule ends in {_span(left_s)}"
            yield PolicyFinding("P683", message, "renew the rule, or ask for an answer within less", rule, "within")
