"""Reads the requests of AuthZEN's Authorization API 1.0.

Unknown members are ignored. A required member that is missing, and a member of another type, are faults that name their
place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from sidecar.errors import Refusal
from sidecar.protocols.jsonrpc import malformed, parse_json

MAX_EVALUATIONS: Final = 1_000
DEFAULT_RESULTS, MAX_RESULTS = 100, 1_000  # of one page
SEMANTICS: Final = ("execute_all", "deny_on_first_deny", "permit_on_first_permit")
Searched = Literal["subject", "resource", "action"]
ENTITIES: Final[Sequence[str]] = ("subject", "action", "resource", "context")
_NOTHING: Mapping[str, Any] = {}  # read-only by its type


class Evaluation(NamedTuple):
    """One question. In a search, the subject or resource that it looks for may have no id, and the action is empty."""

    subject: Mapping[str, Any]
    action: Mapping[str, Any]
    resource: Mapping[str, Any]
    context: Mapping[str, Any] = _NOTHING

    @property
    def charge(self) -> bool:
        """Whether the request asks that its limits be charged."""
        return self.context.get("charge") is True


class Evaluations(NamedTuple):
    """Several questions; a refusal stands for one that is malformed. Without `many` it is a single question."""

    questions: Sequence[Evaluation | Refusal]
    semantic: str = SEMANTICS[0]
    many: bool = True


class SearchRequest(NamedTuple):
    """A search. `token` is that of the next page, "" for the first one. `limit` None is the default limit, or with a
    token the limit of the page before."""

    searched: Searched
    evaluation: Evaluation
    token: str = ""
    limit: int | None = None


def evaluation_in(raw: bytes) -> Evaluations:
    """Returns the question of a body. Raises Refusal(MALFORMED_CALL), like the other readers."""
    return Evaluations((_evaluation(_body(raw)),), many=False)


def evaluations_in(raw: bytes) -> Evaluations:
    """Returns the questions of a body. The body's own entities are their defaults."""
    body = _body(raw)
    items, options = body.get("evaluations", []), _object(body, "options")
    if not isinstance(items, list):
        raise malformed("evaluations must be an array")
    if len(items) > MAX_EVALUATIONS:
        raise malformed(f"evaluations must have at most {MAX_EVALUATIONS} items")
    semantic = options.get("evaluations_semantic", SEMANTICS[0])
    if semantic not in SEMANTICS:
        raise malformed(f"options.evaluations_semantic must be one of {', '.join(SEMANTICS)}")
    if not items:
        return Evaluations((_evaluation(body),), many=False)
    defaults = {name: _object(body, name) for name in ENTITIES if name in body}
    return Evaluations([_item(item, defaults, f"evaluations[{at}]") for at, item in enumerate(items)], semantic)


def search_in(raw: bytes, searched: Searched) -> SearchRequest:
    """Returns the search of a body. The id that it looks for is ignored."""
    body = _body(raw)
    page = _object(body, "page")
    token, limit = page.get("token", ""), page.get("limit")
    if not isinstance(token, str):
        raise malformed("page.token must be a string")
    if "limit" in page and (type(limit) is not int or limit < 0):
        raise malformed("page.limit must be a whole number, 0 or more")
    _object(page, "properties", "page.")
    return SearchRequest(searched, _evaluation(body, searched=searched), token, limit)


def _body(raw: bytes) -> dict[str, Any]:
    body = parse_json(raw)
    if not isinstance(body, dict):
        raise malformed("the body must be an object")
    return body


def _item(item: object, defaults: Mapping[str, Any], where: str) -> Evaluation | Refusal:
    if not isinstance(item, dict):
        return malformed(f"{where} must be an object")
    try:
        return _evaluation({**defaults, **item}, f"{where}.")
    except Refusal as fault:
        return fault


def _evaluation(body: Mapping[str, Any], where: str = "", searched: Searched | None = None) -> Evaluation:
    subject = _entity(body, "subject", where, () if searched == "subject" else ("id",))
    resource = _entity(body, "resource", where, () if searched == "resource" else ("id",))
    action = _NOTHING if searched == "action" else _entity(body, "action", where, ("name",))
    context = _object(body, "context", where)
    if not isinstance(context.get("agent", ""), str):
        raise malformed(f"{where}context.agent must be a string")
    return Evaluation(subject, action, resource, context)


def _entity(body: Mapping[str, Any], name: str, where: str, needed: Sequence[str]) -> Mapping[str, Any]:
    if name not in body:
        raise malformed(f'the key "{where}{name}" is missing')
    entity = _object(body, name, where)
    for key in needed if name == "action" else ("type", *needed):
        if key not in entity:
            raise malformed(f'the key "{where}{name}.{key}" is missing')
        if not isinstance(entity[key], str):
            raise malformed(f"{where}{name}.{key} must be a string")
    _object(entity, "properties", f"{where}{name}.")
    return entity


def _object(body: Mapping[str, Any], name: str, where: str = "") -> Mapping[str, Any]:
    value = body.get(name, _NOTHING)
    if not isinstance(value, Mapping):
        raise malformed(f"{where}{name} must be an object")
    return value
