"""The schema of policy test files.

The schema is strict: mistyped, impossible or contradictory content is a fault at its place, because a test that
silently asks another question is worse than none. `WrittenTest.asked` returns the question that a call would ask. Names
are read by the grammar of rows, so that a test can ask about everything that a rule can name.

    T101   a name that occurs twice          T105   a reason that no test can have
    T102   a principal, role or chain        T106   a time
    T103   an action                         T107   keys that contradict each other
    T104   an object or a name in a list
"""

from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, GetJsonSchemaHandler, WithJsonSchema
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from sidecar.errors import Reason, Refusal
from sidecar.policy import grammar
from sidecar.policy.faults import shown
from sidecar.policy.grammar import Wrong
from sidecar.policy_tools.audit_records import POLICY_REASONS
from sidecar.protocols.mcp import messages
from sidecar.settings.field_types import Count, Many, Scope, Seconds, Section, Slug, listed
from sidecar.settings.uris import named_object
from sidecar.settings.validation_errors import Finding, did_you_mean, reject
from sidecar.vocabulary import ACTION_ON, ANONYMOUS, Question

MAX_TESTS_PER_FILE = 20_000
MAX_REPEATS = 100_000
MAX_NAMES = 5_000
MAX_CHAIN = 10  # a subject, eight actors and a workload: no longer chain can be authenticated

Member = Literal["tools", "prompts", "resources"]

_SESSION = frozenset(messages.NOTIFICATIONS) | {name for name, method in messages.METHODS.items() if method.session}
_SESSION -= grammar.MCP_TASK_ACTIONS  # A2A has actions of the same name on an agent, which need a row
_OF_SERVERS = _SESSION | messages.SERVER_REQUESTS
_OF_NHIS = grammar.ACTIONS - set(ACTION_ON.values())

BY_LIMITS = (Reason.RATE_LIMITED, Reason.QUOTA_SPENT, Reason.BUDGET_SPENT, Reason.TOO_MANY_CONCURRENT)
_REASONS = tuple(reason.value for reason in (*POLICY_REASONS, *BY_LIMITS))


class AnyOf:
    """Adds the short forms of a value to the JSON Schema."""

    def __init__(self, *short: JsonSchemaValue) -> None:
        self._short = short

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [*self._short, handler(schema)]}


def _label(text: str) -> str:
    if not text.strip() or not text.isprintable():
        reject("a name is one line of printable characters")
    return text


def _read_by(reader: Callable[[str], object], code: str) -> AfterValidator:
    def check(text: str) -> str:
        try:
            reader(text)
        except Wrong as wrong:
            reject(wrong.message, code, wrong.hint)
        return text

    return AfterValidator(check)


def _principal(text: str) -> str:
    if text == ANONYMOUS:
        return text
    if text.startswith("role:"):
        raise Wrong(
            "", "a role cannot be a caller", "write user:… or nhi:…; write roles that a token grants under roles"
        )
    return grammar.member(text)


def _moment(text: str) -> float | None:
    if text == grammar.NONE:
        raise Wrong("", "a test needs a time", "write 2027-03-31T00:00:00Z, or remove the key")
    return grammar.expires_at(text)


def _action(text: str) -> str:
    if text not in grammar.ACTIONS:
        hint = f"a call has one action; {shown(text)} stands for several" if text == grammar.USE or "*" in text else ""
        raise Wrong("", f"action {shown(text)} is unknown", hint or did_you_mean(text, grammar.ACTIONS))
    return text


def _called(text: str) -> str:
    kind = text.partition(":")[0]
    if kind == "set" or text == "*" or ("*" in text and kind != "resource"):
        raise Wrong("", f"{shown(text)} is more than one object", "a call names exactly one")
    grammar.element(text if kind != "resource" else text.replace("*", "x"))  # a star in a URI is not a wildcard here
    return text


def _reason(text: str) -> str:
    if text not in _REASONS:
        known = text in {reason.value for reason in Reason}
        message = f"a policy test cannot check {shown(text)}" if known else f"{shown(text)} is not a reason"
        reject(message, "T105", did_you_mean(text, _REASONS))
    return text


def _expected(value: object) -> object:
    """Expands the short forms: a text is a decision, a list has the names that are shown."""
    if isinstance(value, str):
        return {"decision": value}
    return {"decision": "allow", "shows": value} if isinstance(value, list) else value


def _catalogued(value: object) -> object:
    return {"tools": value} if isinstance(value, list) else value


