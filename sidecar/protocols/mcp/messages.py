"""Describes the methods of MCP: the policy questions of each, and its possible results.

A method that is in neither of the tables `METHODS` and `NOTIFICATIONS` is refused. `eras.py` determines the revision of
a message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from sidecar.errors import Reason, Refusal
from sidecar.protocols.hidden_characters import shown
from sidecar.protocols.jsonrpc import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    Notification,
    Request,
    Spellings,
    malformed,
    refuse_variants,
    spellings,
)
from sidecar.protocols.mcp import task_messages
from sidecar.protocols.mcp.eras import META_CAPABILITIES, SESSION, STATELESS, TASKS_EXTENSION, Era
from sidecar.protocols.mcp.task_messages import RELATED_TASK
from sidecar.settings.uris import fault_in_uri, normal_uri
from sidecar.vocabulary import Call, Question

NAME = re.compile(r"[A-Za-z0-9_.\-/]{1,128}\Z")
NAME_GRAMMAR = "1 to 128 characters of A-Z a-z 0-9 _ . - /"
MAX_SHOWN_CHARS = 128  # of an invalid name, in reports
MAX_UNNAMED = 100  # of one list, for operators
MAX_SUBSCRIBED_URIS = 100
LOCATED = frozenset({"resources/read", "resources/subscribe", "resources/unsubscribe"})
NAMING_URIS = LOCATED | {"completion/complete", "subscriptions/listen"}
MAX_MEMBERS = 1_000  # of a result or an entry of a list: MCP defines a dozen, and each is compared in any spelling
_NO_META: dict[str, Any] = {}  # never written to
_new = tuple.__new__
MAX_ASKED_AT_ONCE = 64  # requests of one result to its client; as many as a session holds unanswered


def call_from(message: Request | Notification, era: Era, version: str, server: str) -> Call:
    """The call of a message to the upstream `server`, with its questions. Raises Refusal: METHOD_UNKNOWN for a method
    that its kind of revision does not have, MALFORMED_CALL for wrong parameters."""
    if isinstance(message, Request):
        (request_id, name, params), table = message, METHODS
    else:
        request_id, (name, params), table = None, message, NOTIFICATIONS
    meta = params.get("_meta", _NO_META)
    if era is STATELESS:
        capabilities = meta.get(META_CAPABILITIES)
        if not isinstance(capabilities, dict):
            raise malformed(f"params._meta must name {META_CAPABILITIES}", INVALID_PARAMS)
        if capabilities:
            refuse_variants(capabilities, _MEMBERS["capabilities"], f"params._meta.{META_CAPABILITIES}")
    method = table.get(name)
    if method is None or era not in method.eras:
        raise Refusal(Reason.METHOD_UNKNOWN, code=METHOD_NOT_FOUND if era is STATELESS else None)
    tasks: tuple[str, ...] = ()
    if method.session or RELATED_TASK in meta:  # other methods name a task only by this member
        tasks = task_messages.named_by_caller(name, params)
        if tasks and era is STATELESS:
            task_messages.check_declared(params)
    questions = method.questions(server, name, params, meta)
    wants_task = "task" in params and _wants_task(message, version)
    return _new(Call, ("mcp", version, server, name, questions, request_id, method.session, tasks, wants_task))


def server_question(server: str, action: str) -> Question:
    """A question about an MCP server as a whole."""
    return Question(object=f"nhi:{server}", action=action, server=server)


def may_speak_of_tasks(message: Request) -> bool:
    """Whether a request may ask for a task, or name tasks among its client's capabilities: a quick check before
    `forwarded_params`."""
    if "task" in message.params or message.method == "initialize":
        return True
    capabilities = message.params.get("_meta", _NO_META).get(META_CAPABILITIES)
    if not capabilities:
        return False
    return isinstance(capabilities, dict) and ("extensions" in capabilities or "tasks" in capabilities)


def forwarded_params(message: Request | Notification, version: str, *, tasks: bool) -> dict[str, Any]:
    """The forwarded parameters of a checked message. Without `tasks` for this caller, they neither ask for a task nor
    name tasks among the client's capabilities. The capabilities in an `initialize` never name tasks."""
    params = message.params
    if "task" in params and not (tasks and _wants_task(message, version)):
        params = {key: value for key, value in params.items() if key != "task"}
    if message.method == "initialize" and _names_tasks(params["capabilities"]):
        params = {**params, "capabilities": without_tasks(params["capabilities"])}
    meta = params.get("_meta", {})
    if not tasks and _names_tasks(meta.get(META_CAPABILITIES)):
        params = {**params, "_meta": {**meta, META_CAPABILITIES: without_tasks(meta[META_CAPABILITIES])}}
    return params


