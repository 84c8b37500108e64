"""Shows who may what: a matrix of principals and objects, all that one principal may, all who may use one object, and
what is in a role or a set."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Final

from sidecar.admin.access import OBJECTS, PRINCIPALS, STATES, AccessView, known_names, selected
from sidecar.admin.console.registry import page
from sidecar.admin.console.request import ConsoleFault, ConsoleRequest, FormFields, Paging, paged
from sidecar.policy.engine import PossibleAnswer
from sidecar.policy_tools.explanation import rule_data
from sidecar.policy_tools.rule_text import csv_row
from sidecar.protocols.jsonrpc import malformed
from sidecar.settings.field_types import is_caller
from sidecar.settings.uris import fault_in_object, named_object
from sidecar.vocabulary import ACTIONS, Principal

NAMES_S: Final = 30.0
ANSWERS_S: Final = 5.0
"""How long names and answers that cost much are shared by viewers. A reload makes them anew at once."""
MATRIX, CASBIN_MATRIX = (25, 20), (10, 8)
"""Rows and columns of one page."""
SHOWN: Final = ("granted", *STATES, "all")
MAX_GROUP_RULES: Final = 200
MAX_VIA: Final = 8


@page("access", title="Who may what", template="access.html")
async def access(asked: ConsoleRequest) -> Mapping[str, Any]:
    """The view that the query selects: a matrix, or the list of one principal or one object."""
    query, now = asked.query, asked.app.desk.live.current
    wanted = {name: query.text(name, most=2048) for name in ("who", "what", "via", "action")}
    kinds = {"who": query.choice("who_kind", PRINCIPALS), "what": query.choice("what_kind", OBJECTS)}
    view = _view(asked, wanted)
    key = now.engine.revision, id(now), tuple(service.catalogue.lists for service in now.services.values())
    names = await asked.shared(("names", *key), NAMES_S, partial(asyncio.to_thread, known_names, now))
    who = await _selected(asked, (*key, "who"), names.principals, kinds["who"], wanted["who"])
    what = await _selected(asked, (*key, "what"), names.objects, kinds["what"], wanted["what"])
    principal, obj = _exact(wanted["who"], who, is_caller), _exact(wanted["what"], what, _is_object)
    common: dict[str, Any] = {
        "filter": {**wanted, "who_kind": kinds["who"], "what_kind": kinds["what"]},
        "kinds": {"who": list(PRINCIPALS), "what": list(OBJECTS)},
        "actions": sorted(ACTIONS),
        "names": {"principals": len(names.principals), "objects": len(names.objects)},
        "revision": now.engine.revision,
    }
    if principal:
        return {**common, **await _of_principal(asked, view, principal, [obj] if obj else what, key)}
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


async def _selected(
    asked: ConsoleRequest, key: tuple[object, ...], names: Sequence[str], kind: str, wanted: str
) -> Sequence[str]:
    if not kind and not wanted:
        return names
    select = partial(asyncio.to_thread, selected, names, kind, wanted)
    return await asked.shared(("selected", *key, kind, wanted), NAMES_S, select)


def _exact(wanted: str, fitting: Sequence[str], is_one: Any) -> str:
    """The one name that a filter is: a known one, or one that nothing else fits."""
    if "*" in wanted or not is_one(wanted):
        return ""
    return wanted if wanted in fitting or not fitting else ""


def _is_object(text: str) -> bool:
    kind, _, rest = text.partition(":")
    whole = kind in OBJECTS and bool(rest) and (kind == "nhi" or all(rest.partition("/")))
    return whole and not fault_in_object(text) and named_object(text) == text


# --- the matrix -------------------------------------------------------------------------------------------------------


async def _matrix(
    asked: ConsoleRequest, view: AccessView, who: Sequence[str], what: Sequence[str]
) -> Mapping[str, Any]:
    height, width = CASBIN_MATRIX if view.now.engine.asks_casbin else MATRIX
    down = Paging.of(len(who), asked.query, size=height)
    across = Paging.of(len(what), FormFields((("page", asked.query.text("across")),)), size=width)
    principals = who[down.first : down.first + min(down.size, 2 * height)]
    objects = what[across.first : across.first + width]
    rows = await view.table(principals, objects)
    disabled = _disabled(asked, principals)
    return {
        "view": "matrix",
        "columns": [_column(asked, view, name) for name in objects],
        "groups": [{"name": name, "columns": len(list(same))} for name, same in groupby(map(_server, objects))],
        "rows": [
            {"principal": name, "disabled": disabled.get(name), "cells": cells}
            for name, cells in zip(principals, rows, strict=True)
        ],
        "paging": down.plain(),
        "across": across.plain(),
    }


def _column(asked: ConsoleRequest, view: AccessView, obj: str) -> Mapping[str, Any]:
    name = obj.partition(":")[2]
    short = name if obj.startswith("nhi:") else name.partition("/")[2]
    return {"object": obj, "name": short, "action": view.question(obj).action, "off": _off(asked, view, obj)}


def _server(obj: str) -> str:
    """What columns of neighbours have in common: the kind and the server."""
    kind, _, rest = obj.partition(":")
    return f"{kind}:{rest.partition('/')[0]}" if kind != "nhi" else kind


# --- one principal, one object ----------------------------------------------------------------------------------------


async def _of_principal(
    asked: ConsoleRequest, view: AccessView, principal: str, objects: Sequence[str], key: tuple[object, ...]
) -> Mapping[str, Any]:
    show = _show(asked.query, single=len(objects) == 1)
    if show == "granted":
        held = await asyncio.to_thread(view.granted_objects, principal)
        if held is not None:
            objects = [name for name in objects if name in held]
    states = await _states(asked, (*key, "of", principal), view, objects, partial(view.objects_of, principal))
    listed = _listed(asked.query, states, show)
    chain = view.chain(principal)
    known, nearest = asked.app.known_principal(principal)
    return {
        **_list(asked, view, listed, show, len(objects)),
        "view": "objects",
        "rows": [{**view.cell(principal, name), "off": _off(asked, view, name)} for name in listed["rows"]],
        "name": principal,
        "known": known,
        "nearest": nearest or None,
        "disabled": _disabled(asked, [principal]).get(principal),
        "groups": sorted(view.now.engine.roles_of(chain[0])),
        "open": await asyncio.to_thread(view.open_objects, principal),
    }


async def _of_object(
    asked: ConsoleRequest, view: AccessView, obj: str, principals: Sequence[str], key: tuple[object, ...]
) -> Mapping[str, Any]:
    show = _show(asked.query, single=len(principals) == 1)
    if show == "granted":
        held = await asked.shared(
            ("granted", *key, view.via, view.action, obj),
            ANSWERS_S,
            partial(asyncio.to_thread, view.granted_principals, obj),
        )
        if held is not None:
            principals = [name for name in principals if name in held]
    states = await _states(asked, (*key, "on", obj), view, principals, partial(view.principals_of, obj))
    listed = _listed(asked.query, states, show)
    disabled = _disabled(asked, listed["rows"])
    return {
        **_list(asked, view, listed, show, len(principals)),
        "view": "principals",
        "rows": [{**view.cell(name, obj), "disabled": disabled.get(name)} for name in listed["rows"]],
        "name": obj,
        "known": view.now.has(view.question(obj)),
        "off": _off(asked, view, obj),
        "groups": sorted(view.now.engine.source.sets.closure((obj,))),
        "open": await asyncio.to_thread(view.open_principals, obj),
    }


async def _states(
    asked: ConsoleRequest, key: tuple[object, ...], view: AccessView, names: Sequence[str], answers: Any
) -> Sequence[tuple[str, PossibleAnswer]]:
    """The answers for as many names as one view has; many are shared by viewers for a moment."""
    names = names[: view.most]
    if len(names) <= 200:
        found: Sequence[tuple[str, PossibleAnswer]] = await answers(names)
        return found
    about = ("answers", *key, view.via, view.action, len(names), names[0], names[-1])
    return await asked.shared(about, ANSWERS_S, partial(answers, names))


def _show(query: FormFields, *, single: bool) -> str:
    return query.choice("show", SHOWN, "all" if single else "granted")


def _listed(query: FormFields, states: Sequence[tuple[str, PossibleAnswer]], show: str) -> Mapping[str, Any]:
    wanted = STATES[:-1] if show == "granted" else STATES if show == "all" else (show,)
    return paged([name for name, state in states if state in wanted], query)


def _list(
    asked: ConsoleRequest, view: AccessView, listed: Mapping[str, Any], show: str, total: int
) -> Mapping[str, Any]:
    return {
        "paging": listed["paging"],
        "show": show,
        "shown": list(SHOWN),
        "looked_at": min(total, view.most),
        "more": max(0, total - view.most),
    }


def _disabled(asked: ConsoleRequest, names: Sequence[str]) -> Mapping[str, str]:
    """Why principals are disabled, by name."""
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
    """What is in a role or a set, what it is in, and the rules that name it."""
    name, now = asked.query.text("name", most=1024), asked.app.desk.live.current
    if not name.startswith(("role:", "set:")):
        raise ConsoleFault(400, "name: write role:<name> or set:<name>")
    key = "group", now.engine.revision, id(now), name
    found = await asked.shared(
        key, NAMES_S, partial(asyncio.to_thread, _group, asked.app.desk.live.current.engine, name)
    )
    if not (found["members"] or found["containers"] or found["rules"]):
        raise ConsoleFault(404, f"no row names {name}")
    return {**found, **paged(found["members"], asked.query), "members": len(found["members"]), "name": name}


def _group(engine: Any, name: str) -> Mapping[str, Any]:
    source = engine.source
    links = (source.sets,) if name.startswith("set:") else (source.domains.values() or (source.roles,))
    members = sorted({member for one in links for member in one.members(name)})
    direct = {member for one in links for member, above in one.parents.items() if name in above}
    rules = [
        rule_data(rule, csv_row(rule)) for rule, _ in zip(engine.rules_of(name), range(MAX_GROUP_RULES), strict=False)
    ]
    return {
        "members": [{"name": member, "is_direct": member in direct} for member in members],
        "containers": sorted({above for one in links for above in one.closure((name,))}),
        "rules": rules,
    }
