"""Refuses policies that are older or much smaller than the one in force.

A valid signature does not stop the replay of an old policy, so versions must rise. A policy that lost more than half of
its bytes is probably a packaging mistake. The operator can override both checks for one policy by its digest. Empty and
unsigned policies are always refused.
"""

from __future__ import annotations

from sidecar.settings.stored_policy import StoredPolicy


def objection(new: StoredPolicy, old: StoredPolicy | None, accept: str | None) -> str:
    """Why the policy is refused, or "". Policies of another repository or name pass: the settings changed."""
    if old is None or accept == new.name or (new.kind, new.of) != (old.kind, old.of):
        return ""
    if new.version < old.version:
        return f"it is older than what serves: {new.version} after {old.version}"
    if new.version == old.version and new.kind == "bundle":
        return f"it is another one of the same version, {new.version}"
    if new.size * 2 < old.size:
        return f"it is less than half as large as what serves: {new.size} bytes after {old.size}"
    return ""
