"""Refuses policies that are older or much smaller than the one in force.

A signature says who made a policy, and whoever holds an old one back can send it again: so versions rise. A policy
that lost more than half of its bytes is likelier a mistake of whoever packed it than a decision. The operator's word
for one of them, by its digest, overrules both; nothing overrules that it is empty, or signed by nobody.
"""

from __future__ import annotations

from sidecar.settings.stored_policy import StoredPolicy


def objection(new: StoredPolicy, old: StoredPolicy | None, accept: str | None) -> str:
    """Why not; "" if it may. Of another repository, or whose policy it is changed: that was decided in the settings."""
    if old is None or accept == new.name or (new.kind, new.of) != (old.kind, old.of):
        return ""
    if new.version < old.version:
        return f"it is older than what serves: {new.version} after {old.version}"
    if new.version == old.version and new.kind == "bundle":
        return f"it is another one of the same version, {new.version}"
    if new.size * 2 < old.size:
        return f"it is less than half as large as what serves: {new.size} bytes after {old.size}"
    return ""
