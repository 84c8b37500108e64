"""The nouns of the project: principals, chains, calls, decisions.

All values are frozen, and independent of HTTP, Redis and Casbin. Values that are created for each call are named
tuples, whose creation costs a third of that of a frozen dataclass.

    Principal   an identity                      user:alice, nhi:planner, anonymous
    Chain       the principals behind a call     first to last; the last one is on this connection
    Caller      an authenticated chain           with its credentials, and their expiry
    Call        one parsed request
    Question    one permission asked of policy   one object, one action, and what a condition may read
    Decision    the answer of policy             link by link, with the rules it rests on
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import Any, Final, Literal, NamedTuple, Protocol

from sidecar.errors import Reason, Refusal

ANONYMOUS = "anonymous"
_EMPTY: Mapping[str, Any] = {}  # read-only by its type


@dataclass(frozen=True, slots=True)
class Principal:
    """A verified caller: `user:<id>`, `nhi:<id>` or `anonymous`. `issuer` vouched for it: an issuer's URL, a kind of
    credential such as `api-key`, `agent:<name>`, `local`, `certificate` or `schedule`, the name of an enforcement
    point, or "". `roles` are those that a token granted (`role:corp/eng`)."""

    name: str
    issuer: str = ""
    roles: frozenset[str] = frozenset()
    scopes: frozenset[str] = frozenset()

    @property
    def kind(self) -> str:
        return self.name.partition(":")[0]

    @property
    def id(self) -> str:
        """The part of the name after the kind; "" for anonymous."""
        return self.name.partition(":")[2]


Chain = tuple[Principal, ...]

CredentialKind = Literal["jwt", "api_key", "agent_token", "local", "certificate", "schedule", "asserted", "anonymous"]
SCHEDULE: Final = "schedule"
ASSERTED: Final = "asserted"  # by an enforcement point, which is its issuer


@dataclass(frozen=True, slots=True)
class Credential:
    """A presented credential without the secret. `key_id` identifies it: the id of an API key, a prefix of the digest
    of an agent's token, a certificate's thumbprint, a schedule's name; "" for a JWT. `trust` (the digest of a
    certificate's authorities, or the claim of a token that was looked up) and `signed_by` (the thumbprint of the key
    that signed a token) are not recorded."""

    kind: CredentialKind
    issuer: str = ""
    key_id: str = ""
    trust: str = field(default="", repr=False, compare=False)
    signed_by: str = field(default="", repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Caller:
    """A chain that was authenticated on this request. It is valid until `expires_at`, in seconds since the epoch; None
    means without end. `token` is the verified bearer token if the upstream receives it or one exchanged for it,
    otherwise "". It is never compared or printed."""

    chain: Chain
    credentials: tuple[Credential, ...]
    expires_at: float | None = None
    token: str = field(default="", repr=False, compare=False)
    binding: str = field(init=False, repr=False, compare=False)
    """The owner of a session, as a digest of the issuer and the name of every principal. It does not depend on
    tokens."""

    def __post_init__(self) -> None:
        digest = sha256()
        for principal in self.chain:
            for part in (principal.issuer, principal.name):
                raw = part.encode("utf-8", "surrogatepass")
                digest.update(len(raw).to_bytes(4, "big") + raw)
        object.__setattr__(self, "binding", digest.hexdigest())

    @property
    def first(self) -> Principal:
        return self.chain[0]

    @property
    def last(self) -> Principal:
        return self.chain[-1]

    @property
    def is_anonymous(self) -> bool:
        """Whether a principal of the chain is anonymous."""
        for principal in self.chain:  # noqa: SIM110 - asked several times per call
            if principal.name == ANONYMOUS:
                return True
        return False

    @property
    def schedule(self) -> str:
        """The schedule that the call runs for; "" for none."""
        return next((shown.key_id for shown in self.credentials if shown.kind == SCHEDULE), "")


class PermissionKind(StrEnum):
    """The three permissions, and the guardrails that take precedence over them."""

    USER_TO_NHI = "user_to_nhi"
    NHI_TO_NHI = "nhi_to_nhi"
    AGENT_TO_TOOL = "agent_to_tool"
    GUARDRAIL = "guardrail"


DELEGATE = "delegate"
# Objects of servers: the action of a call.
ACTION_ON: Final[Mapping[str, str]] = {"tool": "tools/call", "prompt": "prompts/get", "resource": "resources/read"}
# The actions that `use` includes.
USED: Final = (
    *("tools/call", "prompts/get", "resources/read", "message/send", "message/stream"),
    *("tasks/get", "tasks/list", "tasks/cancel", "tasks/resubscribe", DELEGATE),
)
# These need no row of their own; any grant on the server opens them.
SESSION_ACTIONS: Final = frozenset(
    {"initialize", "ping", "server/discover", "logging/setLevel", "subscriptions/listen"}
    | {"tools/list", "prompts/list", "resources/list", "resources/templates/list"}
    | {"notifications/initialized", "notifications/cancelled", "notifications/progress"}
    | {"notifications/roots/list_changed"}
)
# The same actions on an MCP server; on an agent, A2A actions of the same name need their own row.
MCP_TASK_ACTIONS: Final = frozenset({"tasks/get", "tasks/result", "tasks/list", "tasks/update", "tasks/cancel"})
ACTIONS: Final = (
    frozenset(USED)
    | SESSION_ACTIONS
    | MCP_TASK_ACTIONS
    | {"push/set", "push/get", "push/list", "push/delete", "card/extended"}
    | {"sampling/createMessage", "elicitation/create", "roots/list"}
)
# The actions of `use` that begin work. A row demands its approval for these, and for other actions that it names.
BEGUN: Final = frozenset({"tools/call", "prompts/get", "resources/read", "message/send", "message/stream"})
SKILL = "task_type"  # the member of a message's metadata that names the skill
MAX_SKILL_CHARS = 128
ERROR_CODE = "error_code"  # the member of a failed task's message with the error code of the original data models


class Question(NamedTuple):
    """One object and action that a caller requests. `server` is the upstream's name, `name` the tool, prompt or URI (""
    for a server or an agent). Conditions read `arguments` and `meta`, which come from the caller."""

    object: str
    action: str
    server: str
    name: str = ""
    arguments: Mapping[str, Any] = _EMPTY
    meta: Mapping[str, Any] = _EMPTY

    @property
    def tool(self) -> str:
        """The value of `call.tool` in conditions: the name, or for a message to an agent the skill requested."""
        if self.name or not self.object.startswith("nhi:"):
            return self.name
        return skill_in(self.arguments)

    @property
    def without_arguments(self) -> Question:
        """Returns the question without the caller's content, which must not be stored."""
        return self._replace(arguments=_EMPTY, meta=_EMPTY)


