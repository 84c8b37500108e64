"""Reads the permissions of the original data models in policy YAML as rules.

    NhiNhiPermission   source_id, target_id, permission_type, allowed_actions     nhi_to_nhi
    NhiUserPermission  user_id, nhi_id                                            user_to_nhi
    NhiToolPermission  agent_id, tool_id                                          agent_to_tool

Their keys are aliases of a rule's keys, and determine the kind. A bare UUID gets the kind that the permission has in
that place; one that is the `a2a.agent_id` of an agent is replaced by that agent's name. Tools have no UUID here, so
`tool_id` names a tool as in rules.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from sidecar.policy.yaml_values import ScalarOffsets, Values, YamlField, same_place
from sidecar.settings.yaml_nodes import YamlNode
from sidecar.vocabulary import PermissionKind


class _Key(NamedTuple):
    """One key of the original permissions: the rule key that it stands for, the kind of its permission, and the kind of
    a UUID there."""

    name: str
    kind: PermissionKind
    prefix: str


NHI: Final = "nhi:"
_NHI, _USER, _TOOL = PermissionKind.NHI_TO_NHI, PermissionKind.USER_TO_NHI, PermissionKind.AGENT_TO_TOOL
IDS: Final[Mapping[str, _Key]] = {
    "source_id": _Key("subject", _NHI, "nhi:"),
    "target_id": _Key("object", _NHI, "nhi:"),
    "user_id": _Key("subject", _USER, "user:"),
    "nhi_id": _Key("object", _USER, "nhi:"),
    "agent_id": _Key("subject", _TOOL, "nhi:"),
    "tool_id": _Key("object", _TOOL, ""),
}
ACTIONS: Final = "allowed_actions"
NULLABLE: Final = frozenset({ACTIONS, "permission_type", "max_calls_per_hour", "expires_at", "created_at"})
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class Permission(NamedTuple):
    """A rule under the keys used here. The original keys determine `kind`, which is None without them; `prefixes` are
    the kinds of bare UUIDs, by key name."""

    node: YamlNode
    kind: PermissionKind | None
    prefixes: Mapping[str, str]


def permission_from(values: Values, node: YamlNode) -> Permission | None:
    """Returns a rule; an original permission becomes a rule. None after a fault."""
    said = node.value if isinstance(node.value, dict) else {}
    ids = {key: IDS[key] for key in said if key in IDS}
    if not ids and ACTIONS not in said:
        return Permission(node, None, {})
    kinds = {key.kind for key in ids.values()}
    if len(kinds) > 1:
        values.fault("P505", f"{' and '.join(ids)} are of two permissions", node.span, "write one rule for each")
        return None
    renamed: dict[str, YamlNode] = {}
    for key, child in said.items():
        if ids and key in NULLABLE and child.value is None:
            continue  # as in a JSON export of the original model
        name = "actions" if key == ACTIONS else ids[key].name if key in ids else key
        if name in renamed:
            values.fault("P508", f"{key} is another name of {name}", child.key or child.span, "keep one")
            return None
        renamed[name] = child
    kind = next(iter(kinds), None)
    if kind is not None and "kind" in renamed and renamed["kind"].value != kind.value:
        message = f"{' and '.join(ids)} are of {kind.value}"
        values.fault("P505", message, renamed["kind"].span, "leave kind out, or write subject and object")
        return None
    return Permission(replace(node, value=renamed), kind, {key.name: key.prefix for key in ids.values()})


def with_kind(values: Values, found: Sequence[YamlField] | None, prefix: str | None) -> list[YamlField] | None:
    """Returns the ids, with each bare UUID prefixed by its kind or replaced by the agent's name; None after a fault, or
    for None."""
    if found is None or prefix is None:
        return None if found is None else [*found]
    named: list[YamlField] = []
    for one in found:
        if not _UUID.fullmatch(one.text):
            named.append(one)
        elif prefix == NHI and (agent := values.agent_ids.get(one.text.lower())):
            named.append(same_place(one, f"{NHI}{agent}"))
        elif prefix:
            named.append(prefixed(prefix, one))
        else:
            hint = "write tool:<server>/<tool>"
            values.faults.error("P505", "a tool has no UUID here", one.line_of(), one.column, one.width, hint)
            return None
    return named


def prefixed(prefix: str, name: YamlField) -> YamlField:
    places = tuple(ScalarOffsets(place.offset + len(prefix), place.line, place.column) for place in name.places)
    return YamlField(prefix + name.text, name.column, name.width, places=(name.places[0], *places))
