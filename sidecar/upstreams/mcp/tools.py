"""One tool of an upstream's list: its compiled schema, or why it is quarantined."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Final

import orjson

from sidecar.protocols.hidden_characters import hidden_in
from sidecar.protocols.mcp.messages import NAME
from sidecar.upstreams.mcp.arguments import ArgumentSchema, SchemaRefused, compile_schema, every_subschema
from sidecar.upstreams.mcp.pins import MEMBERS, UNPINNABLE, Definition, definition_of, pinned_part

HEADER_KEYWORD: Final = "x-mcp-header"
# Patterns are the one part of a schema that takes far more memory than its text.
MAX_CATALOGUE_PATTERNS: Final = 1_000
_HEADER_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,64}")
_MIRRORED_TYPES = frozenset({"string", "integer", "boolean"})


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool. `schema` is None while it is quarantined, with the reason in the sidecar's words. `param_headers` maps
    the rest of `Mcp-Param-<rest>` to the property path of the argument that it mirrors. `hidden` lists the hidden
    characters in each of its texts. `output` is its `outputSchema`, if results are checked. `digest` is that of both
    schemas as listed. `source` is the JSON text of the members that a pin covers."""

    name: str
    schema: ArgumentSchema | None
    quarantine_reason: str = ""
    param_headers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    digest: bytes = b""
    definition: Definition = UNPINNABLE
    hidden: tuple[str, ...] = ()
    output: ArgumentSchema | None = None
    source: bytes = field(default=b"", compare=False, repr=False)

    @property
    def pinnable(self) -> Mapping[str, Any]:
        """The members that a pin covers; empty for a definition that cannot be pinned."""
        return orjson.loads(self.source) if self.source else {}


def tools_from(
    entries: Sequence[object], known: Mapping[str, Tool], *, refuse_hidden: bool = False, checks_output: bool = False
) -> dict[str, Tool]:
    """Returns the tools of a list, by name, without entries that no call can name. Unchanged ones are taken from
    `known`, because compiling is expensive. With `refuse_hidden`, a tool with hidden characters is quarantined."""
    tools: dict[str, Tool] = {}
    patterns = 0
    for entry in entries:
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(entry, dict) or not isinstance(name, str) or not NAME.fullmatch(name):
            continue
        if name in tools:  # whichever is chosen, the upstream might run the other one
            tools[name] = Tool(name, None, "the tool is listed twice")
            continue
        output = entry.get("outputSchema") if checks_output else None
        tool = _tool_from(name, entry.get("inputSchema"), output, known.get(name))
        definition = definition_of(entry)
        source = orjson.dumps(pinned_part(entry)) if definition.digest else b""
        tool = replace(tool, definition=definition, hidden=_hidden_in(entry), source=source)
        if refuse_hidden and tool.hidden:
            tool = replace(tool, schema=None, quarantine_reason="hidden characters in its texts", digest=b"")
        patterns += sum(schema.patterns for schema in (tool.schema, tool.output) if schema is not None)
        if patterns > MAX_CATALOGUE_PATTERNS:
            why = "the upstream's tools have too many patterns"
            tool = replace(tool, schema=None, output=None, quarantine_reason=why, digest=b"")
        tools[name] = tool
    return tools


def _tool_from(name: str, schema: object, output: object, known: Tool | None) -> Tool:
    try:
        digest = blake2b(orjson.dumps([schema, output]), digest_size=16).digest()
    except TypeError:
        return Tool(name, None, "the schema is not plain JSON, or nested too deeply")
    # Bytes are compared, not values: to Python 1, 1.0 and True are the same schema.
    if known is not None and known.digest == digest:
        return known
    try:
        compiled = compile_schema(schema)
        mirrored = mirrored_in(schema)
    except SchemaRefused as refused:
        return Tool(name, None, str(refused), {}, digest)
    try:
        compiled_output = None if output is None else compile_schema(output, of_object=False)
    except SchemaRefused as refused:
        # A result that cannot be checked would be refused, so the tool would run in vain.
        return Tool(name, None, f"its outputSchema: {refused}", {}, digest)
    return Tool(name, compiled, "", mirrored, digest, output=compiled_output)


def _hidden_in(entry: Mapping[str, Any]) -> tuple[str, ...]:
    if not hidden_in(dict(entry)):
        return ()
    where = {key: hidden_in([key, value]) for key, value in entry.items()}
    named = ((key if key in MEMBERS else "another member", kinds) for key, kinds in where.items() if kinds)
    return tuple(dict.fromkeys(f"{member}: {', '.join(kinds)}" for member, kinds in named))


def mirrored_in(schema: object) -> dict[str, tuple[str, ...]]:
    """Returns the `x-mcp-header` annotations: header → path of the property. Raises SchemaRefused: a tool with a
    misplaced or ambiguous one must not be used (MCP 2026-07-28)."""
    found: dict[str, tuple[str, ...]] = {}
    _collect(schema, (), found)
    placed = sum(HEADER_KEYWORD in node for node in every_subschema(schema))
    if placed != len(found) or len({name.lower() for name in found}) != len(found):
        raise SchemaRefused(f"{HEADER_KEYWORD} is misplaced or names a header twice")
    return found


def _collect(node: Any, path: tuple[str, ...], found: dict[str, tuple[str, ...]]) -> None:
    """Collects annotations below a pure chain of `properties`, which leads to one place in all possible arguments."""
    if not isinstance(node, dict):
        return
    header, kind = node.get(HEADER_KEYWORD), node.get("type")
    if header is not None:
        mirrored = isinstance(kind, str) and kind in _MIRRORED_TYPES
        if not mirrored or not isinstance(header, str) or not _HEADER_TOKEN.fullmatch(header):
            raise SchemaRefused(f"{HEADER_KEYWORD} is not a header name, or not on a string, integer or boolean")
        found[header] = path
    properties = node.get("properties")
    if isinstance(properties, dict):
        for name, child in properties.items():
            _collect(child, (*path, name), found)
