"""The policy as the lints see it: with budgets, upstreams, the roles that tokens can grant, and the current time.

Everything is looked up by name; no lint compares all pairs of rules.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from sidecar.limits.plan import Budgets
from sidecar.policy import PolicySource
from sidecar.policy.grammar import ACTIONS, MCP_TASK_ACTIONS, OBJECTS, SUBJECTS
from sidecar.policy.patterns import glob, meets_prefix
from sidecar.policy.roles import is_granted
from sidecar.policy.stock.table import StockTable
from sidecar.policy_tools.catalogue import KnownCatalogue
from sidecar.policy_tools.check.source_positions import RuleSources
from sidecar.policy_tools.diff.rules import is_shipped
from sidecar.vocabulary import ACTION_ON, DELEGATE, PermissionKind, RuleRef

AGENTS = (PermissionKind.USER_TO_NHI, PermissionKind.NHI_TO_NHI)
# the subjects and objects in questions of each kind
KINDS_ASKED: Mapping[PermissionKind, tuple[frozenset[str], frozenset[str]]] = {
    kind: (frozenset(SUBJECTS[kind]) - {"role"}, frozenset(OBJECTS[kind]) - {"set"}) for kind in PermissionKind
}
# the actions on agents; all other known actions are on an MCP server as a whole
_OF_AGENTS = frozenset(
    action for action in ACTIONS if action.startswith(("message/", "tasks/", "push/", "card/")) or action == "delegate"
)
_OF_SERVERS = (ACTIONS - _OF_AGENTS - frozenset(ACTION_ON.values())) | MCP_TASK_ACTIONS


class Granting(NamedTuple):
    """The roles `<namespace>/<value>` that an issuer's tokens grant; `only` are patterns of values, () for all values.
    `required`: tokens must have the claim."""

    namespace: str
    only: tuple[str, ...] = ()
    required: bool = False

    def grants(self, role: str) -> bool:
        space, _, value = role.removeprefix("role:").partition("/")
        return space == self.namespace and bool(value) and (not self.only or any(glob(value, one) for one in self.only))


class PolicyFinding(NamedTuple):
    """One finding of a lint. Its place is a `rule` (optionally a column and a part of the column), the row that fills
    the role or set `name`, or a `file` (optionally the first occurrence of a part in it)."""

    code: str
    message: str
    hint: str | Callable[[], str] = ""
    rule: RuleRef | None = None
    column: str = ""
    part: str = ""
    name: str = ""
    file: str = ""


@dataclass(slots=True)
class LintedPolicy:
    """A policy with its surroundings. `granting` are the issuers and `names` the upstreams, None if they are unknown;
    `programs` are further agents; `catalogue` lists the objects on the servers, None if it was not given; `now_s` is in
    seconds since the epoch."""

    source: PolicySource
    written: RuleSources
    now_s: float
    budgets: Budgets = field(default_factory=Budgets)
    budgets_file: str = ""
    names: frozenset[str] | None = None
    programs: frozenset[str] = frozenset()
    granting: Sequence[Granting] | None = None
    catalogue: KnownCatalogue | None = None
    config_file: str = ""
    soon_days: float = 14
    strict: bool = False
    rules: Sequence[RuleRef] = field(init=False)
    """The rules of the sidecar's own models."""
    stock: Sequence[StockTable] = field(init=False)
    """The tables of other Casbin models, whose rows have other names. A table that decides several kinds occurs
    once."""
    allows: Sequence[RuleRef] = field(init=False)
    """The allow rules, other than shadow rules, that some call can match, of the kinds whose model matches like the
    built-in ones. What other rules cover cannot be determined."""
    members: Mapping[str, frozenset[str]] = field(init=False)
    elements: Mapping[str, frozenset[str]] = field(init=False)

    def __post_init__(self) -> None:
        self.rules = tuple(self.source.own_rules)
        self.stock = tuple({id(table.source): table for table in self.source.stock.values()}.values())
        self.members = self.source.roles.contents()
        self.elements = self.source.sets.contents()
        standard = [kind for kind in self.source.models if is_shipped(self.source, kind)]
        allows = (rule for rule in self.rules if rule.effect == "allow" and not rule.shadow and rule.kind in standard)
        self.allows = tuple(rule for rule in allows if self.asked(rule))

    def may_be_granted(self, role: str) -> bool:
        """Whether a token can grant this role, or one of its member roles. No token grants a role without a `/`; every
        other role is granted if the issuers are unknown."""
        roles = filter(is_granted, (role, *self.members.get(role, ())))
        return any(self.granting is None or any(one.grants(name) for one in self.granting) for name in roles)

    def people(self, role: str) -> list[str]:
        return [name for name in self.members.get(role, ()) if not name.startswith("role:")]

    def things(self, name: str) -> list[str]:
        return [element for element in self.elements.get(name, ()) if not element.startswith("set:")]

    def object_kinds(self, rule: RuleRef) -> frozenset[str]:
        """Returns the kinds of objects (`tool`, `nhi`) that a rule can match, among those of its permission kind."""
        things = self.things(rule.object) if rule.object.startswith("set:") else [rule.object]
        asked = KINDS_ASKED[rule.kind][1]
        return asked if rule.object == "*" else asked.intersection(thing.partition(":")[0] for thing in things)

    def asked(self, rule: RuleRef) -> frozenset[str]:
        return _asked(rule.kind, self.object_kinds(rule), rule.actions)

    def on_known_server(self, obj: str) -> bool:
        """Whether a configured upstream matches this tool, prompt or resource; true for other objects, and if the
        upstreams are unknown."""
        word, _, rest = obj.partition(":")
        if self.names is None or word not in ACTION_ON:
            return True
        server, slash, _ = rest.partition("/")
        if slash and "*" not in server:
            return server in self.names
        return any(meets_prefix(rest, f"{name}/") for name in self.names)

    def passes_here(self, obj: str) -> bool:
        """Whether calls of the names that this pattern matches pass through this sidecar, as far as is known."""
        if self.names is None or not obj.startswith("nhi:"):
            return self.on_known_server(obj)
        return any(glob(f"nhi:{name}", obj) for name in self.names | self.programs)


@lru_cache(4096)
def _asked(kind: PermissionKind, objects: frozenset[str], actions: tuple[str, ...]) -> frozenset[str]:
    """Returns the actions of a rule that are possible on its objects."""
    possible = possible_actions(kind, objects)
    if DELEGATE in actions and kind is PermissionKind.AGENT_TO_TOOL:  # `use` has the task actions of agents only
        possible -= MCP_TASK_ACTIONS
    return frozenset(action for action in possible if any(glob(action, pattern) for pattern in actions))


def possible_actions(kind: PermissionKind, objects: Iterable[str]) -> frozenset[str]:
    possible: set[str] = set()
    for word in objects:
        if word in ACTION_ON:
            possible.add(ACTION_ON[word])
        elif kind in AGENTS:
            possible |= _OF_AGENTS
        else:
            possible |= _OF_SERVERS if kind is PermissionKind.AGENT_TO_TOOL else _OF_SERVERS | _OF_AGENTS
    return frozenset(possible)
