"""Reads policy YAML as rows.

    rules    p rows of any kind. A rule with several subjects or objects is several rows of one rule: the first has the
             notes (`id` …), the others the note `part_of`, which names that id
    roles    g rows: {role: [members]}, or the original list of {role, capabilities, members}, there also with a domain
    sets     g2 rows: {set: [objects]}, or a list of {set, objects}
    permissions    the original permissions, as rules (`yaml_seed.py`); rules may also have their keys
    capabilities   the objects of capabilities that are not tool names: {github.read: [objects]}

The rows look like those of CSV: each `CsvField` holds the positions of its characters in the YAML file. Ambiguous YAML
(`yes`, `0x10`, anchors, tags, two documents) is refused by the project's YAML reader with codes Y001 to Y012; invalid
rules have the codes P501 to P511; the content of their fields is checked with all other rows.

    P501  wrong type        P504  wrong version       P507  a capability without a dot     P510  too many rows
    P502  unknown key       P505  wrong value         P508  duplicate
    P503  missing key       P506  empty               P509  part_of another rule   P511  an unmapped capability
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from sidecar.errors import Fault
from sidecar.policy.faults import MAX_FAULTS, Faults, SourceLine, shown
from sidecar.policy.grammar import NONE, USE, USED
from sidecar.policy.model import COLUMNS
from sidecar.policy.rows import CsvField, CsvRow, hidden_character
from sidecar.policy.yaml_links import LINK_NOTES, Columns, Found, YamlLinkReader
from sidecar.policy.yaml_seed import permission_from, with_kind
from sidecar.policy.yaml_values import ScalarOffsets, Values, YamlField, same_place
from sidecar.settings.yaml_nodes import YamlNode, compose, lines_of
from sidecar.vocabulary import DELEGATE, PermissionKind

MAX_BYTES = 32 * 1024 * 1024  # about 200,000 rules, which take about 800 MB to read; CSV has no such cost
MAX_ROWS_OF_RULE = 10_000  # subjects times objects of one rule
SECTIONS = ("version", "rules", "permissions", "roles", "sets", "capabilities")
RULE_NOTES = ("id", *LINK_NOTES, "per", "shadow")
PERMISSION_TYPES = ("call", "delegate")
KEY_OF: Mapping[str, str] = {"sub": "subject", "obj": "object", "act": "actions", "eft": "effect"}
"""The key of a column, if it differs from the column's name."""

_KINDS = tuple(kind.value for kind in PermissionKind)
_OWN_KEYS = ("kind", "permission_type", "part_of", "approval", *RULE_NOTES)
APPROVAL_KEYS: Mapping[str, str] = {"by": "approval", "within": "within", "valid": "valid", "reason": "approval_reason"}
"""The notes of CSV for the keys of `approval`."""
_NHI_KINDS = (PermissionKind.USER_TO_NHI, PermissionKind.NHI_TO_NHI)


def policy_schema() -> dict[str, Any]:
    """Returns the JSON Schema of one file. It is no stricter than the reader; `sidecar policy check` also checks
    relations between values (`part_of` below its rule, conditions that compile, unique ids)."""
    schema: dict[str, Any] = orjson.loads(Path(__file__).with_name("policy.schema.json").read_bytes())
    return schema


def parse_yaml(
    file: str, text: str, faults: Faults, columns: Columns | None = None, agent_ids: Mapping[str, str] | None = None
) -> Iterator[Found]:
    """Yields every well-formed row with its kind (None for g and g2), in file order; everything else is a fault.
    `columns` are those of the kinds' models, by default the built-in ones; `agent_ids` maps UUIDs to agents' names."""
    if len(text.encode()) > MAX_BYTES:
        hint = "split it, or write the rules as CSV: sidecar policy convert"
        faults.whole("P510", f"larger than {MAX_BYTES // 2**20} MiB", file, hint)
        return
    root, found = compose(text, file)
    faults.errors.extend(_mended(fault) for fault in found[: MAX_FAULTS - len(faults.errors)])
    if found:
        return
    values = Values(file, lines_of(text), faults, agent_ids or {})
    if not text.isascii():
        for number in range(1, len(values.lines) + 1):
            hidden_character(values.line(number), faults)
    yield from _YamlReader(values, columns or {}).sections(root)


def _mended(fault: Fault) -> Fault:
    """Adds a hint for texts that policies often contain and that YAML reads as another type."""
    if (fault.code == "Y008" and " is an alias" in fault.message) or "scanning an alias" in fault.message:
        return replace(fault, hint='a text that begins with * must be quoted: "*"')
    if "block sequence entries are not allowed" in fault.message:
        return replace(fault, hint='remove the key, or quote it: "-"')
    return fault


class _Rule(NamedTuple):
    """A rule that was read: the columns that its rows share, all but subject and object, and the notes of the first."""

    kind: PermissionKind
    line: SourceLine
    common: Mapping[str, CsvField]
    notes: dict[str, CsvField]


