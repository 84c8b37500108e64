"""Translates subjects, resources and actions of AuthZEN into principals, objects and actions of rules.

    type         subject   resource
    user         user:*    -
    identity     user:*    -
    nhi, agent   nhi:*     nhi:*
    tool         -         tool:*, whose id is <server>/<tool>
    prompt       -         prompt:*
    resource     -         resource:*
    mcp_server   -         nhi:*, an MCP server as a whole

`pdp.authzen` adds types, actions and arguments. At the address of one server, ids of its tools, prompts and resources
have no server prefix, and the server's audience is also a name of the server.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Final

from sidecar.errors import Reason, Refusal
from sidecar.gateway.decisions.authzen_messages import Evaluation
from sidecar.identity.names import is_id
from sidecar.protocols.mcp.messages import NAME
from sidecar.settings.pdp import ACTION, ID, AuthzenSettings
from sidecar.settings.uris import fault_in_uri, named_object, normal_object
from sidecar.vocabulary import ACTIONS, ASSERTED, Caller, Credential, Principal

SUBJECTS: Final[Mapping[str, str]] = {"user": "user:*", "identity": "user:*", "nhi": "nhi:*", "agent": "nhi:*"}
RESOURCES: Final[Mapping[str, str]] = {
    "tool": "tool:*", "prompt": "prompt:*", "resource": "resource:*", "mcp_server": "nhi:*", "nhi": "nhi:*",
    "agent": "nhi:*",
}  # fmt: skip
AGENT: Final = "agent"
USES: Final[Mapping[str, str]] = {"tool": "tools/call", "prompt": "prompts/get", "resource": "resources/read"}
_SERVER = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_ACTION_PART = r"[A-Za-z0-9._\-]{1,64}"  # no slash, so that no two pairs of action and id give one object


@dataclass(frozen=True)
class NameTemplate:
    """The names of one type, with `*` for the id, and optionally `{action}`."""

    text: str

    def name(self, given: str, action: str = "") -> str | None:
        """Returns the name for an id, in its normal form; None if the name is invalid."""
        text = self.text
        if not given:
            return None
        if ACTION in text:
            if re.fullmatch(_ACTION_PART, action) is None:
                return None
            text = text.replace(ACTION, action)
        text = text.replace(ID, given, 1)
        return named_object(text) if is_exact(text) else None

    def of_action(self, action: str) -> NameTemplate:
        return NameTemplate(self.text.replace(ACTION, action))

    @property
    def has_action(self) -> bool:
        return ACTION in self.text

    @property
    def pattern(self) -> str:
        """The pattern of all these names, as rules write it."""
        return normal_object(self.text.replace(ACTION, ID))

    @property
    def prefix(self) -> str:
        """The common prefix of all these names."""
        return self.pattern.partition(ID)[0]

    def pattern_of(self, given: str) -> str:
        """Returns the pattern of the names for an id, with any action; a pattern that matches no name if the id is
        invalid."""
        name = self.of_action("-").name(given)
        return "" if name is None else normal_object(self.text.replace(ID, given, 1).replace(ACTION, ID))

    def id_of(self, name: str) -> str | None:
        """Returns the id that gives this name; None if none does."""
        found = self._reading.fullmatch(name)
        if found is None or self.name(found["id"]) != name:
            return None
        return found["id"]

    def action_of(self, pattern: str) -> str:
        """Returns the action that a name, or a pattern of rules, has in its place; "" for none."""
        found = self._beginning.match(pattern)
        return "" if found is None else found["action"]

    @cached_property
    def _reading(self) -> re.Pattern[str]:
        before, _, after = normal_object(self.text).partition(ID)
        return re.compile(f"{re.escape(before)}(?P<id>.+){re.escape(after)}", re.DOTALL)

    @cached_property
    def _beginning(self) -> re.Pattern[str]:
        text = normal_object(self.text)
        before, _, after = text.partition(ACTION)
        before = ".*".join(map(re.escape, before.split(ID)))
        return re.compile(f"{before}(?P<action>{_ACTION_PART}){re.escape(after[:1]) or '$'}")


def is_exact(text: str) -> bool:
    """Reports whether a principal or an object could have this name."""
    kind, colon, rest = text.partition(":")
    if not colon:
        return False
    if kind in ("user", "nhi"):
        return is_id(rest)
    server, slash, name = rest.partition("/")
    if not slash or _SERVER.fullmatch(server) is None:
        return False
    return not fault_in_uri(name) if kind == "resource" else kind in USES and NAME.match(name) is not None


def nothing_valid() -> Refusal:
    """The refusal of a question about a name that no rule can contain."""
    return Refusal(Reason.NO_MATCHING_RULE)


@dataclass(frozen=True)
class Vocabulary:
    """Translates AuthZEN's terms. `server` is the server whose address received the question, with its audiences; ""
    for none."""

    settings: AuthzenSettings
    server: str = ""
    audiences: Sequence[str] = ()
    subjects: Mapping[str, NameTemplate] = field(init=False)
    resources: Mapping[str, NameTemplate] = field(init=False)

    def __post_init__(self) -> None:
        types = self.settings.types
        subjects = {**SUBJECTS, **{name: one.subject for name, one in types.items() if one.subject}}
        resources = {**RESOURCES, **{name: one.resource for name, one in types.items() if one.resource}}
        if self.server:
            resources = {
                name: f"{text[:-1]}{self.server}/*" if text[:-2] in USES else text for name, text in resources.items()
            }
        object.__setattr__(self, "subjects", {name: NameTemplate(text) for name, text in subjects.items()})
        object.__setattr__(self, "resources", {name: NameTemplate(text) for name, text in resources.items()})

    def principal(self, type_: str, given: str) -> str | None:
        template = self.subjects.get(type_)
        return None if template is None else template.name(given)

    def caller(self, asked: Evaluation, enforcement_point: str) -> Caller:
        """Returns the subject, followed by `context.agent` if there is one. Raises Refusal(NO_MATCHING_RULE)."""
        names = [self.principal(asked.subject["type"], asked.subject["id"])]
        if (agent := asked.context.get("agent")) is not None and (name := self.principal(AGENT, agent)) != names[0]:
            names.append(name)
        chain = tuple(name for name in names if name is not None)
        if len(chain) < len(names):
            raise nothing_valid()
        return _asserted(chain, enforcement_point)

    def target(self, asked: Evaluation) -> tuple[str, str]:
        """Returns the object and the action of a question. Raises Refusal(NO_MATCHING_RULE)."""
        type_, given, word = asked.resource["type"], asked.resource["id"], asked.action["name"]
        if self.server and type_ == "mcp_server" and given in self.audiences:
            given = self.server
        template, action = self.resources.get(type_), self.action(type_, word)
        name = None if template is None else template.name(given, word)
        if name is None or action not in ACTIONS:
            raise nothing_valid()
        return name, action

    def action(self, type_: str, word: str) -> str:
        """Returns the sidecar's name for an action."""
        template = self.resources.get(type_)
        used = template is not None and template.has_action
        default = USES[template.text.partition(":")[0]] if template is not None and used else word
        return self.settings.actions.get(word, default)

    def arguments(self, asked: Evaluation) -> Mapping[str, Any]:
        """Returns the arguments that conditions read as `args`: `resource.properties.arguments`, or the members that
        are declared for the type."""
        given = asked.resource.get("properties", {}).get("arguments")
        if isinstance(given, dict):
            return given
        declared = self.settings.arguments.get(asked.resource["type"], {})
        whole = asked._asdict()
        found = ((name, _at(whole, path)) for name, path in declared.items())
        return {name: value for name, (there, value) in found if there}


@lru_cache(4096)  # records describe each caller once, by its object
def _asserted(names: tuple[str, ...], enforcement_point: str) -> Caller:
    chain = tuple(Principal(name, enforcement_point) for name in names)
    return Caller(chain, (Credential(ASSERTED, enforcement_point),))


def _at(value: Any, path: str) -> tuple[bool, Any]:
    """Returns whether there is a value at a place, and the value."""
    for key in path.split("."):
        if not isinstance(value, Mapping) or key not in value:
            return False, None
        value = value[key]
    return True, value
