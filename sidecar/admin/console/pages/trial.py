"""Tries a question: shows the results of policy and the other checks, without a call, a record or a charge.

The question is in the address. Arguments are not, so that no log or history contains them: a form sends them.
"""

import asyncio
import re
import shlex
import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

import orjson

from sidecar.admin.comparison import FILE, PolicyComparison
from sidecar.admin.console.form_fields import FormFields
from sidecar.admin.console.registry import action, page
from sidecar.admin.console.request import ConsoleFault, ConsoleRequest, Fragment
from sidecar.admin.trial import Trial, TriedQuestion
from sidecar.errors import PolicyError, Refusal
from sidecar.policy.faults import meant
from sidecar.policy_tools.audit_records import question_of
from sidecar.policy_tools.comparison import ComparisonFailed, ReplacedFile
from sidecar.protocols.jsonrpc import malformed
from sidecar.settings.field_types import is_caller
from sidecar.settings.timestamps import seconds_of
from sidecar.settings.uris import fault_in_object, named_object
from sidecar.vocabulary import ACTION_ON, ACTIONS, ANONYMOUS, Principal

MAX_CHAIN: Final = 16
MAX_ARGUMENTS: Final = 256 * 1024
MAX_TEXT: Final = 1024 * 1024
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,250}\.(csv|yaml|yml)")
"""The action of a call on each kind of object."""


class QuestionFields(NamedTuple):
    """The fields of a question, as the form has them. `as_` is the chain, first to last; `roles` and `scopes` are those
    of the first principal's token."""

    as_: str
    calls: str
    action: str
    at: str
    roles: str
    scopes: str

    @classmethod
    def read(cls, given: FormFields) -> "QuestionFields":
        """The fields of a query or a form. Raises Refusal(MALFORMED_CALL) if one is too long or not one line."""
        names = (("as", 4096), ("calls", 2048), ("action", 64), ("at", 64), ("roles", 2048), ("scopes", 2048))
        return cls(*(given.text(name, most=most) for name, most in names))

    def plain(self) -> dict[str, str]:
        fields = self._asdict()
        return {"as": fields.pop("as_"), **fields}

    @property
    def filled(self) -> dict[str, str]:
        """The fields that are not empty, for the address of this question."""
        return {name: value for name, value in self.plain().items() if value}

    @property
    def command(self) -> str:
        """The command that explains the same question, without arguments."""
        names = _chain_names(self.as_)
        asked = [("--as", ",".join(names)), ("--calls", self.calls), ("--action", self.action), ("--now", self.at)]
        for option, granted in (("--roles", _words(self.roles)), ("--scopes", _words(self.scopes))):
            if names and granted:
                asked.append((option, f"{names[0]}={','.join(granted)}"))
        given = [word for option, value in asked if value for word in (option, value)]
        return shlex.join(["sidecar", "policy", "explain", *given])

    def question(self, arguments: str, meta: str) -> TriedQuestion:
        """The question. `arguments` and `meta` are JSON. Raises Refusal(MALFORMED_CALL)."""
        obj = named_object(self.calls)
        kind, _, rest = obj.partition(":")
        if kind not in (*ACTION_ON, "nhi") or not rest or (kind != "nhi" and not all(rest.partition("/"))):
            raise malformed(
                "Object: write tool:<server>/<tool>, prompt:<server>/<name>, resource:<server>/<uri> or nhi:<name>"
            )
        if "*" in obj:
            raise malformed("Object: write one name, without *")
        if wrong := fault_in_object(obj):
            raise malformed(f"Object: the URI {wrong}")
        asked = self.action or ACTION_ON.get(kind, "message/send")
        if asked not in ACTIONS:
            raise malformed(f"Action: {asked} is unknown. {meant(asked, ACTIONS)}".rstrip())
        question = question_of(obj, asked, _json_object("Arguments", arguments), _json_object("_meta", meta))
        return TriedQuestion(self._chain(), question, self._at_s(), bool(arguments.strip()))

    def _chain(self) -> tuple[Principal, ...]:
        names = _chain_names(self.as_)
        if not names:
            raise malformed("Caller: write who asks, such as user:alice, or a chain: user:alice, nhi:planner")
        if len(names) > MAX_CHAIN:
            raise malformed(f"Caller: at most {MAX_CHAIN} principals")
        for name in names:
            if name != ANONYMOUS and not is_caller(name):
                raise malformed(f"Caller: {name} is not a principal: write user:<id>, nhi:<id> or anonymous")
        roles = _words(self.roles)
        for role in roles:
            if not role.startswith("role:"):
                raise malformed(f"Roles: {role} is not a role: write role:<name>")
        first = Principal(names[0], "", frozenset(roles), frozenset(_words(self.scopes)))
        return (first, *map(Principal, names[1:]))

    def _at_s(self) -> float:
        try:
            return seconds_of(self.at) if self.at else time.time()
        except ValueError as error:
            raise malformed(f"Time: {error}") from None


