"""Value types in policy tests.

Names are read by the grammar of rows, so that a test can ask about everything that a rule can name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from pydantic import AfterValidator, Field, GetJsonSchemaHandler, WithJsonSchema
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from sidecar.errors import Reason
from sidecar.policy import grammar
from sidecar.policy.faults import shown
from sidecar.policy.grammar import Wrong
from sidecar.settings.field_types import Many
from sidecar.settings.uris import named_object
from sidecar.settings.validation_errors import did_you_mean, reject
from sidecar.vocabulary import ANONYMOUS

MAX_NAMES = 5_000

BY_POLICY = (Reason.DENIED_BY_RULE, Reason.EXPIRED, Reason.CONDITION_FALSE, Reason.NO_MATCHING_RULE)
BY_LIMITS = (Reason.RATE_LIMITED, Reason.QUOTA_SPENT, Reason.BUDGET_SPENT, Reason.TOO_MANY_CONCURRENT)
_REASONS = tuple(reason.value for reason in (*BY_POLICY, *BY_LIMITS))


class AnyOf:
    """The short forms of a value in the JSON Schema."""

    def __init__(self, *short: JsonSchemaValue) -> None:
        self._short = short

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [*self._short, handler(schema)]}


def _label(text: str) -> str:
    if not text.strip() or not text.isprintable():
        reject("a name is one line of printable characters")
    return text


def _read_by(reader: Callable[[str], object], code: str) -> AfterValidator:
    """Return a validator that uses the grammar of rows."""

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
        raise Wrong("", "a role never calls", "write user:… or nhi:…; what a token grants stands under roles")
    return grammar.member(text)


def _moment(text: str) -> float | None:
    if text == grammar.NONE:
        raise Wrong("", "a test is asked at some time", "write 2027-03-31T00:00:00Z, or leave the key out")
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
        message = f"no test of a policy sees {shown(text)}" if known else f"{shown(text)} is no reason"
        reject(message, "T105", did_you_mean(text, _REASONS))
    return text


def listed(value: object) -> object:
    """Convert one principal to a chain of one."""
    return [value] if isinstance(value, str) else value


def expected(value: object) -> object:
    """Expand the short forms: a word is a decision, a list is the names shown."""
    if isinstance(value, str):
        return {"decision": value}
    return {"decision": "allow", "shows": value} if isinstance(value, list) else value


def catalogued(value: object) -> object:
    """Convert a plain list to a list of tools."""
    return {"tools": value} if isinstance(value, list) else value


Label = Annotated[str, Field(max_length=200), AfterValidator(_label)]
PrincipalName = Annotated[str, _read_by(_principal, "T102")]
RoleName = Annotated[str, _read_by(grammar.role, "T102")]
Moment = Annotated[str, _read_by(_moment, "T106"), WithJsonSchema({"type": "string", "format": "date-time"})]
ActionName = Annotated[
    str, _read_by(_action, "T103"), WithJsonSchema({"type": "string", "enum": sorted(grammar.ACTIONS)})
]
ObjectName = Annotated[str, Field(max_length=2200), _read_by(_called, "T104"), AfterValidator(named_object)]
ReasonWord = Annotated[str, AfterValidator(_reason), WithJsonSchema({"type": "string", "enum": list(_REASONS)})]
Names = Annotated[Many[Annotated[str, Field(min_length=1, max_length=2048)]], Field(max_length=MAX_NAMES)]
NAMES_SCHEMA = {"type": "array", "items": {"type": "string"}}
