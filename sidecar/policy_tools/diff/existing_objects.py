"""Selects the regions that contain existing objects.

Rules can match names that do not exist yet: a pattern of tools matches future tools too. With a catalogue, only
existing objects count: a region that contains no known caller, object and action is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sidecar.policy_tools.diff.region_shapes import Region
from sidecar.policy_tools.diff.search import Point
from sidecar.vocabulary import PermissionKind

_NO_ROLES: frozenset[str] = frozenset()
_SUBJECTS: Mapping[PermissionKind, tuple[str, ...]] = {
    PermissionKind.USER_TO_NHI: ("user:", "anonymous"),
    PermissionKind.NHI_TO_NHI: ("nhi:",),
}
_EVERYWHERE = ("",)


def with_something_in_them(
    regions: Iterable[Region], subjects: Iterable[str], objects: Iterable[str]
) -> tuple[Region, ...]:
    """Return the regions that contain a point of these names, and those that were not worked out."""
    callers, things = sorted(set(subjects)), sorted(set(objects))
    return tuple(region for region in regions if region.undecided or _holds(region, callers, things))


def _holds(region: Region, subjects: Sequence[str], objects: Sequence[str]) -> bool:
    prefixes = _SUBJECTS.get(region.kind, _EVERYWHERE)
    callers = [
        name
        for name in subjects
        if name.startswith(prefixes) and any(term.meets(name, _NO_ROLES) for term in region.subjects)
    ]
    things = [name for name in objects if any(term.meets(name) for term in region.objects)]
    parted = region.within or region.exceptions  # else it is the same with each of its actions
    actions = sorted(region.actions)[: None if parted else 1]
    return any(
        region.contains(Point(caller, _NO_ROLES, thing, action))
        for caller in callers
        for thing in things
        for action in actions
    )
