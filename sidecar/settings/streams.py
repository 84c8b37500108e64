"""Settings of event streams."""

from __future__ import annotations

from typing import Literal

from sidecar.settings.field_types import Count, Seconds, Section


class StreamSettings(Section):
    """Streams that stay open, and calls that are under way."""

    max_per_principal: Count = 256
    """Streams without an end that one chain holds at once. What is one too many is refused (429)."""
    max: Count = 10_000
    """Such streams of all together; `server.max_connections` bounds them too."""
    keep_alive_s: Seconds = 15.0
    """How long such a stream may be silent before its reader is sent a comment."""
    review_s: Seconds = 30.0
    """How often what is open is judged again though nothing changed: conditions read `now`."""
    revoked_calls: Literal["finish", "cancel"] = "finish"
    """What becomes of a call that is under way when its permission ends. The kill switch cancels it always."""
    revoked_grace_s: Seconds = 10.0
    """How long such a call may take to finish, before it is cancelled all the same."""
