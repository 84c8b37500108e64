"""Detects store policies that could evict counters.

An evicted counter is a limit that begins anew, and nothing would show it: the epoch may well have stayed. Every counter
has a time to live, so any policy but `noeviction` may take it, once there is a bound on memory at all.
"""

from __future__ import annotations

from typing import Any, Final

LOOK_EVERY_S: Final = 60.0
SAFE: Final = "noeviction"


def eviction_warning(info: Any) -> str:
    """What an operator has to know, by the server's answer to `INFO memory`; "" if all is well, or nothing is said."""
    if not isinstance(info, bytes):
        return ""
    said = dict(line.partition(":")[::2] for line in info.decode("latin-1").split("\r\n"))
    policy, most = said.get("maxmemory_policy", SAFE), said.get("maxmemory", "0")
    if policy == SAFE or most == "0" or not policy.replace("-", "").isalpha():
        return ""
    return f"it may evict counters once its memory is full (maxmemory-policy {policy[:40]}): a limit would begin anew"
