"""The nouns of the project: principals, chains, calls, decisions.

The nouns of the house, frozen. They know nothing of HTTP, Redis or Casbin; every other module speaks in them. Those
that every call makes anew are named tuples, at a third of the price of a frozen dataclass.

    Principal   who              user:alice, nhi:planner, anonymous
    Chain       through whom     first to last; the last one is on this connection
    Caller      who, proven      a chain, the credentials that proved it, and until when
    Call        what they send   one parsed request
    Question    may they?        one object, one action, and what a condition may read
    Decision    the answer       link by link, with the rules it rests on
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import Any, Final, Literal, NamedTuple

from sidecar.errors import Reason, Refusal

ANONYMOUS = "anonymous"
_EMPTY: Mapping[str, Any] = {}  # nobody writes to it: its type has no way to


@dataclass(frozen=True, slots=True)
class Principal:
    """A verified caller: `user:<id>`, `nhi:<id>` or `anonymous`.

    `issuer` names who vouched for it: an issuer URL, `api-key`, `agent:<name>`, `local`, `certificate`, `schedule` or
    "" for anonymous.
    `roles` are those that a token granted (`role:corp/eng`), beside the `g` rows of the policy.
    """

    name: str
    issuer: str = ""
    roles: frozenset[str] = frozenset()
    scopes: frozenset[str] = frozenset()

    @property
    def kind(self) -> str:
        """`user`, `nhi` or `anonymous`."""
        return self.name.partition(":")[0]

    @property
    def id(self) -> str:
        """What follows the kind; "" for anonymous."""
        return self.name.partition(":")[2]


Chain = tuple[Principal, ...]

CredentialKind = Literal["jwt", "api_key", "agent_token", "local", "certificate", "schedule", "anonymous"]
SCHEDULE: Final = "schedule"


@dataclass(frozen=True, slots=True)
class Credential:
    """What was presented, as evidence may name it: never the secret itself. Of a schedule, `key_id` is its name in the
    settings. Of a certificate, `issuer` is the name by
    which it was looked up, `key_id` its thumbprint, and `trust` what vouched for it. Of a token, `trust` is what of it
    was looked up in its issuer's tables, and `signed_by` the thumbprint of the key. Both are in no evidence."""

    kind: CredentialKind
    issuer: str = ""
    key_id: str = ""
    trust: str = field(default="", repr=False, compare=False)
    signed_by: str = field(default="", repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Caller:
    """A chain that was proven on this request. `expires_at` is in seconds since the epoch; None never ends.

    `token` is the bearer token that was proven, only at addresses whose upstream is to be shown it or what it is
    exchanged for, else "". It is part of no comparison and of nothing that is printed.
    """

    chain: Chain
    credentials: tuple[Credential, ...]
    expires_at: float | None = None
    token: str = field(default="", repr=False, compare=False)

    @property
    def first(self) -> Principal:
        return self.chain[0]

    @property
    def last(self) -> Principal:
        return self.chain[-1]

    @property
    def is_anonymous(self) -> bool:
        """Whether nobody said who this is."""
        return any(principal.name == ANONYMOUS for principal in self.chain)

    @property
    def schedule(self) -> str:
        """Which schedule this is on behalf of; "" for none."""
        return next((shown.key_id for shown in self.credentials if shown.kind == SCHEDULE), "")

    @property
    def binding(self) -> str:
        """What a session belongs to: issuer and name of every principal, never the bytes of a token."""
        digest = sha256()
        for principal in self.chain:
            for part in (principal.issuer, principal.name):
                raw = part.encode()
                digest.update(len(raw).to_bytes(4, "big") + raw)
        return digest.hexdigest()


class PermissionKind(StrEnum):
    """The three permissions, and the guardrails that stand above them."""

    USER_TO_NHI = "user_to_nhi"
    NHI_TO_NHI = "nhi_to_nhi"
    AGENT_TO_TOOL = "agent_to_tool"
    GUARDRAIL = "guardrail"


DELEGATE = "delegate"
SKILL = "task_type"  # the member of a message's metadata that names the skill, as the seed's task has it
MAX_SKILL_CHARS = 128
ERROR_CODE = "error_code"  # the member of a failed task's message that has the seed's word for why


class Question(NamedTuple):
    """One thing a caller wants to do. `object` and `action` as CONTRACT 1.2 and 1.4 name them.

    `server` is the upstream's name, `name` the tool, prompt or URI ("" for the server as a whole).
    `arguments` and `meta` are what a condition may read as `args` and `call.meta`; both come from the caller.
    """

    object: str
    action: str
    server: str
    name: str = ""
    arguments: Mapping[str, Any] = _EMPTY
    meta: Mapping[str, Any] = _EMPTY

    @property
    def tool(self) -> str:
        """What conditions read as `call.tool`: its name, and of a message to an agent the skill that it asks for."""
        if self.name or not self.object.startswith("nhi:"):
            return self.name
        message = self.arguments.get("message")
        for part in (self.arguments, message if isinstance(message, Mapping) else _EMPTY):
            metadata = part.get("metadata")
            said = metadata.get(SKILL) if isinstance(metadata, Mapping) else None
            if isinstance(said, str) and 0 < len(said) <= MAX_SKILL_CHARS:
                return said
        return ""

    @property
    def without_arguments(self) -> Question:
        """As it can be kept for later: what the caller wrote is nobody's to remember."""
        return self._replace(arguments=_EMPTY, meta=_EMPTY)


class Call(NamedTuple):
    """One parsed request, as the stages need it. `method` is the word on the wire, `protocol_version` the revision.

    `questions` must all be answered yes; the first one names the call in audit and limits. A `session` call
    (initialize, ping, lists, notifications) needs no row of its own: any live grant on the server opens it,
    a deny row on `nhi:<server>` closes it. `tasks` are those that it names: each must be the caller's own, and what
    created it is asked again. `wants_task` asks that the answer be one.
    """

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
        """The question that names this call."""
        return self.questions[0]


class RuleRef(NamedTuple):
    """One row of policy. `expires_at` in seconds since the epoch; `max_calls_per_hour` None is no limit."""

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


class Fact(NamedTuple):
    """How one condition came out: a digest of its text, its outcome, and the inputs it read (path → value)."""

    condition: str
    outcome: Literal["true", "false", "error"]
    inputs: Mapping[str, Any] = _EMPTY


class Link(NamedTuple):
    """One question of a chain and its answer. `rules` are the rows it rests on: every matching allow, or the denies."""

    kind: PermissionKind
    subject: str
    object: str
    action: str
    allowed: bool
    reason: Reason | None = None
    rules: tuple[RuleRef, ...] = ()
    facts: tuple[Fact, ...] = ()


class RowLimit(NamedTuple):
    """A `max_calls_per_hour` that the last link must be charged for. `counted_for` is whose counter it is."""

    rule_id: str
    counted_for: str
    per_hour: int


class Decision(NamedTuple):
    """The answer to a question for a whole chain, under one policy revision.

    `until` is the nearest expiry (seconds since the epoch) among the rules it rests on, None if there is none.
    `roles` are the roles through which the last link's rules matched, for the audit's `agent_role`.
    """

    allowed: bool
    revision: str
    links: tuple[Link, ...]
    reason: Reason | None = None
    limits: tuple[RowLimit, ...] = ()
    until: float | None = None
    roles: tuple[str, ...] = ()
    would_deny: tuple[str, ...] = ()
    would_allow: tuple[str, ...] = ()

    @property
    def denied_by(self) -> tuple[str, ...]:
        """What stands in the way: the ids of rules that deny, and the reason of each link that no rule allows."""
        denied = [link for link in self.links if not link.allowed]
        words = [word for link in denied for word in [rule.id for rule in link.rules] or [str(link.reason)]]
        return tuple(dict.fromkeys(words))

    def or_refuse(self) -> None:
        """Raise the refusal of a denied decision; an allowed one passes."""
        if not self.allowed:
            raise Refusal(self.reason or Reason.NO_MATCHING_RULE)