Label = Annotated[str, Field(max_length=200), AfterValidator(_label)]
PrincipalName = Annotated[str, _read_by(_principal, "T102")]
RoleName = Annotated[str, _read_by(grammar.role, "T102")]
PersonName = Annotated[str, _read_by(grammar.person, "T102")]
Moment = Annotated[str, _read_by(_moment, "T106"), WithJsonSchema({"type": "string", "format": "date-time"})]
ActionName = Annotated[
    str, _read_by(_action, "T103"), WithJsonSchema({"type": "string", "enum": sorted(grammar.ACTIONS)})
]
ObjectName = Annotated[str, Field(max_length=2200), _read_by(_called, "T104"), AfterValidator(named_object)]
AskedBy = Annotated[
    Many[PrincipalName], BeforeValidator(listed), Field(min_length=1, max_length=MAX_CHAIN), AnyOf({"type": "string"})
]
ReasonWord = Annotated[str, AfterValidator(_reason), WithJsonSchema({"type": "string", "enum": list(_REASONS)})]
Names = Annotated[Many[Annotated[str, Field(min_length=1, max_length=2048)]], Field(max_length=MAX_NAMES)]
NAMES_SCHEMA = {"type": "array", "items": {"type": "string"}}


class Repeat(Section):
    """Repetition of a call, on a simulated clock, against the limits of the policy."""

    times: Annotated[int, Field(ge=1, le=MAX_REPEATS)]
    """Number of calls."""
    every: Seconds = 0.0
    """Interval between calls, such as `10s`, `1m` or `1h`. Default: all calls arrive at the same time."""
    takes: Seconds = 0.0
    """Time for which each call holds its slots (`concurrency`). Default: each call ends before the next begins."""


