"""Lets calls over MCP wait for a person's approval.

A call in a session is held; with a progress token its caller receives progress notifications. A call without a session
is answered that input is required, with a `requestState` for the next attempt, which is held. A client that can open
addresses also receives the page on which the call is approved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from sidecar.errors import Refusal
from sidecar.gateway.approvals import ApprovalRecord
from sidecar.gateway.error_responses import InputRequired
from sidecar.gateway.frontends.mcp_requests import AskIntent
from sidecar.gateway.request import NOT_HELD, ApprovalWait, RequestContext, approval_data, pending_approval
from sidecar.gateway.request_state import RequestState, RequestStates
from sidecar.protocols import sse
from sidecar.protocols.jsonrpc import Id
from sidecar.protocols.mcp.eras import META_CAPABILITIES, Era
from sidecar.upstreams.mcp.bridge import translation
from sidecar.vocabulary import Caller

ELICITATION: Final = "elicitation/create"
KEY: Final = "approval"  # of the sidecar's input request
STEP: Final = 1e-6  # of the sidecar's progress, so that the server's own, which follows, is greater
MESSAGE: Final = "A person must approve this call"


def wait_of(
    request: RequestContext, caller: Caller, intent: AskIntent, states: RequestStates, *, came_again: bool
) -> ApprovalWait:
    """Returns how the call waits. `came_again`: it is a repeated call, with the state of one that waits."""
    hold_s, meta = request.now.settings.approvals.hold, intent.message.params.get("_meta", {})
    if intent.era is not Era.STATELESS:
        if request.record.enforcement_point:  # an enforcement point waits for the decision
            return NOT_HELD
        token = meta.get("progressToken")
        return ApprovalWait(pending_approval, hold_s, None if token is None else HeldProgress(request, token).tell)
    capabilities = meta.get(META_CAPABILITIES)

    async def pending(record: ApprovalRecord, page: str | None) -> Refusal:
        result: dict[str, Any] = {"resultType": "input_required"}
        asked = {"mode": "url", "message": MESSAGE, "url": page}
        if page is not None and translation.may_be_asked(capabilities or {}, ELICITATION, asked):
            result["inputRequests"] = {KEY: translation.question(ELICITATION, asked)}
        result["requestState"] = states.seal(caller, intent.call, None, record.name)
        return InputRequired(result, approval_data(record, page))

    return ApprovalWait(pending, hold_s if came_again else 0.0)


def continued(params: Mapping[str, Any], sealed: RequestState) -> dict[str, Any]:
    """Returns the parameters of a repeated call for its server: with the server's own state, if any."""
    ours = ("requestState", "inputResponses") if sealed.state is None else ("requestState",)
    kept = {name: value for name, value in params.items() if name not in ours}
    return {**kept, "requestState": sealed.state} if sealed.state else kept


@dataclass(slots=True)
class HeldProgress:
    """Sends progress to a caller whose call is held."""

    request: RequestContext
    token: Id
    count: int = 0

    async def tell(self, *_: object) -> None:
        """Sends one progress notification. Raises Refusal(CALLER_GONE)."""
        outlet = await self.request.hold_outlet()
        self.count += 1
        params = {"progressToken": self.token, "progress": self.count * STEP, "message": MESSAGE}
        said = {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}
        await outlet.write(sse.encode_event(orjson.dumps(said)))
