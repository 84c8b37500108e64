"""Shows what is happening now: calls and refusals per minute, the state of all parts, and what needs attention."""

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from cryptography import x509

from sidecar.admin.console.registry import StreamEvent, page, stream
from sidecar.admin.console.request import ConsoleFault, ConsoleRequest
from sidecar.gateway.approvals import ApprovalState
from sidecar.settings.timestamps import rfc3339
from sidecar.storage import RecordStoreOut

LOOK_S: Final = 0.8
SLOW_S: Final = 5.0
"""The interval at which limits are read, which can take many reads of the store."""
MINUTE_S: Final = 60
NEAR_END: Final = 0.8
ENDS_WITHIN_S: Final = 7 * 86_400.0
MAX_ENDING: Final = 5
"""The maximum number of certificates, grants, keys and limits, each, and of tools of a kind, that are named."""
SPANS: Final = {"15m": 900, "1h": 3_600}
_LOOKS: Final = itertools.count()
_STATES: Final = ("ready", "degraded", "offline")
_BREAKERS: Final = ("closed", "half_open", "open")
_SUMS: Final = ("calls", "successes", "errors", "tool_errors")
_OF_PRINCIPALS: Final = (" principal is disabled", " principals are disabled")


class Attention(NamedTuple):
    """Something that an operator should look at. `tone` is how urgent it is, `path` the page about it, "" for none."""

    tone: str
    text: str
    path: str = ""


@page("now", title="Now", template="now.html")
async def now(asked: ConsoleRequest) -> Mapping[str, Any]:
    """The state of all workers together; for another worker, the state of this one."""
    if asked.is_of_worker:
        return await _part(asked)
    span = asked.query.choice("span", tuple(SPANS), "15m")
    _, whole = await _shared(asked)
    return {**whole, "span": span, "spans": list(SPANS), "traffic": _per_minute(whole["series"], SPANS[span])}


@stream("now/live")
async def live(asked: ConsoleRequest) -> AsyncGenerator[StreamEvent | None]:
    """Every 0.8 s, those that have changed: the figures, the newest points of the chart, the state of the parts."""
    before: Mapping[str, object] = {}
    while True:
        number, whole = await _shared(asked)
        points = _per_minute(whole["series"], 2 * whole["series"]["step_s"])
        events = {
            "figures": StreamEvent("figures", whole, "now_figures.html", ("now figures", number)),
            "points": StreamEvent("points", points),
            "parts": StreamEvent("parts", whole, "now_parts.html", ("now parts", number)),
        }
        shown: Mapping[str, object] = {
            "figures": (whole["minute"], whole["state"]),
            "points": points,
            "parts": (whole["attention"], whole["upstreams"], whole["store"], whole["evidence"], whole["schedules"]),
        }
        fresh = [name for name in events if shown[name] != before.get(name)]
        before = shown
        for name in fresh:
            yield events[name]
        if not fresh:
            yield None
        await asyncio.sleep(LOOK_S)


async def _shared(asked: ConsoleRequest) -> tuple[int, Mapping[str, Any]]:
    """The number of a look at the state, and the state, shared by all viewers of a moment."""

    async def look() -> tuple[int, Mapping[str, Any]]:
        return next(_LOOKS), await _whole(asked)

    return await asked.shared("now", LOOK_S / 2, look)


async def _part(asked: ConsoleRequest) -> Mapping[str, Any]:
    """The state of this worker."""
    return {
        "status": await asked.operate("GET", "/status"),
        "series": asked.app.traffic(),
        "limits": await asked.shared("now limits", SLOW_S, partial(_full_limits, asked)),
        "ending": _ending(asked, time.time()),
        "disabled": (await asked.operate("GET", "/api/principals"))["disabled"],
        "approvals": await _waiting(asked),
    }


async def _waiting(asked: ConsoleRequest) -> int:
    """The number of calls that wait for a person, which is the same at all replicas on one store."""
    try:
        _, total = await asked.app.approvals.page(ApprovalState.WAITING, 1, 0)
    except RecordStoreOut:  # the state shows it
        return 0
    return total


async def _whole(asked: ConsoleRequest) -> Mapping[str, Any]:
    own, others = await asyncio.gather(_part(asked), asked.of_others("now"))
    parts = [own, *others]
    status, series = own["status"], _added([part["series"] for part in parts])
    upstreams = _upstreams([part["status"]["upstreams"] for part in parts])
    minute = {name: column[-1] for name, column in _per_minute(series, MINUTE_S)["columns"].items()}
    return {
        "state": {
            "status": status["status"],
            "version": status["version"],
            "mode": status["policy"]["mode"],
            "revision": status["policy"]["revision"],
            "rules": sum(status["policy"]["rules"].values()),
            "loaded_at": status["policy"]["loaded_at"],
            "started_at": status["started_at"],
            "sessions": sum(part["status"]["sessions"] for part in parts),
            "workers": status.get("workers", {}),
        },
        "minute": minute,
        "series": series,
        "attention": [one._asdict() for one in _attention(parts, upstreams)],
        "upstreams": upstreams,
        "store": status["store"],
        "evidence": status["evidence"],
        "issuers": status["issuers"],
        "schedules": status["schedules"],
    }


