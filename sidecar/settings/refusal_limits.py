"""Settings of the bound on refusals."""

from __future__ import annotations

from sidecar.settings.field_types import Count, Section


class RefusalSettings(Section):
    """Bounds on refusals. A limit's refusals do not count, nor what is out or broken."""

    per_peer_per_minute: Count = 600
    """Refusals of callers who are nobody, for each address (with IPv6, each /64). What is one too many is closed
    unanswered, and counted. Behind a proxy all strangers have one address: set it to what they need together."""
    per_principal_per_minute: Count = 600
    """Refusals of one chain. Then all its calls are `too-many-refusals` (429) for the rest of that minute."""
    recorded_per_principal_per_minute: Count = 100
    """Refusals of one chain by limits, or because something is out, that have an audit record each. Those beyond are
    answered all the same, and counted once a minute in a `control` record `refusals-counted`."""
