"""Reads roles and sets from policy YAML.

Both sections have two forms: a mapping of containers to their members, and a list, which can also hold owners, reasons,
domains, and the seed's capabilities.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sidecar.policy.faults import shown
from sidecar.policy.grammar import NONE, USE
from sidecar.policy.model import COLUMNS
from sidecar.policy.rows import CsvField, CsvRow, hidden_character
from sidecar.policy.yaml_offsets import YamlField, same_place
from sidecar.policy.yaml_seed import prefixed
from sidecar.policy.yaml_values import Values
from sidecar.settings.yaml_nodes import YamlNode
from sidecar.vocabulary import PermissionKind

LINK_NOTES = ("owner", "reason", "created_at")
ROLE_KEYS = ("role", "capabilities", "members", "domain", *LINK_NOTES)
SET_KEYS = ("set", "objects", *LINK_NOTES)

VERBS = frozenset({"read", "write", "list", "search", "create", "update", "delete", "execute", "manage", "admin"})
_CAPABILITY = re.compile(r"([^.]+)\.(.+)")

Found = tuple[PermissionKind | None, CsvRow]
Columns = Mapping[PermissionKind, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class LinkReader:
    """Reads the roles and sets of one file."""

    values: Values
    columns: Columns
    mapped: Mapping[str, Sequence[YamlField]]

    def roles(self, node: YamlNode) -> Iterator[Found]:
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
            role = name if ":" in name.text else prefixed("role:", name)
            yield from self.capabilities(role, said.get("capabilities"), notes, entry)
            domain = self.values.text(said["domain"], "domain") if "domain" in said else None
            yield from self.linked("g", role, said.get("members"), "members", notes, domain)

    def sets(self, node: YamlNode) -> Iterator[Found]:
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

    def links(self, row_type: str, said: Mapping[str, YamlNode]) -> Iterator[Found]:
        for name, node in said.items():
            key = self.values.placed(name, node.key or node.span)
            if not hidden_character(key.line_of(), self.values.faults, key.text, key.column):
                yield from self.linked(row_type, key, node, name, {})

    def linked(
        self,
        row_type: str,
        container: CsvField,
        node: YamlNode | None,
        what: str,
        notes: Mapping[str, CsvField],
        domain: CsvField | None = None,
    ) -> Iterator[Found]:
        for member in self.values.texts(node, what) or ():
            line = member.line_of()
            fields = (member, container) if domain is None else (member, container, domain)
            yield None, CsvRow(row_type, fields, line, notes, line)

    def capabilities(
        self, role: CsvField, node: YamlNode | None, notes: Mapping[str, CsvField], entry: YamlNode
    ) -> Iterator[Found]:
        """Return what the file maps a capability to. By default the seed's `github.commits.list` is `use` on
        tool:github/commits.list: the first dot splits.
        """
        kind = PermissionKind.AGENT_TO_TOOL
        dash = self.values.implied(NONE, entry.span)
        use, allow, granted = same_place(dash, USE), same_place(dash, "allow"), set[str]()
        for capability in self.values.texts(node, "capabilities") or ():
            found = _CAPABILITY.fullmatch(capability.text)
            line = capability.line_of()
            if found is None:
                hint = "write <server>.<tool>, <server>.* or *.*"
                message = f"{shown(capability.text)} is no capability"
                self.values.faults.error("P507", message, line, capability.column, capability.width, hint)
                continue
            columns = self.columns.get(kind, COLUMNS)
            for obj in self.mapped.get(capability.text) or (self.tool_of(capability, found[1], found[2]),):
                if obj.text in granted:  # another capability of the role also grants it
                    continue
                granted.add(obj.text)
                fields = {"sub": role, "obj": obj, "act": use, "eft": allow}
                yield kind, CsvRow("p", tuple(fields.get(column, dash) for column in columns), line, notes, line)

    def tool_of(self, capability: YamlField, server: str, tool: str) -> YamlField:
        """Return the tool named like a capability. Warns about a name that looks like a verb, or that occurs beside
        mapped capabilities, since it may stand for more than one tool.
        """
        obj = "tool:*" if capability.text == "*.*" else f"tool:{server}/{tool}"
        if "*" not in obj and (self.mapped or tool in VERBS):
            message = f"{shown(capability.text)} is mapped to nothing, and grants {obj} alone"
            hint = f"write capabilities: {{{capability.text}: [tool:{server}/…]}}, or keep it for the tool of that name"
            self.values.faults.warn("P511", message, capability.line_of(), capability.column, capability.width, hint)
        return same_place(capability, obj)
