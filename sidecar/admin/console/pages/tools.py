"""Shows servers and agents, and their tools with their pins; switches tools off and on."""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from sidecar.admin.console.live import watched
from sidecar.admin.console.marked_text import json_pieces
from sidecar.admin.console.patches import patch_of
from sidecar.admin.console.registry import StreamEvent, action, page, stream
from sidecar.admin.console.request import ConsoleFault, ConsoleRequest, matches, paged
from sidecar.admin.console.side_by_side import side_by_side
from sidecar.errors import Refusal
from sidecar.gateway.kill_switch import SwitchEntry, object_of
from sidecar.gateway.snapshot import Service, Snapshot
from sidecar.settings.reading import read_bounded
from sidecar.settings.timestamps import rfc3339
from sidecar.upstreams.agents import AgentUpstream
from sidecar.upstreams.mcp.pin_review import PINNED, ReviewedTool, approved, member_lines, review_of, reviewed
from sidecar.upstreams.mcp.pins import MEMBERS, Pins
from sidecar.upstreams.mcp.pins_file import MAX_PINS_BYTES, PINS_FILE, file_of

CARD_S, CARD_SHARED_S = 2.0, 5.0
MAX_LINES: Final = 400  # of one member of a definition
MAX_PATCH: Final = 400_000  # characters
SPANS_S: Final = {"15 minutes": 900, "1 hour": 3_600, "8 hours": 28_800, "1 day": 86_400, "7 days": 604_800}
STATES: Final = ("changed", "new", "gone", "quarantined", "hidden", "off", "pinned")
KINDS: Final = ("tools", "prompts", "resources")
_WORST: Final = ("offline", "degraded", "ready")


@page("tools", title="Tools", template="tools.html")
async def tools(asked: ConsoleRequest) -> Mapping[str, Any]:
    """Servers and agents, those that need attention first."""
    wanted = asked.query.text("name")
    told = (await asked.operate("GET", "/api/upstreams"))["upstreams"]
    if asked.is_of_worker:
        return {"upstreams": told}
    others = [one["upstreams"] for one in await asked.of_others() if "upstreams" in one]
    rows = [_upstream_row(name, one, others) for name, one in told.items() if matches(wanted, name)]
    rows.sort(key=lambda row: (not row["attention"], row["protocol"], row["name"]))
    return {**paged(rows, asked.query), "filter": {"name": wanted}}


@stream("tools/live")
async def live(asked: ConsoleRequest) -> AsyncGenerator[StreamEvent | None]:
    async for event in watched(asked, tools, "tools", "tools_table.html"):
        yield event