def located_uri(message: Request | Notification) -> str:
    """The URI that a checked request about one resource names, as its caller wrote it; "" for other methods."""
    return str(message.params["uri"]) if message.method in LOCATED else ""


def with_normal_uris(message: Request, spelled: Callable[[str], str]) -> Request:
    """A checked request with other URIs: `spelled` gives the upstream's spelling of a URI in normal form."""
    method, params = message.method, message.params
    if method in LOCATED:
        params = {**params, "uri": spelled(normal_uri(params["uri"]))}
    elif method == "completion/complete" and (ref := params["ref"]).get("type") == "ref/resource":
        params = {**params, "ref": {**ref, "uri": spelled(normal_uri(ref["uri"]))}}
    elif method == "subscriptions/listen" and "resourceSubscriptions" in (wanted := params["notifications"]):
        uris = [spelled(normal_uri(uri)) for uri in wanted["resourceSubscriptions"]]
        params = {**params, "notifications": {**wanted, "resourceSubscriptions": uris}}
    return message if params is message.params else message._replace(params=params)


def _wants_task(message: Request | Notification, version: str) -> bool:
    """Whether a message with `params.task` requests a task: it is ignored in other methods than `tools/call`, and in
    other revisions than 2025-11-25. Raises Refusal(MALFORMED_CALL) if it is not valid."""
    if message.method != "tools/call" or version not in task_messages.VERSIONS:
        return False
    task_messages.check_task_wish(message.params)
    return True


# --- results ----------------------------------------------------------------------------------------------------------

SERVER_REQUESTS = frozenset({"sampling/createMessage", "elicitation/create", "roots/list"})
SERVER_NOTIFICATIONS = frozenset(
    {"notifications/message", "notifications/progress", "notifications/cancelled", "notifications/tools/list_changed",
     "notifications/prompts/list_changed", "notifications/resources/list_changed", "notifications/resources/updated",
     "notifications/elicitation/complete", "notifications/subscriptions/acknowledged", *task_messages.NOTIFICATIONS}
)  # fmt: skip
COMPLETE = "complete"
# A complete result that has only these members is a tool's content: no other member makes it another kind of result.
CONTENT = frozenset({"content", "structuredContent", "isError", "resultType"})
RESULT_TYPES = (COMPLETE, "input_required", "task")  # others belong to extensions that are not supported
# Results are checked by their content, not by the request, so a wrong answer to a request is no way around the checks.
LISTS = ("tools", "prompts", "resources", "resourceTemplates")
# The members by which a result and an entry are checked. Some clients ignore case, so another spelling is refused.
_JUDGED_IN_RESULT = spellings(
    (
        *(*LISTS, "resultType", "inputRequests", "capabilities", "protocolVersion", "cacheScope", "instructions"),
        *("task", "tasks", "taskId"),
    )
)
_JUDGED_IN_ENTRY = spellings(("name", "uri", "uriTemplate"))


def evades(result: Mapping[str, Any]) -> bool:
    """Whether a result has a member whose name differs only in case from that of a checked one."""
    return _has_variant(result, _JUDGED_IN_RESULT)


def _has_variant(keys: Iterable[str], known: Spellings) -> bool:
    return any(known.get(key.casefold(), key) != key for key in keys)


class LeftOut(NamedTuple):
    """An entry of a list that is omitted: its kind (`tool`), its name, "" if it has none or must not be shown, and the
    reason."""

    kind: str
    name: str
    reason: str


KINDS: Mapping[str, str] = {
    "tools": "tool",
    "prompts": "prompt",
    "resources": "resource",
    "resourceTemplates": "resource template",
}
_NAMED_BY: Mapping[str, str] = {"resources": "uri", "resourceTemplates": "uriTemplate"}


