"""The policy as the lints see it.

A loaded policy beside what only its surroundings tell (budgets, upstreams, which roles tokens can grant, what time it
is), and the few relations that several lints ask: who has a role, what is in a set, which actions are ever asked of an
object. Everything here is looked up by name; nothing compares all rules with all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sidecar.limits.plan import Budgets
from sidecar.policy import PolicySource
from sidecar.policy.grammar import ACTIONS, MCP_TASK_ACTIONS
from sidecar.policy.model import ALLOW_AND_DENY, guardrail_model
from sidecar.policy.patterns import glob, meets_prefix
from sidecar.policy_tools.catalogue import KnownCatalogue
from sidecar.policy_tools.check.source_positions import RuleSources
from sidecar.vocabulary import DELEGATE, PermissionKind, RuleRef

AGENTS = (PermissionKind.USER_TO_NHI, PermissionKind.NHI_TO_NHI)
KINDS_ASKED: Mapping[PermissionKind, tuple[frozenset[str], frozenset[str]]] = {
    # CONTRACT 1.2, 1.3: who is asked about what
    PermissionKind.USER_TO_NHI: (frozenset({"user", "anonymous"}), frozenset({"nhi"})),
    PermissionKind.NHI_TO_NHI: (frozenset({"nhi"}), frozenset({"nhi"})),
    PermissionKind.AGENT_TO_TOOL: (
        frozenset({"user", "nhi", "anonymous"}),
        frozenset({"tool", "prompt", "resource", "nhi"}),
    ),
    PermissionKind.GUARDRAIL: (
        frozenset({"user", "nhi", "anonymous"}),
        frozenset({"tool", "prompt", "resource", "nhi"}),
    ),
}
_OF_THINGS = {"tool": "tools/call", "prompt": "prompts/get", "resource": "resources/read"}
# CONTRACT 1.4: what is asked of agents; all else that is known is asked of an MCP server as a whole
_OF_AGENTS = frozenset(
    action for action in ACTIONS if action.startswith(("message/", "tasks/", "push/", "card/")) or action == "delegate"
)
_OF_SERVERS = (ACTIONS - _OF_AGENTS - frozenset(_OF_THINGS.values())) | MCP_TASK_ACTIONS


class Granting(NamedTuple):
    """Which roles one issuer's tokens can grant: `role:<namespace>/<value>`, the values that fit `only` (empty: all).
    `required`: its tokens never come without the claim."""

    namespace: str
    only: tuple[str, ...] = ()
    required: bool = False

    def grants(self, role: str) -> bool:
        space, _, value = role.removeprefix("role:").partition("/")
        return space == self.namespace and bool(value) and (not self.only or any(glob(value, one) for one in self.only))


class PolicyFinding(NamedTuple):
    """What a lint saw. Where: in a rule (a column of it, a part of that), where a role or set is filled, or a file (and
    where a part of it stands there first)."""

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
    """See above. `granting` and `names` are None where nobody knows the issuers and upstreams; `programs` are agents
    beside these; `catalogue` is what exists on the servers, where an owner said so."""

    source: PolicySource
    written: RuleSources
    now_s: float
    budgets: Budgets = field(default_factory=Budgets)
    budgets_file: str = ""
    names: frozenset[str] | None = None
    programs: frozenset[str] = frozenset()
    granting: Sequence[Granting] | None = None
    catalogue: KnownCatalogue | None = None
    soon_days: float = 14
    strict: bool = False
    rules: Sequence[RuleRef] = field(init=False)
    standard: frozenset[PermissionKind] = field(init=False)
    members: Mapping[str, frozenset[str]] = field(init=False)
    elements: Mapping[str, frozenset[str]] = field(init=False)
    _asked: dict[tuple[PermissionKind, str, tuple[str, ...]], frozenset[str]] = field(default_factory=dict)
    _above: dict[str, frozenset[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rules = tuple(self.source.rules)
        self.standard = _standard(self.source)
        self.members = self.source.roles.contents()
        self.elements = self.source.sets.contents()

    # --- subjects -----------------------------------------------------------------------------------------------------

    def roles_above(self, name: str) -> frozenset[str]:
        """Every role that this principal or role has by `g` rows."""
        if name not in self._above:
            self._above[name] = self.source.roles.closure((name,)) if name in self.source.roles.parents else frozenset()
        return self._above[name]

    def may_be_granted(self, role: str) -> bool:
        """Whether some token could bring this role, or one that is in it. Without a `/` it cannot."""
        return any(self._by_token(name) for name in (role, *self.members.get(role, ())))

    def _by_token(self, role: str) -> bool:
        if not role.startswith("role:") or "/" not in role:
            return False
        return self.granting is None or any(one.grants(role) for one in self.granting)

    def people(self, role: str) -> list[str]:
        """The users and NHIs that `g` rows put into a role."""
        return [name for name in self.members.get(role, ()) if not name.startswith("role:")]

    # --- objects ------------------------------------------------------------------------------------------------------

    def things(self, name: str) -> list[str]:
        """The objects that `g2` rows put into a set."""
        return [element for element in self.elements.get(name, ()) if not element.startswith("set:")]

    def object_kinds(self, rule: RuleRef) -> frozenset[str]:
        """Which kinds of object a rule can mean, among those that its permission kind asks."""
        return self._kinds(rule.object) & KINDS_ASKED[rule.kind][1]

    def _kinds(self, obj: str) -> frozenset[str]:
        if obj == "*":
            return frozenset({"tool", "prompt", "resource", "nhi"})
        if obj.startswith("set:"):
            return frozenset(element.partition(":")[0] for element in self.things(obj))
        return frozenset({obj.partition(":")[0]})

    def asked(self, rule: RuleRef) -> frozenset[str]:
        """Those of a rule's actions that are ever asked of its object."""
        kinds = self.object_kinds(rule)
        key = (rule.kind, "|".join(sorted(kinds)), rule.actions)
        if key not in self._asked:
            possible = possible_actions(rule.kind, kinds)
            if DELEGATE in rule.actions:  # `use`, which is about agents where it stands on an `nhi:`
                possible -= MCP_TASK_ACTIONS if rule.kind is PermissionKind.AGENT_TO_TOOL else frozenset()
            meant = (action for action in possible if any(glob(action, pattern) for pattern in rule.actions))
            self._asked[key] = frozenset(meant)
        return self._asked[key]

    def on_known_server(self, obj: str) -> bool:
        """Whether some configured upstream fits this tool, prompt or resource; true where none are known."""
        word, _, rest = obj.partition(":")
        if self.names is None or word not in _OF_THINGS:
            return True
        server, slash, _ = rest.partition("/")
        if slash and "*" not in server:
            return server in self.names
        return any(meets_prefix(rest, f"{name}/") for name in self.names)

    def passes_here(self, obj: str) -> bool:
        """Whether calls of what this pattern names come through here, as far as is known: also of agents."""
        if self.names is None or not obj.startswith("nhi:"):
            return self.on_known_server(obj)
        return any(glob(f"nhi:{name}", obj) for name in self.names | self.programs)


def possible_actions(kind: PermissionKind, objects: Iterable[str]) -> frozenset[str]:
    """What is ever asked of objects of these kinds (`tool`, `prompt`, `resource`, `nhi`) under a permission kind."""
    possible: set[str] = set()
    for word in objects:
        if word in _OF_THINGS:
            possible.add(_OF_THINGS[word])
        elif kind in AGENTS:
            possible |= _OF_AGENTS
        else:
            possible |= _OF_SERVERS if kind is PermissionKind.AGENT_TO_TOOL else _OF_SERVERS | _OF_AGENTS
    return frozenset(possible)


def _standard(source: PolicySource) -> frozenset[PermissionKind]:
    """The kinds whose rows are matched as the shipped models do; of others it is not known what covers what."""
    ours = guardrail_model()
    effects = dict.fromkeys(PermissionKind, ALLOW_AND_DENY) | {PermissionKind.GUARDRAIL: ours.effect}
    return frozenset(
        kind
        for kind, model in source.models.items()
        if _squeezed(model.matcher) == _squeezed(ours.matcher) and _squeezed(model.effect) == _squeezed(effects[kind])
    )


def _squeezed(text: str) -> str:
    return "".join(text.split())
