"""The settings of approvals: how long callers wait for a person, and how many calls may wait."""

from typing import Annotated

from pydantic import Field

from sidecar.settings.field_types import HttpUrl, Seconds, Section

MAX_HOLD_S = 600.0


class ApprovalSettings(Section):
    """Calls that wait for a person's approval (`approval=` in policy)."""

    hold: Annotated[Seconds, Field(ge=0.0, le=MAX_HOLD_S)] = 60.0
    """How long a call of a session is held for the answer before it is refused as `approval-pending`."""
    page: HttpUrl | None = None
    """The address at which people answer, before the id of a request: that of the console, with `/approvals/`."""
    max_per_principal: Annotated[int, Field(ge=1, le=10_000)] = 100
    """How many approvals of one principal may be kept. Beyond that its further calls are refused."""
    max: Annotated[int, Field(ge=1, le=100_000)] = 10_000
    """How many may be kept in all."""