class OtherFields(NamedTuple):
    """The fields about another policy, as the form has them. `against` is its key. With the key FILE, it is this policy
    with the content of one file replaced."""

    against: str
    file_name: str
    content: str

    @classmethod
    def read(cls, given: FormFields) -> "OtherFields":
        """The fields of a query or a form. Raises Refusal(MALFORMED_CALL) if one is too long or not one line."""
        return cls(given.text("against", most=256), given.text("file_name", most=512), given.get("content", ""))

    @property
    def filled(self) -> dict[str, str]:
        return {"against": self.against} if self.against and self.against != FILE else {}

    def file(self) -> ReplacedFile | None:
        """The file to replace; None for other keys. Raises Refusal(MALFORMED_CALL)."""
        if self.against != FILE:
            return None
        name = self.file_name.removeprefix("policies/")
        if not _FILE_NAME.fullmatch(name) or ".." in name.split("/"):
            raise malformed("File: write its name below policies/, such as agent_to_tool.csv or teams/rules.yaml")
        if len(self.content) > MAX_TEXT:
            raise malformed(f"Content: at most {MAX_TEXT} characters")
        return ReplacedFile(name, self.content.replace("\r\n", "\n"))


@page("try", title="Try", template="try.html")
async def trial(asked: ConsoleRequest) -> Mapping[str, Any]:
    """The form, and the answer if the address has a question, without arguments."""
    fields = QuestionFields.read(asked.query)
    return await _tried(asked, fields, OtherFields.read(asked.query), "", "")


@action("try", role="viewer", max_bytes=4 * MAX_TEXT)
async def answer(asked: ConsoleRequest) -> Fragment:
    """The answer to the question of the form, with its arguments: a part of the page, or without htmx the whole
    page."""
    fields, form = QuestionFields.read(asked.form), asked.form
    data = await _tried(asked, fields, OtherFields.read(form), form.get("arguments", ""), form.get("meta", ""))
    return Fragment("try_answer.html" if asked.is_htmx else "try.html", data)


async def _tried(
    asked: ConsoleRequest, fields: QuestionFields, other: "OtherFields", arguments: str, meta: str
) -> dict[str, Any]:
    live = asked.app.desk.live
    found: Mapping[str, Any] = {"answer": None, "comparison": None, "faults": []}
    fault = ""
    try:
        tried = fields.question(arguments, meta) if fields.as_ or fields.calls else None
        file = other.file()
        if tried is not None:
            answer = await Trial(live.current, asked.app.stages).answer(tried)
            found = {**found, "answer": answer}
        if other.against:
            found = {**found, **await _compared(PolicyComparison(live), other.against, file, tried)}
    except Refusal as refusal:
        fault = refusal.detail
    except TimeoutError:
        raise ConsoleFault(503, "the explanation takes too long: ask sidecar policy explain") from None
    others = await asyncio.to_thread(lambda: list(PolicyComparison(live).others()))
    return {
        "question": fields.plain(),
        "address": urlencode(fields.filled | other.filled),
        "given": {"arguments": arguments, "meta": meta, **other._asdict()},
        "actions": sorted(ACTIONS),
        "others": [{"key": one.key, "label": one.label} for one in others],
        "fault": fault,
        "command": fields.command,
        **found,
    }


async def _compared(
    comparison: PolicyComparison, against: str, file: ReplacedFile | None, tried: TriedQuestion | None
) -> Mapping[str, Any]:
    """The comparison, or the faults of the other policy."""
    try:
        return {"comparison": await comparison.compare(against, file, tried and tried[:3])}
    except PolicyError as error:
        return {"faults": [str(fault) for fault in error.faults]}
    except ComparisonFailed as error:
        return {"faults": [str(error)]}


def _chain_names(text: str) -> list[str]:
    return _words(text.replace("→", ","))


def _words(text: str) -> list[str]:
    return text.replace(",", " ").split()


def _json_object(name: str, text: str) -> dict[str, Any]:
    if not text.strip():
        return {}
    if len(text) > MAX_ARGUMENTS:
        raise malformed(f"{name}: at most {MAX_ARGUMENTS} characters")
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise malformed(f"{name}: this is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise malformed(f'{name}: this is not a JSON object, such as {{"repo": "acme/site"}}')
    return value
