"""Shows disabled principals and switched-off tools, and disables and enables principals: the kill switch."""

from collections.abc import AsyncGenerator, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from sidecar.admin.console.live import watched
from sidecar.admin.console.pages.tools import SPANS_S, until_in
from sidecar.admin.console.registry import StreamEvent, action, page, stream
from sidecar.admin.console.request import ConsoleFault, ConsoleRequest, matches, paged
from sidecar.admin.routes import plain_switch


@page("switches", title="Kill switch", template="switches.html")
async def switches(asked: ConsoleRequest) -> Mapping[str, Any]:
    wanted = asked.query.text("name", most=1024)
    disabled = (await asked.operate("GET", "/api/principals"))["disabled"]
    off = [plain_switch(entry) for entry in asked.app.switched_off()]
    rows = [{**one, "is_object": False} for one in disabled] + [{**one, "is_object": True} for one in off]
    return {
        **paged([row for row in rows if matches(wanted, row["principal"], row["reason"] or "")], asked.query),
        "filter": {"name": wanted},
        "ask": {name: asked.query.text(name, most=1024) for name in ("principal", "reason", "span", "nearest")},
        "done": {name: asked.query.text(name, most=1024) for name in ("disabled", "enabled")},
        "spans": list(SPANS_S),
    }


@stream("switches/live")
async def live(asked: ConsoleRequest) -> AsyncGenerator[StreamEvent | None]:
    async for event in watched(asked, switches, "switches", "switches_table.html"):
        yield event


@action("switches/disable")
async def disable(asked: ConsoleRequest) -> str:
    """Disables a principal at all replicas. For an unknown name, the page asks again first."""
    form = asked.form
    principal, reason = form.text("principal", most=1024), form.text("reason")
    order = {"reason": reason, "until": until_in(asked), "if_known": not form.text("anyway")}
    try:
        await asked.operate("POST", f"/api/principals/{quote(principal, safe=':')}/disable", order)
    except ConsoleFault as fault:
        if fault.facts.get("reason") != "principal-unknown":
            raise
        again = {"principal": principal, "reason": reason, "span": form.text("span")}
        return f"switches?{urlencode({**again, 'nearest': fault.facts.get('nearest') or '-'})}"
    return f"switches?{urlencode({'disabled': principal})}"


@action("switches/enable")
async def enable(asked: ConsoleRequest) -> str:
    principal = asked.form.text("principal", most=1024)
    await asked.operate("POST", f"/api/principals/{quote(principal, safe=':')}/enable")
    return f"switches?{urlencode({'enabled': principal})}"