def fault_in_entry(member: str, entry: object) -> str:
    """The reason why no call can name this entry of the list `member` of LISTS; "" if one can."""
    if not isinstance(entry, dict) or len(entry) > MAX_MEMBERS:
        return "it is not an object, or has too many members"
    if _has_variant(entry, _JUDGED_IN_ENTRY):
        return "it has a key that differs from name, uri or uriTemplate only in case"
    key = _NAMED_BY.get(member, "name")
    name = entry.get(key)
    if not isinstance(name, str):
        return f"its {key} is not a string"
    if key == "name":
        return "" if NAME.match(name) else f"its name is not {NAME_GRAMMAR}"
    fault = fault_in_uri(name)
    return f"its {key} {fault}" if fault else ""


def unnamed(member: str, entry: object) -> LeftOut | None:
    """The omitted entry if no call can name it, with its name escaped and cut; None if one can."""
    reason = fault_in_entry(member, entry)
    if not reason:
        return None
    name = entry.get(_NAMED_BY.get(member, "name")) if isinstance(entry, dict) else None
    text = name if isinstance(name, str) else ""
    text = text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}…"
    return LeftOut(KINDS[member], shown(text), reason)


def named_in(member: str, entries: Iterable[object]) -> tuple[str, ...]:
    """The names, or URIs, of those entries of a list that a call can name."""
    key = _NAMED_BY.get(member, "name")
    return tuple(entry[key] for entry in entries if isinstance(entry, dict) and not fault_in_entry(member, entry))


def unnamed_in(member: str, entries: Iterable[object]) -> tuple[LeftOut, ...]:
    """Those entries of a list that no call can name, the first MAX_UNNAMED at most."""
    return tuple(islice(filter(None, (unnamed(member, entry) for entry in entries)), MAX_UNNAMED))


def entry_question(member: str, server: str, entry: Any) -> Question | None:
    """The policy question of using an entry of the list `member`; None if no call can name it."""
    if fault_in_entry(member, entry):
        return None
    if member in ("tools", "prompts"):
        return _name_question(member, server, entry["name"])
    return _resource(server, normal_uri(entry[_NAMED_BY[member]]))


def left_out_question(left_out: LeftOut, server: str) -> Question:
    """The policy question of using an omitted entry: only callers who may use it are informed of it."""
    if left_out.kind in ("tool", "prompt"):
        return _name_question(f"{left_out.kind}s", server, left_out.name)
    return _resource(server, left_out.name)


def _name_question(member: str, server: str, name: str) -> Question:
    kind, action = ("tool", "tools/call") if member == "tools" else ("prompt", "prompts/get")
    return Question(f"{kind}:{server}/{name}", action, server, name)


def asked_of_client(result: Mapping[str, Any]) -> list[str]:
    """The methods of the requests that a result makes to the client (`inputRequests`). Raises Refusal(RESPONSE_REFUSED)
    for other methods than SERVER_REQUESTS, and for more than MAX_ASKED_AT_ONCE requests."""
    requests = result.get("inputRequests", {})
    if not isinstance(requests, dict):
        raise Refusal(Reason.RESPONSE_REFUSED, "inputRequests is not an object")
    if len(requests) > MAX_ASKED_AT_ONCE:
        raise Refusal(Reason.RESPONSE_REFUSED, "inputRequests are too many")
    methods = [request.get("method") if isinstance(request, dict) else None for request in requests.values()]
    if not all(isinstance(method, str) and method in SERVER_REQUESTS for method in methods):
        raise Refusal(Reason.RESPONSE_REFUSED, "inputRequests asks for something that MCP does not know")
    return [str(method) for method in methods]


def narrow_to_sessions(result: dict[str, Any]) -> None:
    """Removes from a checked result what no session revision has: structured content and output schemas of other types
    than objects."""
    if not isinstance(result.get("structuredContent", {}), dict):
        del result["structuredContent"]
    for tool in result.get("tools", ()):
        schema = tool.get("outputSchema")
        if not isinstance(schema, dict) or schema.get("type") != "object":
            tool.pop("outputSchema", None)


def without_tasks(capabilities: dict[str, Any]) -> dict[str, Any]:
    """Capabilities without tasks: neither the member of 2025-11-25 nor the extension of 2026-07-28."""
    kept = {key: value for key, value in capabilities.items() if key != "tasks"}
    if task_messages.declares(kept):
        kept["extensions"] = {key: value for key, value in kept["extensions"].items() if key != TASKS_EXTENSION}
    return kept