class Expect(Section):
    """The expected result of a test."""

    decision: Literal["allow", "approval", "deny"] | None = None
    """Expected decision. `approval` means that the call is allowed after a person approves it. With `repeat`, `allow`
    means that every call is allowed, and `deny` that one of them is refused."""
    reason: ReasonWord | None = None
    """Expected reason of a denial."""
    rule: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Id of a rule that determines the decision on any link of the chain: it allows, it denies, or its condition or
    expiry is the reason."""
    at: Count | None = None
    """Number of the first call of a `repeat` that is refused, counted from 1."""
    limits: Names | None = None
    """The exact set of limits that the last call is charged to, or that refuse it. Names are those of audit records:
    `rule:<id>`, `tools:<pattern>:rate`, `principals:<pattern>:hour`."""
    shows: Names | None = None
    """The exact set of names that the list shows, in any order."""

    def _faults(self) -> Iterator[Finding]:
        if self.decision is None and self.shows is None:
            yield Finding('the key "decision" is missing', "Y102")
            return
        if self.shows is not None and self.decision == "deny":
            yield Finding("a list that is denied shows nothing", "T107", "keep one of them", ("shows",), True)
        if self.limits is not None and self.decision == "approval":
            hint = "write approved_by: user:…, and expect allow or deny"
            yield Finding("limits are charged after the approval", "T107", hint, ("limits",), True)
        if self.decision != "deny":
            for key in ("reason", "at"):
                if getattr(self, key) is not None:
                    yield Finding(f"{key} applies only to a denial", "T107", "write decision: deny", (key,), True)


class SuiteCatalogue(Section):
    """The tools, prompts and resources of one server."""

    tools: Names = ()
    """Names of the tools."""
    prompts: Names = ()
    """Names of the prompts."""
    resources: Names = ()
    """URIs of the resources and resource templates."""

    def names(self, member: Member) -> tuple[str, ...]:
        found: tuple[str, ...] = getattr(self, member)
        return found


class WrittenTest(Section):
    """One question to policy and the expected decision. A test has either `calls` or `lists`."""

    name: Label
    """Name of the test. It must be unique in its suite."""
    chain: AskedBy = Field(alias="as")
    """The caller: a principal, or the principals of a chain, first to last."""
    now: Moment | None = None
    """Time of the question. Default: `now` of the suite."""
    roles: dict[PrincipalName, Many[RoleName]] = Field(default_factory=dict)
    """Roles that tokens grant, by principal, in addition to the `g` rows of the policy; also those of `approved_by`."""
    scopes: dict[PrincipalName, Many[Scope]] = Field(default_factory=dict)
    """Scopes that tokens grant, by principal."""
    calls: ObjectName | None = None
    """Object of a call: `tool:<server>/<tool>`, `prompt:<server>/<name>`, `resource:<server>/<uri>` or `nhi:<name>`."""
    action: ActionName | None = None
    """Action, such as `message/send`. Required for `nhi:`. Default otherwise: the one action that the object has."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the call."""
    meta: dict[str, Any] = Field(default_factory=dict)
    """`_meta` of the call."""
    lists: Slug | None = None
    """Name of a server, to test what a list of this server shows instead of a call."""
    of: Member | None = None
    """The list of the server. Default: `tools`."""
    repeat: Repeat | None = None
    """Repeats the call, to test limits. The test ends at the first call that is refused."""
    approved_by: Annotated[
        Many[PersonName], BeforeValidator(listed), Field(max_length=MAX_CHAIN), AnyOf({"type": "string"})
    ] = ()
    """The person who has approved the call, or several: `user:<id>`. The test fails if no rule requires an approval."""
    expect: Annotated[Expect, BeforeValidator(_expected), AnyOf({"enum": ["allow", "approval", "deny"]}, NAMES_SCHEMA)]
    """The expected result: `allow`, `approval`, `deny`, a list of the names shown, or a mapping."""
    skip: Label | None = None
    """Reason for which the test is not run. It is reported as skipped."""

    @property
    def session(self) -> bool:
        """Whether it is a session call, which any grant on a server allows."""
        return self.action in _SESSION

    def asked(self) -> Question:
        """Returns the question that the call asks. Raises Refusal if the sidecar would refuse the call as malformed."""
        kind, _, rest = (self.calls or "").partition(":")
        action = self.action or ACTION_ON[kind]
        if kind == "nhi":
            if action in _OF_SERVERS:
                return messages.server_question(rest, action)
            return Question(f"nhi:{rest}", action, "", arguments=self.args, meta=self.meta)
        server, _, name = rest.partition("/")
        named = {"uri": name} if kind == "resource" else {"name": name, "arguments": self.args}
        return messages.METHODS[action].questions(server, action, named, self.meta)[0]

    def _faults(self) -> Iterator[Finding]:
        yield from self._faults_of_chain()
        if (self.calls is None) == (self.lists is None):
            yield Finding("a test needs either calls or lists", "T107", "write one of them")
        else:
            yield from self._faults_of_call() if self.lists is None else self._faults_of_list()
        yield from self._faults_of_repeat()

    def _faults_of_chain(self) -> Iterator[Finding]:
        if len(set(self.chain)) != len(self.chain):
            yield Finding("a principal is in the chain twice", "T102", "no credential can prove such a chain", ("as",))
        if ANONYMOUS in self.chain and len(self.chain) > 1:
            yield Finding("anonymous cannot be part of a chain", "T102", "write anonymous alone", ("as",))
        for key in ("roles", "scopes"):
            known = (*self.chain, *self.approved_by) if key == "roles" else self.chain
            for name in getattr(self, key):
                if name not in known:
                    hint = did_you_mean(name, self.chain)
                    yield Finding(f"{name} is not in the chain", "T102", hint, (key, name), True)
                elif name == ANONYMOUS:
                    yield Finding("anonymous has no token", "T102", "", (key, name), True)

    def _faults_of_list(self) -> Iterator[Finding]:
        for key in ("action", "args", "meta", "approved_by"):
            if getattr(self, key):
                yield Finding(f"{key} applies only to a call", "T107", "remove it", (key,), True)
        if self.expect.decision != "deny" and self.expect.shows is None:
            yield Finding(
                "the names that the list shows are missing",
                "T107",
                "write expect: [name, …], or expect: deny",
                ("expect",),
            )
        if self.expect.decision == "approval":
            yield Finding("a list never waits for an approval", "T107", "write the names that it shows", ("expect",))
        for key in ("limits", "rule"):
            if getattr(self.expect, key) is not None:
                yield Finding(f"{key} applies only to a call", "T107", "", ("expect", key), True)

    def _faults_of_call(self) -> Iterator[Finding]:
        kind = (self.calls or "").partition(":")[0]
        if self.of is not None:
            yield Finding("of applies only to lists", "T107", "", ("of",), True)
        if self.expect.shows is not None:
            yield Finding(
                "a call does not show names", "T107", "write allow or deny, or use lists: <server>", ("expect",)
            )
        if self.session and (self.approved_by or self.expect.decision == "approval"):
            hint = "any grant on the server permits it"
            yield Finding(f"{self.action} never waits for an approval", "T107", hint, ("expect",))
        if kind == "nhi" and self.action is None:
            yield Finding('the key "action" is missing', "Y102")
        elif kind == "nhi" and self.action not in _OF_NHIS:
            yield Finding(
                f"{self.action} does not apply to an NHI", "T103", "name the tool, prompt or resource", ("action",)
            )
        elif kind != "nhi" and self.action not in (None, ACTION_ON[kind]):
            hint = f"write {ACTION_ON[kind]}"
            yield Finding(f"{self.action} does not apply to a {kind}", "T103", hint, ("action",))
        else:
            yield from self._faults_of_parameters(kind)

    def _faults_of_parameters(self, kind: str) -> Iterator[Finding]:
        if self.args and kind == "resource":
            yield Finding("a resource is read without arguments", "T107", "", ("args",), True)
        if (self.args or self.meta) and self.action in _OF_SERVERS:
            key = "args" if self.args else "meta"
            yield Finding(f"no rule reads {key} of {self.action}", "T107", "", (key,), True)
        try:
            self.asked()
        except Refusal as refusal:
            key = "args" if "params.arguments" in refusal.detail else "calls"
            yield Finding(refusal.detail.replace("params.arguments", "args").replace("params.", ""), "T104", "", (key,))

    def _faults_of_repeat(self) -> Iterator[Finding]:
        if self.repeat is None:
            if self.expect.at is not None:
                yield Finding(
                    "at needs a repeat", "T107", "write repeat: {times: …}, or remove it", ("expect", "at"), True
                )
            if self.expect.reason in BY_LIMITS:
                yield Finding(
                    "a single call cannot reach a limit", "T107", "write repeat: {times: …}", ("expect", "reason")
                )
        elif self.calls is None or self.session:
            hint = "session_calls_per_minute bounds lists and sessions"
            yield Finding("no limit of the policy applies to this", "T107", hint, ("repeat",), True)
        elif self.expect.at is not None and self.expect.at > self.repeat.times:
            yield Finding(f"there are only {self.repeat.times} calls", "T107", "", ("expect", "at"))


