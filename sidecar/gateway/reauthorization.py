"""Re-evaluates open streams and running calls when rules, credentials or time change.

They are decided again in the next pass after rules, keys or the kill switch changed, and periodically because
conditions read the time; they end when a credential or a grant ends. If nothing changed, a pass takes a few comparisons
for each. The work is done in slices, so that thousands of streams do not delay calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import is_
from typing import Final, NamedTuple

from sidecar.errors import Reason, Refusal
from sidecar.gateway.kill_switch import Disabled, KillSwitch
from sidecar.gateway.request import OpenExchanges, WatchedExchange
from sidecar.gateway.snapshot import Live, Snapshot
from sidecar.identity import check_caller
from sidecar.protocols.a2a.operations import PUSH_SET, SEND, STREAM, Operation
from sidecar.storage.deliveries import Kind, OnBehalfOf
from sidecar.vocabulary import Call, Caller, Decision, Question

LOOK_EVERY_S: Final = 1.0  # between two passes: about how long a stream may outlive its permission
REVIEW_S = 30.0  # open exchanges are decided again without a change, because conditions read `now`
REVOKED_GRACE_S = 10.0  # for a running call to finish, with `revoked_calls: finish`
SLICE_S: Final = 0.002  # of one pass, before the event loop runs other work


class RulesInForce(NamedTuple):
    """The rules that an exchange was decided under; `keys` counts changes of the issuers' keys. `_current` returns
    another object whenever one of them changed."""

    snapshot: Snapshot
    disabled: Disabled
    switched_off: Disabled
    keys: int


@dataclass(slots=True)
class Reauthorization:
    """Watches every open stream and every running call."""

    live: Live
    switch: KillSwitch
    open: OpenExchanges = field(default_factory=OpenExchanges)
    _rules: RulesInForce | None = field(default=None, init=False)

    async def look(self) -> None:
        """Checks every exchange once, and sends comments on silent streams. Other work runs between slices."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + SLICE_S
        for exchange in self.reviewed(loop.time()):
            await self._keep_alive(exchange, loop.time())
            if loop.time() >= until_s:
                await asyncio.sleep(0)
                until_s = loop.time() + SLICE_S

    def reviewed(self, mono_s: float) -> Iterator[WatchedExchange]:
        """Yields each exchange after its check; those that must end are cut off. `mono_s` is the loop's time."""
        rules, now_s = self._current(), self.live.clock()
        for exchange in [*self.open.streams, *(self.open.calls - self.open.streams)]:
            if exchange.reviewed_by is not rules or mono_s - exchange.reviewed_s >= REVIEW_S:
                exchange.reviewed_by, exchange.reviewed_s = rules, mono_s
                exchange.revoked = self._judge(exchange, rules, now_s)
            if exchange.revoked is None and exchange.until is not None and now_s >= exchange.until:
                exchange.revoked = Reason.EXPIRED
            self._cut(exchange, mono_s)
            yield exchange

    def _current(self) -> RulesInForce:
        """Returns the same object while nothing changes."""
        now = self.live.current
        rules = RulesInForce(now, self.switch.ledger.disabled, self.switch.ledger.switched_off, now.identity.generation)
        if self._rules is None or not all(map(is_, rules[:3], self._rules)) or rules.keys != self._rules.keys:
            self._rules = rules
        return self._rules

    def _judge(self, exchange: WatchedExchange, rules: RulesInForce, now_s: float) -> Reason | None:
        """Returns why the exchange must end, or None. An endless stream follows the newest rules from then on."""
        chain, call, now = exchange.caller.chain, exchange.call, rules.snapshot
        if any(each.touched_by(chain, call, now_s) for each in (rules.disabled, now.disabled) if each.entries):
            return Reason.PRINCIPAL_DISABLED
        if rules.switched_off.entries and rules.switched_off.turns_off(call, now_s):
            return Reason.TOOL_DISABLED
        if not now.identity.has_keys_of(exchange.caller):
            return Reason.BAD_CREDENTIAL
        if exchange.judged_by is not now and (doubt := _doubt(exchange, now)) is not None:
            return doubt
        if exchange.judged_by is now and exchange.until is not None and now_s >= exchange.until:
            return Reason.EXPIRED  # otherwise the rules would only report a missing grant
        if exchange.endless and exchange.judged_by is not now:
            exchange.judged_by = exchange.request.now = now  # a long stream holds no old snapshot
        decision = now.decide(chain, call, now_s)
        exchange.until = end_of(exchange.caller, decision, now)
        if decision.allowed or now.shadows(now_s):
            return None
        return decision.reason or Reason.NO_MATCHING_RULE

    def _cut(self, exchange: WatchedExchange, mono_s: float) -> None:
        """Cuts off a stream or a disabled call at once; with `revoked_calls: finish`, others after REVOKED_GRACE_S."""
        reason = exchange.revoked
        if reason is None:
            exchange.revoked_s = None
            return
        if exchange.revoked_s is None:
            exchange.revoked_s = mono_s
        bounds = self.live.current.settings.streams
        waits = not exchange.endless and reason not in (Reason.PRINCIPAL_DISABLED, Reason.TOOL_DISABLED)
        if waits and bounds.revoked_calls == "finish" and mono_s - exchange.revoked_s < REVOKED_GRACE_S:
            return
        exchange.cut_off(reason)

    async def _keep_alive(self, exchange: WatchedExchange, mono_s: float) -> None:
        """Sends a comment on a silent stream, which detects disconnected readers and prevents proxies from closing
        it."""
        outlet = exchange.outlet
        if outlet is None or (outlet.shared and not exchange.endless):  # a shared stream sends its own comments
            return
        if outlet.bytes_out != exchange.told_bytes:
            exchange.told_bytes, exchange.told_s = outlet.bytes_out, mono_s
        elif mono_s - exchange.told_s >= exchange.request.now.settings.streams.keep_alive_s:
            await outlet.keep_alive()
            exchange.told_bytes, exchange.told_s = outlet.bytes_out, mono_s