def skill_in(arguments: Mapping[str, Any]) -> str:
    """The skill that a message to an agent requests; "" for none, or for a name that is too long."""
    message = arguments.get("message")
    for part in (arguments, message if isinstance(message, dict) else _EMPTY):
        metadata = part.get("metadata")
        said = metadata.get(SKILL) if isinstance(metadata, dict) else None
        if isinstance(said, str) and 0 < len(said) <= MAX_SKILL_CHARS:
            return said
    return ""


class Call(NamedTuple):
    """One parsed request. All `questions` must be allowed; the first one names the call in audit and limits. A
    `session` call (initialize, ping, lists, notifications) needs no row of its own: any live grant on the server allows
    it, a deny row on `nhi:<server>` closes it; a session call on an agent is decided like an entry of a list. Each of
    the `tasks` that it names must be the caller's own, and the question that created it is decided again. `wants_task`
    requests that the answer be a task."""

    protocol: str
    protocol_version: str
    upstream: str
    method: str
    questions: tuple[Question, ...]
    request_id: str | int | None = None
    session: bool = False
    tasks: tuple[str, ...] = ()
    wants_task: bool = False

    @property
    def question(self) -> Question:
        return self.questions[0]


class ApprovalTerms(NamedTuple):
    """The approval that a row demands: one person with `role`, who answers within `within_s`. An approval is used once,
    or for `valid_s`. `reason` is whether the person must give a reason."""

    role: str
    within_s: float = 900.0
    valid_s: float | None = None
    reason: bool = False


