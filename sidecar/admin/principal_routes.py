"""Admin routes of the kill switch: principals, tools and servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
from aiohttp import web

from sidecar.admin.requests import body_of
from sidecar.errors import Refusal
from sidecar.gateway.kill_switch import SwitchEntry, SwitchError
from sidecar.settings.timestamps import rfc3339, seconds_of


async def order_of(request: web.BaseRequest) -> tuple[str, float | None, bool]:
    """Reason and end of `{"reason": "...", "until": "..."}`, and whether only a known name is accepted (`"if_known":
    true`). All members are optional. Raises SwitchError."""
    order = await _order_of(request, ("reason", "until"), flag="if_known")
    return order["reason"] or "", _moment(order["until"]), order["if_known"] is True


async def tool_order_of(request: web.BaseRequest) -> tuple[str, str, float | None]:
    """As `order_of`, with the `tool` first; "" is the whole server. Raises SwitchError."""
    order = await _order_of(request, ("tool", "reason", "until"))
    return order["tool"] or "", order["reason"] or "", _moment(order["until"])


async def reset_order_of(request: web.BaseRequest) -> tuple[dict[str, str], bool]:
    """`principal` and `limit` of an order to reset limits, which are optional, and `if_known` as in `order_of`. Raises
    SwitchError."""
    order = await _order_of(request, ("principal", "limit"), flag="if_known")
    said = {word: order[word] for word in ("principal", "limit") if order[word] is not None}
    return said, order["if_known"] is True


async def bare_order_of(request: web.BaseRequest) -> None:
    """Check that an order has no members. Raises SwitchError."""
    await _order_of(request, ())


async def _order_of(request: web.BaseRequest, members: Sequence[str], flag: str = "") -> dict[str, Any]:
    """The strings and the flag of an order, all optional. Raises SwitchError."""
    try:
        body = await body_of(request)
    except Refusal as refusal:
        raise SwitchError(refusal.detail, 400) from None
    try:
        order = orjson.loads(body) if body.strip() else {}
    except orjson.JSONDecodeError:
        raise SwitchError("the body is not JSON", 400) from None
    flags = {flag} - {""}
    if not isinstance(order, dict) or not order.keys() <= {*members, *flags}:
        form = ", ".join([*(f'"{member}": "..."' for member in members), *(f'"{one}": true' for one in flags)])
        raise SwitchError(f"the body is {{{form}}}" + (", and all may be missing" if members else ""), 400)
    given = {member: order.get(member) for member in members}
    if not all(isinstance(value, str | None) for value in given.values()):
        raise SwitchError(f"{', '.join(members)} are strings", 400)
    if not all(isinstance(order.get(one, False), bool) for one in flags):
        raise SwitchError(f"{flag} is true or false", 400)
    return {**given, **{one: order.get(one, False) for one in flags}}


def _moment(until: str | None) -> float | None:
    try:
        return None if until is None else seconds_of(until)
    except ValueError as error:
        raise SwitchError(f"until: {error}", 400) from None


def plain(entry: SwitchEntry) -> dict[str, Any]:
    """An entry in JSON values."""
    return {
        "principal": entry.principal,
        "reason": entry.reason or None,
        "until": None if entry.until is None else rfc3339(entry.until),
        "since": None if entry.since is None else rfc3339(entry.since),
        "by": entry.by or None,
        "source": entry.source,
    }