@dataclass(frozen=True, slots=True)
class ContinuedPermission:
    """Checks whether work may continue for a caller without an open connection. Push receivers are checked at each push
    of an agent and again before each delivery; agent programs at every pass."""

    live: Live
    switch: KillSwitch

    def objection(self, kind: Kind, behalf: OnBehalfOf) -> Reason | None:
        """Returns why nothing of this kind may be sent on this behalf, or None. The end of a task is sent even if the
        caller has lost the permission, unless a principal is disabled."""
        if kind == "approval":  # to the operator's own receivers, about the caller's request
            return None
        caller, server, skill = behalf
        if self._disabled(caller, server):
            return Reason.PRINCIPAL_DISABLED
        if kind == "task":
            return None
        if server not in self.live.current.agents:
            return Reason.UPSTREAM_UNKNOWN
        return self._no_more(caller, server, skill, (PUSH_SET,))

    def ends(self, caller: Caller, agent: str, skill: str) -> Reason | None:
        """Returns why a program must not run for this caller any more, or None."""
        if self._disabled(caller, agent):
            return Reason.PRINCIPAL_DISABLED
        return self._no_more(caller, agent, skill, (SEND, STREAM))

    def _disabled(self, caller: Caller, agent: str) -> bool:
        now, now_s = self.live.current, self.live.clock()
        call = Call("a2a", "1.0", agent, SEND.action, (Question(f"nhi:{agent}", SEND.action, ""),))
        return any(each.touched_by(caller.chain, call, now_s) for each in (self.switch.ledger.disabled, now.disabled))

    def _no_more(self, caller: Caller, agent: str, skill: str, operations: tuple[Operation, ...]) -> Reason | None:
        """Returns why none of these operations is allowed now; None if one is."""
        now, now_s = self.live.current, self.live.clock()
        if not now.identity.vouches_for(caller):
            return Reason.BAD_CREDENTIAL
        first = Question(f"nhi:{agent}", "", "", skill)
        asked = [now.engine.reconsider(caller.chain, first._replace(action=each.action), now_s) for each in operations]
        if any(decision.allowed for decision in asked) or now.shadows(now_s):
            return None
        return asked[0].reason or Reason.NO_MATCHING_RULE


def _doubt(exchange: WatchedExchange, now: Snapshot) -> Reason | None:
    """Returns why the credential is not accepted any more: its key or issuer was removed, or the server requires
    more."""
    if not now.identity.vouches_for(exchange.caller):
        return Reason.BAD_CREDENTIAL
    try:
        check_caller(exchange.caller, now.audience(exchange.call.upstream, exchange.request.folder))
    except Refusal as refusal:
        return refusal.reason
    return None


def end_of(caller: Caller, decision: Decision, rules: Snapshot) -> float | None:
    """Returns when credential, grant or shadow mode ends, in seconds since the epoch. None means never."""
    passes_until, expires_at = decision.until if decision.allowed else rules.shadow_until, caller.expires_at
    if passes_until is None or expires_at is None:
        return expires_at if passes_until is None else passes_until
    return min(expires_at, passes_until)