# --- the table ------------------------------------------------------------------------------------------------------

Params = Mapping[str, Any]
Ask = Callable[[str, str, Params, Params], tuple[Question, ...]]
"""(server, method, parameters, their `_meta`) → the questions."""


@dataclass(frozen=True, slots=True)
class McpMethod:
    """A method's questions to policy, whether any grant on the server is enough for it (`session`), and the kinds of
    revision that have it."""

    questions: Ask
    session: bool = False
    eras: tuple[Era, ...] = tuple(Era)


def _ask_server(server: str, method: str, params: Params, meta: Params) -> tuple[Question, ...]:
    return (server_question(server, method),)


def _ask_initialize(server: str, method: str, params: Params, meta: Params) -> tuple[Question, ...]:
    _string(params, "protocolVersion")
    _object(params, "capabilities")
    return _ask_server(server, method, params, meta)


def _ask_list(server: str, method: str, params: Params, meta: Params) -> tuple[Question, ...]:
    if "cursor" in params:
        _string(params, "cursor")
    return _ask_server(server, method, params, meta)


def _ask_tool(server: str, method: str, params: Params, meta: Params) -> tuple[Question, ...]:
    name, arguments = params.get("name"), params.get("arguments", _NO_META)
    if not isinstance(name, str) or not NAME.match(name) or not isinstance(arguments, dict):
        name, arguments = _name(params), _object(params, "arguments")  # one of them refuses
    return (_new(Question, (f"tool:{server}/{name}", method, server, name, arguments, meta)),)


def _ask_prompt(server: str, method: str, params: Params, meta: Params) -> tuple[Question, ...]:
    name = _name(params)
    arguments = _strings(params, "arguments")
    return (Question(f"prompt:{server}/{name}", method, server, name, arguments, meta),)


def _ask_resource(server: str, method: str, params: Params, meta: Params) -> tuple[Question, ...]:
    return (_resource(server, _uri(params, "uri"), meta),)


def _ask_completion(server: str, method: str, params: Params, meta: Params) -> tuple[Question, ...]:
    argument = _object(params, "argument")
    _string(argument, "name", "argument.name")
    _string(argument, "value", "argument.value")
    if "context" in params:
        _strings(_object(params, "context"), "arguments", "context.arguments")
    ref = _object(params, "ref")
    if ref.get("type") == "ref/prompt":
        name = _name(ref, "ref.name")
        return (Question(f"prompt:{server}/{name}", "prompts/get", server, name, {}, meta),)
    if ref.get("type") == "ref/resource":
        return (_resource(server, _uri(ref, "ref.uri"), meta),)
    raise malformed("params.ref.type must be ref/prompt or ref/resource", INVALID_PARAMS)


def _ask_task(server: str, method: str, params: Params, meta: Params) -> tuple[Question, ...]:
    """Asks whether the caller may use the server. The owner is checked by `Call.tasks`; the id is for the audit."""
    asked = {"taskId": params.get("taskId")}
    return (Question(f"nhi:{server}", method, server, "", asked, meta),)


def _ask_task_update(server: str, method: str, params: Params, meta: Params) -> tuple[Question, ...]:
    _object(params, "inputResponses")
    return _ask_task(server, method, params, meta)


def _ask_subscriptions(server: str, method: str, params: Params, meta: Params) -> tuple[Question, ...]:
    wanted = _object(params, "notifications")
    uris = wanted.get("resourceSubscriptions", [])
    if not isinstance(uris, list) or len(uris) > MAX_SUBSCRIBED_URIS:
        raise malformed(f"resourceSubscriptions must be a list of at most {MAX_SUBSCRIBED_URIS} URIs", INVALID_PARAMS)
    where = "notifications.resourceSubscriptions"
    named = tuple(_resource(server, _uri({"uri": uri}, where), meta) for uri in uris)
    return (server_question(server, method), *named)


_SESSION, _STATELESS = (SESSION,), (STATELESS,)