@dataclass(slots=True)
class _YamlReader:
    values: Values
    columns: Columns
    last: _Rule | None = None

    def sections(self, root: YamlNode) -> Iterator[Found]:
        if root.value is None:
            hint = "write version: 1, and rules, roles or sets"
            self.values.faults.whole("P506", "the file is empty", self.values.file, hint)
            return
        said = self.values.mapping(root, "a policy", SECTIONS, needed=("version",))
        if said is None:
            return
        version = said.get("version")
        if version is not None and (type(version.value) is not int or version.value != 1):
            self.values.fault("P504", "this version of the format is unknown", version.span, "write version: 1")
        if said.keys() <= {"version"}:
            self.values.fault("P503", "the file has no content", root.span, "write rules, roles or sets")
        links = YamlLinkReader(self.values, self.columns, self.capabilities(said.get("capabilities")))
        for name, node in said.items():
            if name in ("rules", "permissions"):
                yield from self.rules(node)
            elif name in ("roles", "sets"):
                yield from links.read(name, node)

    def rules(self, node: YamlNode) -> Iterator[Found]:
        self.last = None
        for entry in self.values.entries(node, "the list"):
            is_part = isinstance(entry.value, dict) and "part_of" in entry.value
            yield from self.part(entry) if is_part else self.rule(entry)

    def capabilities(self, node: YamlNode | None) -> Mapping[str, Sequence[YamlField]]:
        if node is None:
            return {}
        if not isinstance(node.value, dict) or not node.value:
            message = "capabilities must be a mapping of capabilities to their objects"
            self.values.fault("P501", message, node.span, "write, for example, {github.read: [tool:github/get_*]}")
            return {}
        return {name: self.values.texts(objects, name) or () for name, objects in node.value.items()}

    def rule(self, node: YamlNode) -> Iterator[Found]:
        self.last = None
        values, permission = self.values, permission_from(self.values, node)
        if permission is None:
            return
        node = permission.node
        said = node.value if isinstance(node.value, dict) else {}
        word = values.word(said, "kind", _KINDS, "known are " + ", ".join(_KINDS))
        kind = PermissionKind(word.text) if word else permission.kind
        columns = self.columns.get(kind, COLUMNS) if kind else COLUMNS
        keys = [KEY_OF.get(column, column) for column in columns]
        needed = ("subject", "object") if permission.kind else ("kind", "subject", "object")
        if values.mapping(node, "a rule", (*_OWN_KEYS, *keys), needed) is None:
            return
        subjects, objects = (
            with_kind(values, values.texts(said.get(key), key), permission.prefixes.get(key))
            for key in ("subject", "object")
        )
        common = _RuleColumns(values, kind, said, node).read(columns)
        notes, approval = values.notes(said, RULE_NOTES), self.approval(said)
        if kind is None or not subjects or not objects or common is None or notes is None or approval is None:
            return
        notes |= approval
        rule = self.last = _Rule(kind, values.line(node.span.line), common, notes)
        if len(subjects) * len(objects) > 1 and "id" not in notes:
            notes["id"] = values.implied(_content_id(rule, subjects, objects), node.span)
        yield from self.rows(rule, subjects, objects, node, notes)

    def approval(self, said: Mapping[str, YamlNode]) -> dict[str, CsvField] | None:
        """Returns the notes for `approval`; None after a fault."""
        if "approval" not in said:
            return {}
        terms = self.values.mapping(said["approval"], "approval", tuple(APPROVAL_KEYS), needed=("by",))
        if terms is None:
            return None
        found = {note: self.values.text(terms[key], key) for key, note in APPROVAL_KEYS.items() if key in terms}
        notes: dict[str, CsvField] = {note: value for note, value in found.items() if value is not None}
        return notes if "approval" in notes and len(notes) == len(found) else None

    def part(self, node: YamlNode) -> Iterator[Found]:
        """Yields the rows for further subjects and objects of the rule above, for rules in which not every subject has
        every object."""
        said = self.values.mapping(node, "a part", ("part_of", "subject", "object"), ("subject", "object"))
        if said is None:
            return
        of = self.values.text(said["part_of"], "part_of")
        subjects, objects = (self.values.texts(said.get(key), key) for key in ("subject", "object"))
        rule = self.last
        if of is None or not subjects or not objects:
            return
        if rule is None or "id" not in rule.notes or rule.notes["id"].text != of.text:
            hint = "a part is directly below the rule that it belongs to, and names its id"
            self.values.fault("P509", f"the rule above is not {shown(of.text)}", said["part_of"].span, hint)
            return
        part = rule._replace(line=self.values.line(node.span.line))
        yield from self.rows(part, subjects, objects, node, {"part_of": of})

    def rows(
        self,
        rule: _Rule,
        subjects: Sequence[CsvField],
        objects: Sequence[CsvField],
        node: YamlNode,
        notes: Mapping[str, CsvField],
    ) -> Iterator[Found]:
        if len(subjects) * len(objects) > MAX_ROWS_OF_RULE:
            message = f"{len(subjects)} subjects with {len(objects)} objects are more than {MAX_ROWS_OF_RULE} rows"
            self.values.fault("P510", message, node.span, "use a role (g) or a set (g2)")
            return
        columns = self.columns.get(rule.kind, COLUMNS)
        faults = self.values.faults
        before = len(faults.errors), len(faults.warnings)
        for number, (subject, obj) in enumerate(product(subjects, objects)):
            fields = {**rule.common, "sub": subject, "obj": obj}
            said = notes if number == 0 else {"part_of": notes.get("part_of") or rule.notes["id"]}
            yield rule.kind, CsvRow("p", tuple(fields[column] for column in columns), rule.line, said, rule.line)
            if number and (len(faults.errors), len(faults.warnings)) != before:
                # A fault that repeats in all rows of a rule is one fault.
                faults.errors[:] = dict.fromkeys(faults.errors)
                faults.warnings[:] = dict.fromkeys(faults.warnings)