# --- numbers ----------------------------------------------------------------------------------------------------------


def _added(all_series: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The sums of the series of all workers, time by time."""
    first, times = all_series[0], sorted({at for series in all_series for at in series["at"]})
    places = {at: place for place, at in enumerate(times)}
    by_status = {status: [0] * len(times) for status in first["by_status"]}
    for series in all_series:
        for status, counts in series["by_status"].items():
            for at, count in zip(series["at"], counts, strict=True):
                by_status[status][places[at]] += count
    return {"step_s": first["step_s"], "at": times, "by_status": by_status}


def _per_minute(series: Mapping[str, Any], span_s: int) -> Mapping[str, Any]:
    """For each time of the last `span_s` seconds, the number of requests that ended in the minute before, and of those
    that were denied, over a limit, or failed."""
    steps, by_status = MINUTE_S // series["step_s"], series["by_status"]
    kept = span_s // series["step_s"]
    found = {
        "calls": _sums([sum(counts) for counts in zip(*by_status.values(), strict=True)], steps),
        "denied": _sums(by_status["permission_denied"], steps),
        "limited": _sums(by_status["rate_limited"], steps),
        "failed": _sums(by_status["error"], steps),
    }
    return {"at": series["at"][-kept:], "columns": {name: column[-kept:] for name, column in found.items()}}


def _sums(counts: Sequence[int], steps: int) -> list[int]:
    """For each index, the sum of the last `steps` counts."""
    total, sums = 0, list[int]()
    for place, count in enumerate(counts):
        total += count - (counts[place - steps] if place >= steps else 0)
        sums.append(total)
    return sums


def _upstreams(by_worker: Sequence[Mapping[str, Mapping[str, Any]]]) -> list[Mapping[str, Any]]:
    """Each upstream, with the worst state, the newest error and the sums of calls of all workers."""
    found = list[Mapping[str, Any]]()
    for name in by_worker[0]:
        seen = [known[name] for known in by_worker if name in known]
        worst = max(seen, key=lambda one: _STATES.index(one["status"]))
        breaker = max((one["breaker"] for one in seen), key=lambda one: _BREAKERS.index(one["state"]))
        troubled = max(seen, key=lambda one: one["last_error_at"] or "")
        latencies = [(one["average_latency_ms"], one["calls"]) for one in seen if one["average_latency_ms"] is not None]
        weight = sum(calls for _, calls in latencies)
        found.append(
            {
                **seen[0],
                **{key: sum(one[key] for one in seen) for key in _SUMS},
                "name": name,
                "kind": "A2A" if seen[0].get("protocol") == "a2a" else "MCP",
                "status": worst["status"],
                "breaker": breaker,
                "last_error": troubled["last_error"],
                "last_error_at": troubled["last_error_at"],
                "average_latency_ms": round(sum(ms * calls for ms, calls in latencies) / weight, 3) if weight else None,
            }
        )
    return found


# --- what needs attention ---------------------------------------------------------------------------------------------


def _attention(parts: Sequence[Mapping[str, Any]], upstreams: Sequence[Mapping[str, Any]]) -> Iterator[Attention]:
    """What an operator should look at, the most urgent first."""
    found = [*_of_state(parts), *(one for upstream in upstreams for one in _of_upstream(upstream)), *_of_ends(parts)]
    tones = ("bad", "warn", "plain")
    yield from sorted(dict.fromkeys(found), key=lambda one: tones.index(one.tone))


def _of_state(parts: Sequence[Mapping[str, Any]]) -> Iterator[Attention]:
    own = parts[0]["status"]
    for part in parts:
        if not part["status"]["evidence"]["up"]:
            yield Attention("bad", "The audit cannot be written: what needs it is refused", "audit")
        for told in part["status"].get("reasons", ()):
            yield Attention("bad", told, "policy")
        for told in part["status"]["banners"]:
            if not told.endswith(_OF_PRINCIPALS):  # each of them is named below
                yield Attention("warn", told, "policy")
    if count := max(part["approvals"] for part in parts):
        told = "1 call waits" if count == 1 else f"{count} calls wait"
        yield Attention("warn", f"{told} for a person's approval", "approvals")
    for worker, state in own.get("workers", {}).items():
        if state == "out":
            yield Attention("bad", f"Worker {worker} does not answer")
    for entry in parts[0]["disabled"]:
        until = "" if entry["until"] is None else f" until {entry['until']}"
        why = "" if entry["reason"] is None else f": {entry['reason']}"
        query = urlencode({"principal": entry["principal"]})
        yield Attention("warn", f"{entry['principal']} is disabled{until}{why}", f"access?{query}")
    for name, schedule in own["schedules"].items():
        if schedule["last_why"]:
            yield Attention(
                "warn", f"The last run of the schedule {name} did not succeed: {schedule['last_why']}", "agents"
            )
    for issuer, state in own["issuers"].items():
        if not state["usable"]:
            yield Attention("bad", f"There are no usable keys of {issuer}", "policy")


def _of_upstream(one: Mapping[str, Any]) -> Iterator[Attention]:
    name, path = one["name"], "tools?" + urlencode({"server": one["name"]})
    if one["breaker"]["state"] != "closed":
        yield Attention(
            "bad", f"The breaker of {name} is {one['breaker']['state'].replace('_', ' ')}: {one['last_error']}", path
        )
    elif one["status"] != "ready" and one["last_error"]:  # without an error, it has not been asked yet
        tone = "bad" if one["status"] == "offline" else "warn"
        yield Attention(tone, f"{name} is {one['status']}: {one['last_error']}", path)
    if not one["enabled"]:
        yield Attention("warn", f"{name} is switched off", path)
    for tool in one.get("disabled_tools", ()):
        yield Attention("plain", f"The tool {tool} of {name} is switched off", path)
    for what, tone, tools in (
        ("differs from its pin", "bad" if one.get("pins") == "require" else "warn", one.get("changed", ())),
        ("is new and has no pin", "warn", one.get("new", ())),
        ("is pinned and gone", "warn", one.get("gone", ())),
        ("has hidden characters in its texts", "bad", one.get("hidden_text", ())),
        ("is quarantined", "warn", one.get("quarantined", ())),
    ):
        for tool in sorted(tools)[:MAX_ENDING]:
            yield Attention(tone, f"The tool {tool} of {name} {what}", path)


def _of_ends(parts: Sequence[Mapping[str, Any]]) -> Iterator[Attention]:
    """Limits that are nearly spent, and grants, keys and certificates that end soon."""
    fullest = {(one["limit"], one["counted_for"]): one for part in parts for one in part["limits"]}
    for one in list(fullest.values())[:MAX_ENDING]:
        whose = f" of {one['counted_for']}" if one["counted_for"] else ""
        query = urlencode({"limit": one["limit"]})
        unit = f" {one['unit']}" if one["unit"] else ""
        told = f"{one['limit']}{whose}: {one['used']} of {one['most']}{unit} used"
        yield Attention("warn" if one["remaining"] else "bad", told, f"limits?{query}")
    for one in parts[0]["ending"]:
        yield Attention("plain", f"{one['what']} ends at {one['at']}", one["path"])


async def _full_limits(asked: ConsoleRequest) -> Sequence[Mapping[str, Any]]:
    """The limits that this process knows, and that are used to NEAR_END or more."""
    try:
        limits = (await asked.operate("GET", "/api/limits"))["limits"]
    except ConsoleFault:  # the store is unavailable, which the state shows
        return []
    return [one for one in limits if one["used"] >= NEAR_END * one["most"]]


def _ending(asked: ConsoleRequest, now_s: float) -> Sequence[Mapping[str, Any]]:
    """Certificates, grants and API keys that end within a week, at most MAX_ENDING of each, the next first."""
    live = asked.app.desk.live.current
    certificates = [
        (f"The certificate of {where}", _ends_at(tls.pair[1]), "")
        for where, tls in (("the data listener", live.tls), ("the decision listener", live.pdp_tls))
        if tls is not None
    ]
    rules = [(f"The grant {rule.id} of {rule.subject}", rule.expires_at or 0.0, "policy") for rule in live.ending]
    keys = [(f"The API key {key_id} of {whose}", end_s, "") for key_id, whose, end_s in live.identity.keys_ending()]
    found = list[Mapping[str, Any]]()
    for ends in (certificates, rules, keys):
        soon = sorted((end_s, what, path) for what, end_s, path in ends if now_s < end_s < now_s + ENDS_WITHIN_S)
        found += [{"what": what, "at": rfc3339(end_s), "path": path} for end_s, what, path in soon[:MAX_ENDING]]
    return found


@lru_cache(maxsize=4)
def _ends_at(pem: bytes) -> float:
    """The end of the first certificate of a PEM file, in seconds since the epoch."""
    return x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp()