METHODS: Mapping[str, McpMethod] = {
    "tools/call": McpMethod(_ask_tool),
    "prompts/get": McpMethod(_ask_prompt),
    "resources/read": McpMethod(_ask_resource),
    "completion/complete": McpMethod(_ask_completion),
    "resources/subscribe": McpMethod(_ask_resource, eras=_SESSION),
    "resources/unsubscribe": McpMethod(_ask_resource, eras=_SESSION),
    "subscriptions/listen": McpMethod(_ask_subscriptions, session=True, eras=_STATELESS),
    "initialize": McpMethod(_ask_initialize, session=True, eras=_SESSION),
    "ping": McpMethod(_ask_server, session=True, eras=_SESSION),
    "logging/setLevel": McpMethod(_ask_server, session=True, eras=_SESSION),
    "server/discover": McpMethod(_ask_server, session=True, eras=_STATELESS),
    "tools/list": McpMethod(_ask_list, session=True),
    "prompts/list": McpMethod(_ask_list, session=True),
    "resources/list": McpMethod(_ask_list, session=True),
    "resources/templates/list": McpMethod(_ask_list, session=True),
    "tasks/get": McpMethod(_ask_task, session=True),
    "tasks/cancel": McpMethod(_ask_task, session=True),
    "tasks/result": McpMethod(_ask_task, session=True, eras=_SESSION),
    "tasks/list": McpMethod(_ask_list, session=True, eras=_SESSION),
    "tasks/update": McpMethod(_ask_task_update, session=True, eras=_STATELESS),
}
# MCP 2026-07-28 defines no notification from client to server over HTTP: closing the stream is the cancellation.
NOTIFICATIONS: Mapping[str, McpMethod] = {
    f"notifications/{name}": McpMethod(_ask_server, session=True, eras=_SESSION)
    for name in ("initialized", "cancelled", "progress", "roots/list_changed")
}


# --- reading parameters ---------------------------------------------------------------------------------------------

# Objects inside `params` with members that are decided on or removed. Such a member in another case is refused.
_MEMBERS: Mapping[str, Spellings] = {
    "ref": spellings(("type", "name", "uri")),
    "argument": spellings(("name", "value")),
    "context": spellings(("arguments",)),
    "capabilities": spellings(("tasks", "extensions")),
    "notifications": spellings(
        ("toolsListChanged", "promptsListChanged", "resourcesListChanged", "resourceSubscriptions", "taskIds")
    ),
}


def _name(params: Mapping[str, Any], where: str = "name") -> str:
    name = params.get("name")
    if not isinstance(name, str) or not NAME.match(name):
        raise malformed(f"params.{where} must be {NAME_GRAMMAR}", INVALID_PARAMS)
    return name


def _uri(params: Mapping[str, Any], where: str) -> str:
    """The normal form of the member `uri`. Raises Refusal(MALFORMED_CALL), with the place `where`, if it is no URI or
    has no normal form."""
    uri = params.get("uri")
    fault = fault_in_uri(uri) if isinstance(uri, str) else "must be a string"
    if fault:
        raise malformed(f"params.{where} {fault}", INVALID_PARAMS)
    return normal_uri(str(uri))


def resource_question(server: str, uri: object, where: str, meta: Mapping[str, Any]) -> Question:
    """The question of reading a resource. Raises Refusal(MALFORMED_CALL), with the place `where`, for a URI without a
    normal form."""
    return _resource(server, _uri({"uri": uri}, where), meta)


def _resource(server: str, uri: str, meta: Mapping[str, Any] | None = None) -> Question:
    return Question(f"resource:{server}/{uri}", "resources/read", server, uri, {}, meta or {})


def _object(params: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = params.get(key)
    if not isinstance(value, dict):
        raise malformed(f"params.{key} must be an object", INVALID_PARAMS)
    if key in _MEMBERS:
        refuse_variants(value, _MEMBERS[key], f"params.{key}")
    return value


def _string(params: Mapping[str, Any], key: str, where: str = "") -> str:
    value = params.get(key)
    if not isinstance(value, str):
        raise malformed(f"params.{where or key} must be a string", INVALID_PARAMS)
    return value


def _strings(params: Mapping[str, Any], key: str, where: str = "") -> Mapping[str, Any]:
    values = params.get(key, {})
    if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
        raise malformed(f"params.{where or key} must be an object of strings", INVALID_PARAMS)
    return values


def _names_tasks(capabilities: object) -> bool:
    return isinstance(capabilities, dict) and ("tasks" in capabilities or task_messages.declares(capabilities))