def _upstream_row(name: str, own: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """One upstream, with the sums and the worst state of all workers."""
    every = [own, *(one[name] for one in others if name in one)]
    status = min((one["status"] for one in every), key=_WORST.index)
    breaker = max((one["breaker"] for one in every), key=lambda one: one["state"] != "closed")
    sums = {key: sum(one.get(key, 0) for one in every) for key in ("calls", "errors", "tool_errors", "sessions")}
    changed = {tool for one in every for tool in (*one.get("changed", ()), *one.get("new", ()), *one.get("gone", ()))}
    doubtful = {tool for one in every for tool in (*one.get("quarantined", ()), *one.get("hidden_text", ()))}
    is_of_mcp = own.get("protocol") != "a2a"
    off = len(own.get("disabled_tools", ()))
    attention = bool(
        (status == "offline" and (own["last_error"] or breaker["state"] != "closed"))
        or status == "degraded" or changed or doubtful or off or not own["enabled"]
    )  # fmt: skip
    return {
        "name": name,
        "protocol": "mcp" if is_of_mcp else "a2a",
        "status": status,
        "statuses": sorted({one["status"] for one in every}),
        "enabled": own["enabled"],
        "breaker": breaker,
        **sums,
        "average_latency_ms": own["average_latency_ms"],
        "last_error": max((one for one in every), key=lambda one: one["last_error_at"] or "")["last_error"],
        "last_health_check": own["last_health_check"],
        "listed_at": own.get("listed_at"),
        "tools": own.get("tools"),
        "pins": own.get("pins"),
        "pinned": own.get("pinned"),
        "changed": len(changed),
        "doubtful": len(doubtful),
        "off": off,
        "attention": attention,
    }


@page("tools/upstreams/{name}", title="Tools", template="tools_upstream.html")
async def upstream(asked: ConsoleRequest) -> Mapping[str, Any]:
    """One server with its tools, prompts and resources, or one agent with its card."""
    name, now = asked.parts["name"], asked.app.desk.live.current
    told = await asked.operate("GET", f"/api/upstreams/{quote(name, safe='')}")
    about = {"name": name, "upstream": told, "done": asked.query.text("done"), "spans": list(SPANS_S)}
    if agent := now.agents.get(name):
        return {**about, "kind": "agent", **await _card_of(asked, agent)}
    kind = asked.query.choice("kind", KINDS, "tools")
    state, wanted = asked.query.choice("state", STATES), asked.query.text("tool")
    service, off = now.services[name], _switched_off(asked)
    about |= {"server_off": _switch(off.get(object_of(name))), "filter": {"kind": kind, "state": state, "tool": wanted}}
    if kind != "tools":
        listed = [{"name": one} for one in told["discovered"][kind] if matches(wanted, one)]
        return {**about, "kind": "server", **paged(listed, asked.query), "states": list(STATES), "approval": None}
    pins = now.pins.servers.get(name)
    rows = [_tool_row(one, service, now, off, told) for one in reviewed(service.catalogue.tools, pins or {})]
    chosen = [row for row in rows if matches(wanted, row["name"]) and (not state or state in row["states"])]
    chosen.sort(key=lambda row: (not row["attention"], row["name"]))
    approval = None
    if asked.query.text("approve"):
        approval = await _approval(asked, service, reviewed(service.catalogue.tools, pins or {}))
    return {**about, "kind": "server", **paged(chosen, asked.query), "states": list(STATES), "approval": approval}


def _tool_row(
    one: ReviewedTool, service: Service, now: Snapshot, off: Mapping[str, SwitchEntry], told: Mapping[str, Any]
) -> Mapping[str, Any]:
    is_pinned_server = service.name in now.pins.servers
    status = one.status if is_pinned_server else "changed" if one.name in told["changed"] else "not pinned"
    if not is_pinned_server and one.name in told["new"]:
        status = "new"
    tool, entry = one.tool, off.get(object_of(service.name, one.name))
    quarantined = tool.quarantine_reason if tool is not None else ""
    hidden = list(tool.hidden) if tool is not None else []
    refused = tool is not None and not now.approves(service.name, one.name, tool.definition.digest)
    marks = {"quarantined": bool(quarantined), "hidden": bool(hidden), "off": entry is not None}
    states = [status, *(mark for mark, holds in marks.items() if holds)]
    return {
        "name": one.name,
        "status": status,
        "states": states,
        "changed": list(one.changed) if is_pinned_server else told["changed"].get(one.name, []),
        "quarantined": quarantined or None,
        "hidden": hidden,
        "off": _switch(entry),
        "usable": tool is not None and not quarantined and not refused and entry is None,
        "attention": status not in (PINNED, "not pinned") or any(marks.values()),
    }


@page("tools/upstreams/{name}/tool", title="Tools", template="tools_tool.html")
async def tool(asked: ConsoleRequest) -> Mapping[str, Any]:
    """One tool: its definition, next to the pinned one if they differ, its switch, and how to approve it. Its name is
    in the query, because browsers resolve dots in a path."""
    name, now = asked.parts["name"], asked.app.desk.live.current
    service, known = now.services.get(name), asked.query.text("tool")
    if service is None:
        raise ConsoleFault(404, "no server has this name: the page Tools lists all")
    pins = now.pins.servers.get(name)
    listed, pin = service.catalogue.tools.get(known), (pins or {}).get(known)
    if listed is None and pin is None:
        why = "it lists no such tool" if service.catalogue.lists else "its list has not been read yet"
        raise ConsoleFault(404, f"{name} has no tool of this name: {why}")
    told, off = await asked.operate("GET", f"/api/upstreams/{quote(name, safe='')}"), _switched_off(asked)
    one = review_of(known, listed, pin)
    needs_pin = one.status != PINNED
    return {
        "server": name,
        "row": _tool_row(one, service, now, off, told),
        "tool": one.plain(),
        "members": await asyncio.to_thread(_members, one),
        "object": f"tool:{name}/{known}",
        "mode": told["pins"],
        "is_pinned_server": pins is not None,
        "listed_at": told["listed_at"],
        "server_off": _switch(off.get(object_of(name))),
        "approval": await _approval(asked, service, [one]) if needs_pin and pins is not None else None,
        "done": asked.query.text("done"),
        "spans": list(SPANS_S),
    }


def _members(one: ReviewedTool) -> list[Mapping[str, Any]]:
    """The members of a definition: first those that differ from the pin, as pairs of lines, then the others, as
    lines."""
    found, pinned = list[Mapping[str, Any]](), one.pin.definition if one.pin is not None else {}
    for member in MEMBERS:
        old, new = member_lines(pinned, member), member_lines(one.definition, member)
        if one.pin is not None and one.tool is not None and old != new:
            pairs = [pair._asdict() for pair in side_by_side(old, new)]
            found.append({"member": member, "pairs": pairs, "lines": None, "more": 0})
        elif lines := new or old:
            shown = [json_pieces(line) for line in lines[:MAX_LINES]]
            found.append({"member": member, "pairs": None, "lines": shown, "more": max(0, len(lines) - MAX_LINES)})
    return sorted(found, key=lambda each: each["pairs"] is None)


async def _approval(asked: ConsoleRequest, service: Service, chosen: Sequence[ReviewedTool]) -> Mapping[str, Any]:
    """The command, and the patch of pins.yaml, that approve tools as they are now."""
    now = asked.app.desk.live.current
    names = [one.name for one in chosen] if len(chosen) == 1 else []
    command = " ".join(["sidecar mcp tools", service.name, *names, "--pin"])
    is_fetched, folder = now.settings.policy.is_fetched, now.settings.policy.path
    file = f"policies/{PINS_FILE}" if is_fetched else f"{folder.name}/{PINS_FILE}"
    made = await asyncio.to_thread(_patch, folder / PINS_FILE, file, now.pins, service.name, chosen, asked.by)
    return {"command": command, "file": file, "is_fetched": is_fetched, **made}


def _patch(
    path: Path, name: str, serving: Pins, server: str, chosen: Sequence[ReviewedTool], by: str
) -> Mapping[str, Any]:
    """The patch of pins.yaml, or `why` there is none. `unfit` are the tools that cannot be pinned. Blocks."""
    none: Mapping[str, Any] = {"patch": "", "unfit": {}, "is_too_long": False}
    try:
        old = read_bounded(path, MAX_PINS_BYTES)
    except FileNotFoundError:
        old = b""
    except OSError as error:
        return {**none, "why": f"{name} cannot be read: {error.strerror}"}
    if (sha256(old).hexdigest() if old else "") != serving.source:
        return {**none, "why": f"{name} differs from the pins that serve: reload first"}
    pins, unfit = approved(serving.servers.get(server, {}), chosen, at=rfc3339(int(time.time())), by=by)
    patch = patch_of(name, old.decode("utf-8", "replace"), file_of({**serving.servers, server: pins}))
    is_too_long = len(patch) > MAX_PATCH
    return {"patch": "" if is_too_long else patch, "unfit": unfit, "is_too_long": is_too_long, "why": ""}


async def _card_of(asked: ConsoleRequest, agent: AgentUpstream) -> Mapping[str, Any]:
    async def read() -> Mapping[str, Any]:
        async with asyncio.timeout(CARD_S):
            return await agent.cards.card()

    try:
        card = await asked.shared(("card", agent.name), CARD_SHARED_S, read)
    except (Refusal, TimeoutError) as error:
        why = error.detail if isinstance(error, Refusal) else "its card did not come in time"
        return {"card": None, "card_fault": why or "its card cannot be read", **paged([], asked.query)}
    named = {key: card[key] for key in ("name", "description", "version", "provider", "capabilities") if key in card}
    interfaces = card.get("supportedInterfaces", [])
    return {
        "card": {**named, "interfaces": interfaces},
        "card_fault": None,
        **paged(card.get("skills", []), asked.query),
    }


# --- switches ---------------------------------------------------------------------------------------------------------


@action("tools/switch")
async def switch(asked: ConsoleRequest) -> str:
    """Switches a tool, or without `tool` the whole server, off or on at all replicas."""
    form = asked.form
    server, name, verb = form.text("server"), form.text("tool"), form.choice("verb", ("disable", "enable"))
    if not verb:
        raise ConsoleFault(400, "verb: disable or enable")
    order: dict[str, Any] = {"tool": name} if name else {}
    if verb == "disable":
        order |= {"reason": form.text("reason"), "until": until_in(asked)}
    answer = await asked.operate("POST", f"/api/upstreams/{quote(server, safe='')}/{verb}", order)
    told = "off" if verb == "disable" else "on" if answer["changed"] else "was-on"
    place, of_tool = f"tools/upstreams/{quote(server, safe='')}", {"tool": name} if name else {}
    return f"{place}{'/tool' if name else ''}?{urlencode({**of_tool, 'done': told})}"


def until_in(asked: ConsoleRequest) -> str | None:
    """The time at which a switch ends automatically, by the field `span` of the form; None for never."""
    span = asked.form.choice("span", list(SPANS_S))
    return rfc3339(int(time.time()) + SPANS_S[span]) if span else None


def _switched_off(asked: ConsoleRequest) -> Mapping[str, SwitchEntry]:
    return {entry.principal: entry for entry in asked.app.switched_off()}


def _switch(entry: SwitchEntry | None) -> Mapping[str, Any] | None:
    if entry is None:
        return None
    times = {name: None if at is None else rfc3339(at) for name, at in (("until", entry.until), ("since", entry.since))}
    return {"reason": entry.reason or None, "by": entry.by or None, **times}
