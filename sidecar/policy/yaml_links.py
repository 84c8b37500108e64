"""Reads roles and sets from policy YAML.

Both sections have two forms: a mapping of containers to their members, and a list, which can also hold owners, reasons
and, for roles, domains and the capabilities of the original data models.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sidecar.policy.faults import shown
from sidecar.policy.grammar import NONE, USE
from sidecar.policy.model import COLUMNS
from sidecar.policy.rows import CsvField, CsvRow, hidden_character
from sidecar.policy.yaml_seed import prefixed
from sidecar.policy.yaml_values import Values, YamlField, same_place
from sidecar.settings.yaml_nodes import YamlNode
from sidecar.vocabulary import PermissionKind

LINK_NOTES = ("owner", "reason", "created_at")
# For each section its row type, the key of a container, the key of its members, all keys, and the keys needed.
_SECTIONS: Mapping[str, tuple[str, str, str, tuple[str, ...], tuple[str, ...]]] = {
    "roles": ("g", "role", "members", ("role", "capabilities", "members", "domain", *LINK_NOTES), ("role",)),
    "sets": ("g2", "set", "objects", ("set", "objects", *LINK_NOTES), ("set", "objects")),
}
VERBS = frozenset({"read", "write", "list", "search", "create", "update", "delete", "execute", "manage", "admin"})
_CAPABILITY = re.compile(r"([^.]+)\.(.+)")

Found = tuple[PermissionKind | None, CsvRow]
Columns = Mapping[PermissionKind, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class YamlLinkReader:
    values: Values
    columns: Columns
    mapped: Mapping[str, Sequence[YamlField]]

    def read(self, section: str, node: YamlNode) -> Iterator[Found]:
        values, (row_type, own_key, member_key, known, needed) = self.values, _SECTIONS[section]
        if isinstance(node.value, dict) and node.value:
            for name, members in node.value.items():
                key = values.placed(name, members.key or members.span)
                if not hidden_character(key.line_of(), values.faults, key.text, key.column):
                    yield from self.linked(row_type, key, members, name, {})
            return
        for entry in values.entries(node, section, f"a list, or a mapping of {section} to their {member_key}"):
            said = values.mapping(entry, f"a {own_key}", known, needed)
            if said is None or own_key not in said:
                continue
            if own_key == "role" and not said.keys() & {"capabilities", "members"}:
                values.fault("P503", "this role has neither capabilities nor members", entry.span)
            name_, notes = values.text(said[own_key], own_key), values.notes(said, LINK_NOTES)
            if name_ is None or notes is None:
                continue
            container = prefixed("role:", name_) if own_key == "role" and ":" not in name_.text else name_
            yield from self.capabilities(container, said.get("capabilities"), notes, entry)
            domain = values.text(said["domain"], "domain") if "domain" in said else None
            yield from self.linked(row_type, container, said.get(member_key), member_key, notes, domain)

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
        """Yields the rows that grant the capabilities of a role: `use` on the objects that the file maps each one to.
        By default, a capability `github.commits.list` in the form of the original data models stands for
        tool:github/commits.list: the text is split at the first dot."""
        kind = PermissionKind.AGENT_TO_TOOL
        dash = self.values.implied(NONE, entry.span)
        use, allow, granted = same_place(dash, USE), same_place(dash, "allow"), set[str]()
        for capability in self.values.texts(node, "capabilities") or ():
            found = _CAPABILITY.fullmatch(capability.text)
            line = capability.line_of()
            if found is None:
                hint = "write <server>.<tool>, <server>.* or *.*"
                message = f"{shown(capability.text)} is not a capability"
                self.values.faults.error("P507", message, line, capability.column, capability.width, hint)
                continue
            columns = self.columns.get(kind, COLUMNS)
            for obj in self.mapped.get(capability.text) or (self.tool_of(capability, found[1], found[2]),):
                if obj.text in granted:  # another capability of the role also grants the object
                    continue
                granted.add(obj.text)
                fields = {"sub": role, "obj": obj, "act": use, "eft": allow}
                yield kind, CsvRow("p", tuple(fields.get(column, dash) for column in columns), line, notes, line)

    def tool_of(self, capability: YamlField, server: str, tool: str) -> YamlField:
        """Returns the tool named like a capability. Warns about a name that looks like a verb, or that occurs next to
        mapped capabilities, because it may stand for more than one tool."""
        obj = "tool:*" if capability.text == "*.*" else f"tool:{server}/{tool}"
        if "*" not in obj and (self.mapped or tool in VERBS):
            message = f"{shown(capability.text)} has no definition, and grants {obj} only"
            hint = f"write capabilities: {{{capability.text}: [tool:{server}/…]}}, or keep it for the tool of that name"
            self.values.faults.warn("P511", message, capability.line_of(), capability.column, capability.width, hint)
        return same_place(capability, obj)