class SuiteFile(Section):
    """A file of policy tests. The entries of a list come from `catalogue`. For a server without an entry there, they
    are the exact names in rules, sets and this file."""

    version: Literal[1] = 1
    """Version of this file format."""
    suite: Label
    """Name of the suite."""
    now: Moment | None = None
    """Time at which the questions are asked. Default: the time of the run."""
    catalogue: dict[Slug, Annotated[SuiteCatalogue, BeforeValidator(_catalogued), AnyOf(NAMES_SCHEMA)]] = Field(
        default_factory=dict
    )
    """The tools, prompts and resources of servers, by server: a list of tools, or
    `{tools: […], prompts: […], resources: […]}`."""
    tests: Annotated[Many[WrittenTest], Field(min_length=1, max_length=MAX_TESTS_PER_FILE)]
    """The tests."""

    def _faults(self) -> Iterator[Finding]:
        known: dict[str, int] = {}
        for index, test in enumerate(self.tests):
            first = known.setdefault(test.name, index)
            if first != index:
                message = f"test {first + 1} of this suite has the same name"
                yield Finding(message, "T101", "give each test its own name", ("tests", index, "name"))
        for server, catalogue in self.catalogue.items():
            for member in ("tools", "prompts", "resources"):
                for index, name in enumerate(getattr(catalogue, member)):
                    if listed_question(member, server, name) is None:
                        message = f"{shown(name)} is not a possible name of a {member.removesuffix('s')}"
                        yield Finding(message, "T104", "", ("catalogue", server, member, index))
        for index, test in enumerate(self.tests):
            server, of = test.lists or "", test.of or "tools"
            there = self.catalogue[server].names(of) if server in self.catalogue else None
            for place, name in enumerate(test.expect.shows or ()):
                at = ("tests", index, "expect", place)
                if listed_question(of, server, name) is None:
                    yield Finding(f"{shown(name)} is not a possible name of a {of.removesuffix('s')}", "T104", "", at)
                elif there is not None and name not in there:
                    yield Finding(f"{name} is not in the catalogue of {server}", "T104", did_you_mean(name, there), at)


def listed_question(member: str, server: str, name: str) -> Question | None:
    """Returns the question of using an entry of a list by its name or URI; None for one that no call can name."""
    return messages.entry_question(member, server, {"uri" if member == "resources" else "name": name})
