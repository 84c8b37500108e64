"""Detects store policies that could evict counters.

Evicting a counter restarts its limit unnoticed, because the epoch may survive. Every counter has a time to live, so
with a memory bound any policy but `noeviction` may evict it.
"""

from __future__ import annotations

from typing import Any, Final

LOOK_EVERY_S: Final = 60.0
SAFE: Final = "noeviction"


def eviction_warning(info: Any) -> str:
    """The warning for operators, from the server's reply to `INFO memory`; "" if there is none or the reply says
    nothing."""
    if not isinstance(info, bytes):
        return ""
    said = dict(line.partition(":")[::2] for line in info.decode("latin-1").split("\r\n"))
    policy, most = said.get("maxmemory_policy", SAFE), said.get("maxmemory", "0")
    if policy == SAFE or most == "0" or not policy.replace("-", "").isalpha():
        return ""
    return f"it may evict counters once its memory is full (maxmemory-policy {policy[:40]}): a limit would begin anew"
