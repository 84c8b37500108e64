"""Who is in which role, and what in which set, as a policy's YAML says it?

Both sections have two forms: a mapping of containers to what is in them, and a list, which has room for owners,
reasons, domains, and the seed's capabilities.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sidecar.policy.faults import shown
from sidecar.policy.grammar import NONE, USE
from sidecar.policy.model import COLUMNS
from sidecar.policy.rows import Field, Row
from sidecar.policy.yaml_places import Place, YamlField, hidden_character, same_place
from sidecar.policy.yaml_values import Values
from sidecar.settings.nodes import Node
from sidecar.vocabulary import PermissionKind

LINK_NOTES = ("owner", "reason", "created_at")
ROLE_KEYS = ("role", "capabilities", "members", "domain", *LINK_NOTES)
SET_KEYS = ("set", "objects", *LINK_NOTES)

_CAPABILITY = re.compile(r"([^.]+)\.(.+)")

Found = tuple[PermissionKind | None, Row]
Columns = Mapping[PermissionKind, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class LinkReader:
    """The roles and sets of one file."""

    values: Values
    columns: Columns

    def roles(self, node: Node) -> Iterator[Found]:
        if isinstance(node.value, dict) and node.value:
            yield from self.links("g", node.value)
            return
        for entry in self.values.entries(node, "roles", "a list, or a mapping of roles to their members"):
            said = self.values.mapping(entry, "a role", ROLE_KEYS, ("role",))
            if said is None or "role" not in said:
                continue
            if not said.keys() & {"capabilities", "members"}:
                self.values.fault("P503", "this role has neither capabilities nor members", entry.span)
            name, notes = self.values.text(said["role"], "role"), self.values.notes(said, LINK_NOTES)
            if name is None or notes is None:
                continue
            role = name if ":" in name.text else _prefixed("role:", name)
            yield from self.capabilities(role, said.get("capabilities"), notes, entry)
            domain = self.values.text(said["domain"], "domain") if "domain" in said else None
            yield from self.linked("g", role, said.get("members"), "members", notes, domain)

    def sets(self, node: Node) -> Iterator[Found]:
        if isinstance(node.value, dict) and node.value:
            yield from self.links("g2", node.value)
            return
        for entry in self.values.entries(node, "sets", "a list, or a mapping of sets to their objects"):
            said = self.values.mapping(entry, "a set", SET_KEYS, ("set", "objects"))
            if said is None or "set" not in said:
                continue
            name, notes = self.values.text(said["set"], "set"), self.values.notes(said, LINK_NOTES)
            if name is not None and notes is not None:
                yield from self.linked("g2", name, said.get("objects"), "objects", notes)

    def links(self, row_type: str, said: Mapping[str, Node]) -> Iterator[Found]:
        for name, node in said.items():
            key = self.values.placed(name, node.key or node.span)
            if not hidden_character(key.line_of(), self.values.faults, key.text, key.column):
                yield from self.linked(row_type, key, node, name, {})

    def linked(
        self,
        row_type: str,
        container: Field,
        node: Node | None,
        what: str,
        notes: Mapping[str, Field],
        domain: Field | None = None,
    ) -> Iterator[Found]:
        for member in self.values.texts(node, what) or ():
            line = member.line_of()
            fields = (member, container) if domain is None else (member, container, domain)
            yield None, Row(row_type, fields, line, notes, line)

    def capabilities(self, role: Field, node: Node | None, notes: Mapping[str, Field], entry: Node) -> Iterator[Found]:
        """The seed's `github.commits.list` is `use` on tool:github/commits.list: the first dot splits."""
        kind = PermissionKind.AGENT_TO_TOOL
        dash = self.values.implied(NONE, entry.span)
        use, allow = same_place(dash, USE), same_place(dash, "allow")
        for capability in self.values.texts(node, "capabilities") or ():
            found = _CAPABILITY.fullmatch(capability.text)
            line = capability.line_of()
            if found is None:
                hint = "write <server>.<tool>, <server>.* or *.*"
                message = f"{shown(capability.text)} is no capability"
                self.values.faults.error("P507", message, line, capability.column, capability.width, hint)
                continue
            obj = "tool:*" if capability.text == "*.*" else f"tool:{found[1]}/{found[2]}"
            fields = {"sub": role, "obj": same_place(capability, obj), "act": use, "eft": allow}
            columns = self.columns.get(kind, COLUMNS)
            yield kind, Row("p", tuple(fields.get(column, dash) for column in columns), line, notes, line)


def _prefixed(prefix: str, name: YamlField) -> YamlField:
    places = tuple(Place(place.offset + len(prefix), place.line, place.column) for place in name.places)
    return YamlField(prefix + name.text, name.column, name.width, places=(name.places[0], *places))
