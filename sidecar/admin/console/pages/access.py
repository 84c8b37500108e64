"""Shows access: a matrix of principals and objects, the objects that one principal may use, the principals that may use
one object, and the members of a role or a set."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import groupby, islice
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

from sidecar.admin.access import OBJECTS, PRINCIPALS, STATES, AccessView, NamesByKind, chosen, known_names
from sidecar.admin.console.form_fields import FormFields
from sidecar.admin.console.registry import page
from sidecar.admin.console.request import ConsoleFault, ConsoleRequest, Paging, paged
from sidecar.policy import Engine
from sidecar.policy.engine import PossibleAnswer
from sidecar.policy_tools.explanation import rule_data
from sidecar.policy_tools.rule_text import csv_row
from sidecar.protocols.jsonrpc import malformed
from sidecar.settings.field_types import is_caller
from sidecar.settings.uris import fault_in_object, named_object
from sidecar.vocabulary import ACTIONS, ANONYMOUS, Principal

NAMES_S: Final = 30.0
ANSWERS_S: Final = 5.0
"""How long viewers share names and answers, which are costly. After a reload, they are made again at once."""
MATRIX, CASBIN_MATRIX = (25, 20), (10, 8)
"""The numbers of rows and columns of one page."""
SHOWN: Final = ("granted", *STATES, "all")
HEADING: Final = 24
"""The maximum number of characters of a name above a column: more of its end, by which names differ, than of its
beginning."""
MAX_GROUP_RULES: Final = 200
MAX_VIA: Final = 8
MAX_FROM: Final = 10_000_000

T = TypeVar("T")
Key = tuple[object, ...]
Answers = Callable[[Sequence[str]], Awaitable[Sequence[tuple[str, PossibleAnswer]]]]


@page("access", title="Who may what", template="access.html")
async def access(asked: ConsoleRequest) -> Mapping[str, Any]:
    """The view that the query selects: a matrix, or the list of one principal or one object."""
    query, now = asked.query, asked.app.desk.live.current
    wanted = {name: query.text(name, most=2048) for name in ("who", "what", "via", "action")}
    kinds = {"who": query.choice("who_kind", PRINCIPALS), "what": query.choice("what_kind", OBJECTS)}
    view = _view(asked, wanted)
    key: Key = now.engine.revision, id(now), tuple(service.catalogue.lists for service in now.services.values())
    names = await asked.shared(("names", *key), NAMES_S, partial(known_names, now))
    who = await _selected(asked, (*key, "who"), names.principals, kinds["who"], wanted["who"])
    what = await _selected(asked, (*key, "what"), names.objects, kinds["what"], wanted["what"])
    principal = _exact(wanted["who"], names.principals, who, _is_principal)
    obj = _exact(wanted["what"], names.objects, what, _is_object)
    common: dict[str, Any] = {
        "filter": {**wanted, "who_kind": kinds["who"], "what_kind": kinds["what"]},
        "kinds": {"who": list(PRINCIPALS), "what": list(OBJECTS)},
        "actions": sorted(ACTIONS),
        "revision": now.engine.revision,
    }
    key = (*key, *wanted.values(), *kinds.values())
    if principal:
        is_known = principal in names.principals
        return {**common, **await _of_principal(asked, view, principal, [obj] if obj else what, key, is_known=is_known)}
    if obj:
        return {**common, **await _of_object(asked, view, obj, who, key)}
    return {**common, **await _matrix(asked, view, who, what)}


def _view(asked: ConsoleRequest, wanted: Mapping[str, str]) -> AccessView:
    via = wanted["via"].replace("→", ",").replace(",", " ").split()
    if len(via) > MAX_VIA or not all(name.startswith("nhi:") and is_caller(name) for name in via):
        raise malformed(f"Through: at most {MAX_VIA} NHIs, first to last, such as nhi:planner")
    if wanted["action"] and wanted["action"] not in ACTIONS:
        raise malformed("Action: it is unknown")
    return AccessView(asked.app.desk.live.current, time.time(), tuple(map(Principal, via)), wanted["action"])


async def _selected(asked: ConsoleRequest, key: Key, names: NamesByKind, kind: str, wanted: str) -> Sequence[str]:
    if wanted in names and kind in ("", wanted.partition(":")[0]):
        return [wanted]
    return await asked.shared(("selected", *key, kind, wanted), NAMES_S, partial(names.selected, kind, wanted))


def _exact(wanted: str, known: NamesByKind, fitting: Sequence[str], is_name: Callable[[str], bool]) -> str:
    """The filter, if it is one name: a known name, or a valid one if no known name contains it. Otherwise ""."""
    if "*" in wanted or not is_name(wanted):
        return ""
    return wanted if wanted in known or not fitting else ""


def _is_principal(text: str) -> bool:
    """Whether it names a principal, or a role, which stands for the users who have it."""
    role = text.removeprefix("role:")
    return text == ANONYMOUS or is_caller(text if role == text else f"user:{role}")


def _is_object(text: str) -> bool:
    kind, _, rest = text.partition(":")
    whole = kind in OBJECTS and bool(rest) and (kind == "nhi" or all(rest.partition("/")))
    return whole and not fault_in_object(text) and named_object(text) == text


# --- the matrix -------------------------------------------------------------------------------------------------------


async def _matrix(
    asked: ConsoleRequest, view: AccessView, who: Sequence[str], what: Sequence[str]
) -> Mapping[str, Any]:
    height, width = CASBIN_MATRIX if view.now.engine.asks_casbin else MATRIX
    down, across = _paging(asked, "page", len(who), height), _paging(asked, "across", len(what), width)
    principals, objects = who[down.first : down.first + height], what[across.first : across.first + width]
    rows, disabled = await view.table(principals, objects), _disabled(asked, principals)
    return {
        "view": "matrix",
        "columns": [_column(asked, view, name) for name in objects],
        "groups": [{"name": name, "columns": len(list(same))} for name, same in groupby(map(_server, objects))],
        "rows": [
            {"principal": name, "asker": urlencode(view.asker(name)), "disabled": disabled.get(name), "cells": cells}
            for name, cells in zip(principals, rows, strict=True)
        ],
        "paging": down.plain(),
        "across": across.plain(),
    }


def _paging(asked: ConsoleRequest, field: str, total: int, size: int) -> Paging:
    return Paging.of(total, FormFields((("page", asked.query.text(field)),)), size=size)


def _column(asked: ConsoleRequest, view: AccessView, obj: str) -> Mapping[str, Any]:
    name = obj.partition(":")[2]
    name = name if obj.startswith("nhi:") else name.partition("/")[2]
    short = name if len(name) <= HEADING else f"{name[: HEADING // 3]}…{name[-(HEADING - HEADING // 3 - 1) :]}"
    question = {"calls": obj, "action": view.question(obj).action}
    more = {"action": question["action"], "question": urlencode(question), "off": _off(asked, view, obj)}
    return {"object": obj, "name": short, **more}


def _server(obj: str) -> str:
    """The heading that neighbouring columns share: the kind and the server."""
    kind, _, rest = obj.partition(":")
    return f"{kind}:{rest.partition('/')[0]}" if kind != "nhi" else kind


# --- one principal, one object ----------------------------------------------------------------------------------------


async def _of_principal(
    asked: ConsoleRequest, view: AccessView, principal: str, objects: Sequence[str], key: Key, *, is_known: bool
) -> Mapping[str, Any]:
    show = _show(asked.query, single=len(objects) == 1)
    if show == "granted":
        objects = await _granted(asked, key, partial(view.granted_objects, principal), objects)
    listed = await _listed(asked, view, key, objects, show, partial(view.objects_of, principal))
    nearest = ""
    if not is_known and principal.startswith("role:"):
        is_known = next(view.now.engine.rules_of(principal), None) is not None
    elif not is_known:  # it may be known because it has called
        is_known, nearest = await asyncio.to_thread(asked.app.known_principal, principal)
    return {
        **listed,
        "view": "objects",
        "rows": [{**_row(view, principal, name), "off": _off(asked, view, name)} for name in listed["rows"]],
        "name": principal,
        "known": is_known,
        "nearest": nearest or None,
        "disabled": _disabled(asked, [principal]).get(principal),
        "groups": sorted(view.now.engine.roles_of(view.chain(principal)[0])),
        "open": await _shared(asked, ("open", *key), partial(view.open_objects, principal)),
    }


async def _of_object(
    asked: ConsoleRequest, view: AccessView, obj: str, principals: Sequence[str], key: Key
) -> Mapping[str, Any]:
    show = _show(asked.query, single=len(principals) == 1)
    if show == "granted":
        principals = await _granted(asked, key, partial(view.granted_principals, obj), principals)
    listed = await _listed(asked, view, key, principals, show, partial(view.principals_of, obj))
    disabled = _disabled(asked, listed["rows"])
    return {
        **listed,
        "view": "principals",
        "rows": [{**_row(view, name, obj), "disabled": disabled.get(name)} for name in listed["rows"]],
        "name": obj,
        "known": view.now.has(view.question(obj)),
        "off": _off(asked, view, obj),
        "groups": sorted(view.now.engine.source.sets.closure((obj,))),
        "open": await _shared(asked, ("open", *key), partial(view.open_principals, obj)),
    }


async def _granted(
    asked: ConsoleRequest, key: Key, find: Callable[[], frozenset[str] | None], names: Sequence[str]
) -> Sequence[str]:
    """The names that `find` returns; all names if it returns None."""

    async def held() -> Sequence[str]:
        found = await asyncio.to_thread(find)
        return names if found is None else await chosen(names, partial(filter, found.__contains__))

    return await asked.shared(("granted", *key), ANSWERS_S, held)


def _row(view: AccessView, principal: str, obj: str) -> Mapping[str, Any]:
    cell = view.cell(principal, obj)
    return {**cell, "question": urlencode({**view.asker(principal), "calls": obj, "action": cell["action"]})}


async def _listed(
    asked: ConsoleRequest, view: AccessView, key: Key, names: Sequence[str], show: str, answers: Answers
) -> Mapping[str, Any]:
    """The names of one page, and the window of all names for which the engine was asked."""
    query, total = asked.query, len(names)
    first = min(query.number("from", 0, least=0, most=MAX_FROM), max(0, total - 1)) // view.most * view.most
    states = await asked.shared(
        ("answers", *key, show, first), ANSWERS_S, partial(answers, names[first : first + view.most])
    )
    wanted = STATES[:-1] if show == "granted" else STATES if show == "all" else (show,)
    return {
        **paged([name for name, state in states if state in wanted], query),
        "show": show,
        "shown": list(SHOWN),
        "window": {"first": first, "size": len(states), "step": view.most, "total": total},
    }


def _show(query: FormFields, *, single: bool) -> str:
    return query.choice("show", SHOWN, "all" if single else "granted")


async def _shared(asked: ConsoleRequest, key: Key, make: Callable[[], T]) -> T:
    """The result of `make`, which runs in a thread, shared by all viewers within ANSWERS_S."""
    return await asked.shared(key, ANSWERS_S, partial(asyncio.to_thread, make))


def _disabled(asked: ConsoleRequest, names: Sequence[str]) -> Mapping[str, str]:
    """The reasons why principals are disabled, by name."""
    now_s, ledger = time.time(), asked.app.stages.switch.ledger.disabled
    sources = ledger, asked.app.desk.live.current.disabled
    entries = ((name, one.find(name, now_s)) for name in names for one in sources if one)
    return {name: entry.reason or entry.source for name, entry in entries if entry is not None}


def _off(asked: ConsoleRequest, view: AccessView, obj: str) -> bool:
    """Whether a tool, or its server, is switched off."""
    switched_off, server = asked.app.stages.switch.ledger.switched_off, view.question(obj).server
    names = (f"mcp:{server}", obj) if server else ()
    return any(switched_off.find(name, view.now_s) is not None for name in names)


# --- roles and sets ---------------------------------------------------------------------------------------------------


@page("access/group", title="Role or set", template="access_group.html")
async def group(asked: ConsoleRequest) -> Mapping[str, Any]:
    """The members of a role or a set, the roles or sets that contain it, and the rules that name it."""
    name, now = asked.query.text("name", most=1024), asked.app.desk.live.current
    if not name.startswith(("role:", "set:")):
        raise ConsoleFault(400, "name: write role:<name> or set:<name>")
    key = "group", now.engine.revision, id(now), name
    found = await _shared(asked, key, partial(_group, now.engine, name))
    if not (found["members"] or found["containers"] or found["rules"]):
        raise ConsoleFault(404, f"no row names {name}")
    return {**found, **paged(found["members"], asked.query), "members": len(found["members"]), "name": name}


def _group(engine: Engine, name: str) -> Mapping[str, Any]:
    source = engine.source
    links = (source.sets,) if name.startswith("set:") else (source.domains.values() or (source.roles,))
    members = sorted({member for one in links for member in one.members(name)})
    direct = {member for one in links for member in members if name in one.parents.get(member, ())}
    return {
        "members": [{"name": member, "is_direct": member in direct} for member in members],
        "containers": sorted({above for one in links for above in one.closure((name,))}),
        "rules": [rule_data(rule, csv_row(rule)) for rule in islice(engine.rules_of(name), MAX_GROUP_RULES)],
    }