class RuleRef(NamedTuple):
    """One row of policy. `expires_at` is in seconds since the epoch; None means without end. `max_calls_per_hour` None
    means no limit. `approval` is the approval that an allow row demands."""

    id: str
    kind: PermissionKind
    subject: str
    object: str
    actions: tuple[str, ...]
    effect: Literal["allow", "deny"]
    expires_at: float | None = None
    max_calls_per_hour: int | None = None
    when: str = ""
    per: Literal["subject", "origin", "rule"] = "subject"
    shadow: bool = False
    owner: str = ""
    reason: str = ""
    file: str = ""
    line: int = 0
    approval: ApprovalTerms | None = None


class Link(NamedTuple):
    """One link of a chain and its decision. `rules` are the rows that led to it: the matching allow rows, or the deny
    rows."""

    kind: PermissionKind
    subject: str
    object: str
    action: str
    allowed: bool
    reason: Reason | None = None
    rules: tuple[RuleRef, ...] = ()


class Read(NamedTuple):
    """The names of arguments that a condition reads. `tree` has names by their place: each name maps to the tree of the
    names below it. `anywhere` has names that a loop reads, at any place."""

    tree: Mapping[str, Any] = {}
    anywhere: frozenset[str] = frozenset()


class Fact(NamedTuple):
    """The outcome of one condition for one link: a digest of its text, its result, and the inputs that it read (path →
    value)."""

    condition: str
    outcome: Literal["true", "false", "error"]
    link: Link
    inputs: Mapping[str, Any]


class RowLimit(NamedTuple):
    """A `max_calls_per_hour` that the last link is charged for. `counted_for` names the counter's owner."""

    rule_id: str
    counted_for: str
    per_hour: int


Answer = Literal["allow", "approval", "deny"]
"""The answer of policy to a call. `approval`: it is allowed once a person approves it."""
EngineName = Literal["compiled", "casbin", "both"]
"""The decider of the requests of a kind: compiled rules, pycasbin, or both, which must agree."""


class Decision(NamedTuple):
    """The answer for a whole chain, under one policy revision. `until` is the nearest expiry among the rules that led
    to it, in seconds since the epoch. `roles` are those through which the last link's rules matched, for the audit's
    `agent_role`. `names_read` are the argument names that conditions read. `engine` is `casbin` if pycasbin alone
    decided a link, otherwise `both` if both engines decided one, otherwise `compiled`. `approvals` are the rules that
    allow it only with a person's approval. Equal answers share every field except `facts`, which are those of the
    call."""

    allowed: bool
    revision: str
    links: tuple[Link, ...]
    reason: Reason | None = None
    limits: tuple[RowLimit, ...] = ()
    until: float | None = None
    roles: tuple[str, ...] = ()
    would_deny: tuple[str, ...] = ()
    would_allow: tuple[str, ...] = ()
    names_read: tuple[Read, ...] = ()
    engine: EngineName = "compiled"
    approvals: tuple[RuleRef, ...] = ()
    facts: tuple[Fact, ...] = ()

    @property
    def answer(self) -> Answer:
        return "deny" if not self.allowed else "approval" if self.approvals else "allow"

    @property
    def denied_by(self) -> tuple[str, ...]:
        """The reasons of a denial: the ids of rules that deny, and the reason of each link that no rule allows."""
        denied = [link for link in self.links if not link.allowed]
        words = [word for link in denied for word in [rule.id for rule in link.rules] or [str(link.reason)]]
        return tuple(dict.fromkeys(words))

    def or_refuse(self) -> None:
        """Raises Refusal if the decision is a denial."""
        if not self.allowed:
            raise Refusal(self.reason or Reason.NO_MATCHING_RULE)


class Witness(Protocol):
    """Records an action of an operator or of the sidecar. Raises Refusal(AUDIT_UNAVAILABLE) or SettingsError."""

    async def __call__(self, what: str, by: str, **facts: object) -> None: ...
