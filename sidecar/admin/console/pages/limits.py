"""Shows the use of each limit, the most used first, and resets the limits of one principal."""

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from itertools import takewhile
from typing import Any
from urllib.parse import urlencode

from sidecar.admin.console.form_fields import FormFields
from sidecar.admin.console.live import watched
from sidecar.admin.console.registry import StreamEvent, action, page, stream
from sidecar.admin.console.request import ConsoleFault, ConsoleRequest, matches, paged
from sidecar.admin.models import CALLER, OBJECT
from sidecar.gateway.snapshot import BUDGETS_FILE
from sidecar.limits import rule_label
from sidecar.limits.plan import KINDS
from sidecar.vocabulary import RuleRef

WARN_FROM, SPENT_FROM = 0.8, 1.0
_NAMED_CALLER, _NAMED_OBJECT = re.compile(str(CALLER["pattern"])), re.compile(str(OBJECT["pattern"]))


@page("limits", title="Limits", template="limits.html")
async def limits(asked: ConsoleRequest) -> Mapping[str, Any]:
    """The limits that the query selects. `reset` has the principal and the limit for which the page shows the button of
    a reset."""
    query = asked.query
    wanted = {name: query.text(name, most=1024) for name in ("principal", "object", "limit")}
    kind = query.choice("kind", KINDS)
    try:
        found = await asked.operate("GET", "/api/limits", query=_asked_of_api(wanted))
    except ConsoleFault as fault:
        if asked.is_of_worker or fault.status not in (400, 503):
            raise
        found = {"store": None, "limits": [], "more": False, "fault": fault.told}
    if asked.is_of_worker:
        return {"limits": found["limits"], "more": found["more"]}
    others = [one for one in await asked.of_others() if "limits" in one]
    shown = _united(found["limits"], others)
    if kind or any(wanted.values()):
        shown = [one for one in shown if _is_wanted(one, wanted, kind)]
    page_of = paged(shown, query)
    places = {rule_label(rule.id): rule for rule in asked.app.desk.live.current.limited}
    return {
        "rows": [_row(one, places.get(one["limit"])) for one in page_of["rows"]],
        "paging": page_of["paging"],
        "store": found["store"],
        "more": found["more"] or any(one["more"] for one in others),
        "fault": found.get("fault"),
        "filter": {**wanted, "kind": kind},
        "kinds": list(KINDS),
        "spent": (spent := _from(SPENT_FROM, shown)),
        "nearly_spent": _from(WARN_FROM, shown) - spent,
        "reset": _reset_in(query),
        "done": query.text("done", most=2048),
    }


@stream("limits/live")
async def live(asked: ConsoleRequest) -> AsyncGenerator[StreamEvent | None]:
    async for event in watched(asked, limits, "limits", "limits_table.html"):
        yield event


@action("limits/reset")
async def reset(asked: ConsoleRequest) -> str:
    """Resets the counters that count only one principal, like `sidecar limits reset`."""
    order = {name: asked.form.text(name, most=1024) for name in ("principal", "limit")}
    answer = await asked.operate("POST", "/api/limits/reset", {name: value for name, value in order.items() if value})
    names = answer["reset"]
    told = f"{len(names)} limits" if len(names) > 1 else names[0] if names else "nothing"
    return f"limits?{urlencode({'principal': order['principal'], 'done': told})}"


def _asked_of_api(wanted: Mapping[str, str]) -> Mapping[str, str]:
    """The fields for the admin API, which takes whole names. Parts of names filter its rows afterwards."""
    named = {
        "principal": wanted["principal"] if _NAMED_CALLER.match(wanted["principal"]) else "",
        "object": wanted["object"] if _NAMED_OBJECT.match(wanted["object"]) else "",
    }
    if wanted["object"] and not named["object"]:
        named["object"] = f"tool:{wanted['object']}"
    if "*" in wanted["limit"]:
        named["limit"] = wanted["limit"]
    return {name: value for name, value in named.items() if value}


def _is_wanted(row: Mapping[str, Any], wanted: Mapping[str, str], kind: str) -> bool:
    if kind and row["kind"] != kind:
        return False
    if wanted["limit"] and "*" not in wanted["limit"] and not matches(wanted["limit"], row["limit"]):
        return False
    principal = wanted["principal"]
    return bool(_NAMED_CALLER.match(principal)) or matches(principal, row["counted_for"] or "")


def _united(own: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """The limits of all workers, the most used first. All workers read the same counters, but each knows only its own
    callers."""
    if not others:
        return own
    known = {(one["limit"], one["counted_for"]): one for other in others for one in other["limits"]}
    known |= {(one["limit"], one["counted_for"]): one for one in own}
    return sorted(known.values(), key=lambda one: (-_share(one), one["limit"], one["counted_for"] or ""))


def _from(share: float, shown: Sequence[Mapping[str, Any]]) -> int:
    """The number of limits that are used to this share or more, if the most used come first."""
    return sum(1 for _ in takewhile(lambda one: _share(one) >= share, shown))


def _share(one: Mapping[str, Any]) -> float:
    return float(one["used"] / one["most"])


def _row(one: Mapping[str, Any], rule: RuleRef | None) -> Mapping[str, Any]:
    """A limit with its share, and its file and line: that of a rule is in the row of the rule, others are in
    budgets.yaml. Those of agents are in sidecar.yaml, to which there is no link."""
    share = _share(one)
    tone = "bad" if share >= SPENT_FROM else "warn" if share >= WARN_FROM else "good"
    file, line = (rule.file, rule.line) if rule is not None else (BUDGETS_FILE, 0)
    if one["limit"].startswith("agents:"):
        file = ""
    return {**one, "share": round(share, 4), "tone": tone, "file": file, "line": line}


def _reset_in(query: FormFields) -> Mapping[str, str] | None:
    principal = query.text("reset", most=1024)
    return {"principal": principal, "limit": query.text("reset_limit", most=1024)} if principal else None