@dataclass(frozen=True, slots=True)
class _RuleColumns:
    """Reads the columns that all rows of a rule share: all but subject and object."""

    values: Values
    kind: PermissionKind | None
    said: Mapping[str, YamlNode]
    node: YamlNode

    def read(self, columns: Sequence[str]) -> dict[str, CsvField] | None:
        """Returns the columns' fields; None after a fault."""
        found = {"eft": self.effect()}
        found["act"] = self.actions("deny" if found["eft"] and found["eft"].text == "deny" else "allow")
        found |= {column: self.plain(column) for column in columns if column not in KEY_OF}
        fields: dict[str, CsvField] = {column: value for column, value in found.items() if value is not None}
        return fields if len(fields) == len(found) else None

    def effect(self) -> YamlField | None:
        """Returns the effect: allow by default; a guardrail is always a deny row."""
        guardrail = self.kind is PermissionKind.GUARDRAIL
        if "effect" not in self.said:
            return self.values.implied("deny" if guardrail else "allow", self.node.span)
        effect = self.values.text(self.said["effect"], "effect")
        if effect is not None and guardrail and effect.text == "allow":
            hint = "remove effect, or choose another kind"
            self.values.fault("P505", "a guardrail only denies", self.said["effect"].span, hint)
            return None
        return effect

    def actions(self, effect: str) -> YamlField | None:
        """Returns the `|` list. Without actions, an allow rule covers `use` and a deny rule everything, which is the
        safer default in each case.

        The original permission_type `delegate` adds `delegate`. `call` means the actions as written; without actions it
        lends nothing."""
        values, said = self.values, self.said
        kept: list[YamlField] | None = [values.implied(USE if effect == "allow" else "*", self.node.span)]
        if "actions" in said:
            kept = values.texts(said["actions"], "actions")
        if "permission_type" not in said:
            return _joined(kept) if kept else None
        place = said["permission_type"]
        lent = values.word(said, "permission_type", PERMISSION_TYPES, "write call or delegate")
        if lent is not None and self.kind not in (None, *_NHI_KINDS):
            message = f"permission_type has no effect in {self.kind.value}"
            hint = "it belongs to user_to_nhi and nhi_to_nhi; write actions"
            values.fault("P505", message, place.key or place.span, hint)
            return None
        if not kept or lent is None:
            return None
        if lent.text == "call":
            if "actions" not in said:
                kept = [same_place(kept[0], "|".join(word for word in USED if word != DELEGATE))]
        elif not {word.strip() for action in kept for word in action.text.split("|")} & {DELEGATE, USE, "*"}:
            kept = [*kept, same_place(lent, DELEGATE)]
        return _joined(kept)

    def plain(self, key: str) -> YamlField | None:
        if key not in self.said:
            return self.values.implied(NONE, self.node.span)
        value, place = self.said[key].value, self.said[key]
        if key not in ("expires_at", "when") and value != NONE:
            if isinstance(value, int) and not isinstance(value, bool):
                return self.values.implied(str(value), place.span)
            if key == "max_calls_per_hour":
                hint = "write it without quotes: 120"
                self.values.fault("P501", f"{key} must be a whole number", place.span, hint)
                return None
        return self.values.text(place, key)


def _joined(actions: Sequence[YamlField]) -> YamlField:
    places: list[ScalarOffsets] = []
    offset = 0
    for action in actions:
        places += [ScalarOffsets(offset + place.offset, place.line, place.column) for place in action.places]
        offset += len(action.text) + 1
    text = "|".join(action.text for action in actions)
    return YamlField(text, actions[0].column, actions[0].width, places=tuple(places))


def _content_id(rule: _Rule, subjects: Sequence[CsvField], objects: Sequence[CsvField]) -> str:
    """Returns an id for a rule of several rows without one, derived from its content in any order."""
    texts: dict[str, object] = {column: found.text for column, found in rule.common.items()}
    actions = {word.strip() for word in rule.common["act"].text.split("|")}
    texts["act"] = sorted((actions - {USE}) | (set(USED) if USE in actions else set()))
    texts["sub"] = sorted(found.text for found in subjects)
    texts["obj"] = sorted(found.text for found in objects)
    return sha256(repr((rule.kind.value, sorted(texts.items()))).encode()).hexdigest()[:16]
