"""Validates tool arguments against their JSON Schema.

Both sides are untrusted: the schema is the upstream's, the arguments are the caller's. A schema is examined once, when
it is listed, and refused if checking it could access the network or take unbounded time, or if another reader could
understand it differently; then only its tool is quarantined. An accepted schema is compiled for `jsonschema-rs`:
linear-time patterns, no retrieval.

    bound                                  why
    64 KiB, 64 levels, 64 patterns         compiling is work, and patterns are memory
    10,000 subschemas with refs unfolded   `allOf: [ref, ref]` doubles at each level
    subschemas x values of one call        what one call may cost; about 10 ns for each pair
    explaining only if it is cheap         the engine validates at once, but collects errors branch by branch

`format` is an annotation, as in JSON Schema 2020-12. `$` in a pattern is the end of the text, never a position before a
line end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote, urljoin

import orjson

from sidecar.policy.similar_keys import Keys, keys_of

MAX_SCHEMA_BYTES: Final = 64 * 1024
MAX_LEVELS: Final = 64
MAX_PATTERNS: Final = 64
MAX_PATTERN_BYTES: Final = 1024 * 1024  # compiled; `^[\w.-]{1,255}$` needs 64 KiB
MAX_WEIGHT: Final = 10_000
MAX_WORK: Final = 5_000_000  # subschemas x values: about 50 ms
MAX_PATTERN_WORK: Final = 16_000_000  # patterns x characters
MAX_EXPLAIN_WORK: Final = 2_000
MAX_POINTER_CHARS: Final = 256

TOO_MUCH: Final = "too-much-work"
UNEXPLAINED: Final = "schema"

# The engine's class of each dialect, by name. The engine is loaded with the first schema.
DIALECTS: Final[Mapping[str, str]] = {
    "https://json-schema.org/draft/2020-12/schema": "Draft202012Validator",
    "https://json-schema.org/draft/2019-09/schema": "Draft201909Validator",
    "http://json-schema.org/draft-07/schema": "Draft7Validator",
    "http://json-schema.org/draft-06/schema": "Draft6Validator",
    "http://json-schema.org/draft-04/schema": "Draft4Validator",
}
DEFAULT_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"  # MCP 2025-11-25, SEP-1613

# The keywords that refer to a schema, and the dialects that define each. Other dialects would silently ignore it.
_DYNAMIC_REF, _RECURSIVE_REF = "$dynamicRef", "$recursiveRef"
_DIALECT_OF_REF: Final = {
    _DYNAMIC_REF: "https://json-schema.org/draft/2020-12/schema",
    _RECURSIVE_REF: "https://json-schema.org/draft/2019-09/schema",
}
_EMBEDS: Final = frozenset(_DIALECT_OF_REF.values())  # the dialects in which a schema may hold others, by `$id`
# Names that every reader resolves and compares in the same way: without dot segments, escapes, ports and empty
# segments.
_STEPS = r"[A-Za-z0-9_~\-][A-Za-z0-9._~\-]*(?:/[A-Za-z0-9_~\-][A-Za-z0-9._~\-]*)*"
_PLAIN_NAME = re.compile(rf"(?:https?://[a-z0-9.\-]+(?:/{_STEPS})?|urn:[a-z0-9\-]+:[A-Za-z0-9._~:/\-]+|/?{_STEPS})\Z")
_NAMELESS: Final = "https://schema.invalid/schema"  # the base of names in a document without one
_ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:")

_ONE = ("additionalItems", "additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then",
        "unevaluatedItems", "unevaluatedProperties")  # fmt: skip
_LISTS = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
_MAPS = ("dependencies", "dependentSchemas", "patternProperties", "properties")
_DEFINITIONS = ("$defs", "definitions")
_BRANCHES = frozenset({"anyOf", "oneOf"})


class SchemaRefused(Exception):
    """This schema is not used; its tool is quarantined. The text is for operators and names the place in the schema."""


@dataclass(frozen=True, slots=True)
class Violation:
    """The place where arguments violate the schema: a JSON Pointer (RFC 6901) and the keyword, never the value. Two
    keywords are the sidecar's own: `too-much-work` (nothing was checked) and `schema` (refused, too expensive to
    locate)."""

    pointer: str
    keyword: str


@dataclass(frozen=True, slots=True)
class ArgumentSchema:
    """A compiled schema. `weight` counts its subschemas, `patterns` its patterns, both with references unfolded;
    `branches` is the largest number of subschemas in the alternatives of one; `cyclic`: it refers to itself. Values
    whose JSON text has at most `small_bytes` may be passed to `accepts` without counting."""

    weight: int
    patterns: int
    branches: int
    cyclic: bool
    _validator: Any
    keys: Keys | None = None
    accepts: Callable[[Any], bool] = field(init=False)
    small_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "accepts", self._validator.is_valid)
        # cheap even with one value and one character per byte
        object.__setattr__(self, "small_bytes", min(MAX_WORK // self.weight, MAX_PATTERN_WORK // (self.patterns or 1)))

    def violation(self, arguments: Any, size: int = 0) -> Violation | None:
        """Returns the first violation in parsed arguments, or in a result, if any. The time is bounded for any value.
        `size` is the length of the JSON text in bytes, 0 if unknown."""
        try:  # counting takes much longer
            little = (size or len(orjson.dumps(arguments))) <= self.small_bytes
        except TypeError:  # orjson cannot write it: count
            little = False
        if not little:
            values, characters, _ = _extent(arguments, MAX_WORK // self.weight)
            if values * self.weight > MAX_WORK or characters * self.patterns > MAX_PATTERN_WORK:
                return Violation("", TOO_MUCH)
        return None if self.accepts(arguments) else self._explained(arguments)

    def _explained(self, arguments: Any) -> Violation:
        values, _, depth = _extent(arguments, MAX_EXPLAIN_WORK)
        # Errors of alternatives are collected in every branch, and in a recursive schema again at every level.
        if values * self.branches ** (depth if self.cyclic else 1) > MAX_EXPLAIN_WORK:
            return Violation("", UNEXPLAINED)
        from jsonschema_rs import ValidationError

        try:
            self._validator.validate(arguments)
        except ValidationError as error:
            return Violation(_pointer(error.instance_path), error.kind.name)
        return Violation("", UNEXPLAINED)  # the engine contradicts itself: the refusal remains


def compile_schema(schema: object, *, of_object: bool = True) -> ArgumentSchema:
    """Checks and compiles an `inputSchema`, or an `outputSchema`, which is not necessarily `of_object`. Raises
    SchemaRefused."""
    import jsonschema_rs

    if not isinstance(schema, dict) or (of_object and schema.get("type") != "object"):
        raise SchemaRefused("the schema must be an object with type: object" if of_object else "it must be an object")
    _refuse_size(schema)
    dialect = _dialect_of(schema, DEFAULT_DIALECT)
    validator = DIALECTS.get(dialect)
    if validator is None:
        raise SchemaRefused("/$schema names a dialect that is not known here")
    if not jsonschema_rs.meta.is_valid(schema):
        raise SchemaRefused(_why_invalid(schema))
    survey = _Survey(schema, _SchemaPlaces(dialect))
    survey.places.note(schema)
    weight, patterns = survey.weigh(schema, "", 0, survey.places.top)
    if weight > MAX_WEIGHT or survey.patterns > MAX_PATTERNS:
        raise SchemaRefused("the schema has too many subschemas or patterns, references counted where they lead")
    try:
        compiled = getattr(jsonschema_rs, validator)(
            schema,
            retriever=_no_retrieval,
            pattern_options=jsonschema_rs.RegexOptions(size_limit=MAX_PATTERN_BYTES),
            validate_formats=False,  # by default, the engine checks formats in the older dialects
        )
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError) as error:
        raise SchemaRefused(_why_uncompiled(error)) from None
    keys = keys_of(schema, survey.led)
    return ArgumentSchema(weight, patterns, survey.branches, survey.cyclic, compiled, keys)


def every_subschema(root: object) -> Iterator[dict[str, Any]]:
    """Yields every object schema in `root`, itself included, that keywords reach; references are not followed."""
    waiting: list[object] = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting.extend(child for _, _, child in _subschemas(node))


@dataclass(slots=True)
class _SchemaPlaces:
    """Every named schema of a document, by its resource's name; `top` is the document's own, `bases` the resource of
    each id()."""

    dialect: str
    top: str = ""
    resources: dict[str, dict[str, Any]] = field(default_factory=dict)
    bases: dict[int, str] = field(default_factory=dict)
    anchors: dict[tuple[str, str], list[dict[str, Any]]] = field(default_factory=dict)
    dynamic: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def note(self, root: dict[str, Any]) -> None:
        """Walks the document. Raises SchemaRefused for names that two readers may understand differently."""
        named = root.get("$id")
        self.top = named.removesuffix("#") if isinstance(named, str) else _NAMELESS
        self.resources[self.top] = root
        waiting: list[tuple[dict[str, Any], str, str]] = [(root, self.top, "")]
        while waiting:
            node, base, at = waiting.pop()
            if node is not root and isinstance(node.get("$id"), str):
                base = self._embed(node, base, at)
            self.bases.setdefault(id(node), base)
            self._note_anchors(node, base)
            for _, step, child in _subschemas(node):
                if isinstance(child, dict):
                    waiting.append((child, base, f"{at}/{step}"))

    def _embed(self, node: dict[str, Any], base: str, at: str) -> str:
        if self.dialect not in _EMBEDS:
            raise SchemaRefused(f"{_place(at)}/$id is below the top of the schema")
        name = self.joined(base, node["$id"].removesuffix("#"))
        if name is None or name in self.resources:
            raise SchemaRefused(f"{_place(at)}/$id is not a plain name, or names two schemas")
        if _dialect_of(node, self.dialect) != self.dialect:
            raise SchemaRefused(f"{_place(at)}/$schema names another dialect than the top of the schema")
        self.resources[name] = node
        return name

    def _note_anchors(self, node: dict[str, Any], base: str) -> None:
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(name := node.get(keyword), str):
                self.anchors.setdefault((base, name), []).append(node)
        if isinstance(name := node.get("$dynamicAnchor"), str):
            self.dynamic.setdefault(name, []).append(node)
        if node.get("$recursiveAnchor") is True:
            self.dynamic.setdefault(_RECURSIVE_REF, []).append(node)

    def joined(self, base: str, name: str) -> str | None:
        """Returns a name resolved against a resource; None if readers may differ."""
        if not name:
            return base
        if not _PLAIN_NAME.match(name):
            return None
        if _ABSOLUTE.match(name):
            return name
        return urljoin(base, name) if base.startswith(("http://", "https://")) and _PLAIN_NAME.match(base) else None


@dataclass(slots=True)
class _Survey:
    """Walks every subschema once, follows references, and adds up the maximum cost of checking."""

    root: dict[str, Any]
    places: _SchemaPlaces
    cyclic: bool = False
    branches: int = 1
    patterns: int = 0
    led: dict[int, list[object]] = field(default_factory=dict)
    _known: dict[int, tuple[int, int]] = field(default_factory=dict)
    _open: set[int] = field(default_factory=set)

    def weigh(self, node: object, at: str, level: int, base: str) -> tuple[int, int]:
        """Returns the number of subschemas and patterns below `node`, itself included, references unfolded. Raises
        SchemaRefused."""
        if not isinstance(node, dict):
            return 1, 0
        if id(node) in self._open:
            self.cyclic = True
            return 1, 0
        if id(node) not in self._known:
            if level > MAX_LEVELS:
                raise SchemaRefused(f"{_place(at)} is nested deeper than {MAX_LEVELS} levels, references included")
            self._open.add(id(node))
            self._known[id(node)] = self._weigh_open(node, at, level + 1, self.places.bases.get(id(node), base))
            self._open.discard(id(node))
        return self._known[id(node)]

    def _weigh_open(self, node: dict[str, Any], at: str, level: int, base: str) -> tuple[int, int]:
        self._refuse_keywords(node, at)
        own_patterns = ("pattern" in node) + len(_mapping(node, "patternProperties"))
        self.patterns += own_patterns
        weight = 1 + len(_list(node, "enum")) // 8 + (16 if node.get("uniqueItems") else 0)
        patterns, branching = own_patterns, 0
        for keyword, step, child in _subschemas(node):
            below, within = self.weigh(child, f"{at}/{step}", level, base)
            if keyword in _DEFINITIONS:  # no cost until a reference uses it
                continue
            weight, patterns = weight + below, patterns + within
            branching += below if keyword in _BRANCHES else 0
        for keyword in ("$ref", _DYNAMIC_REF, _RECURSIVE_REF):
            if keyword in node:
                below, within = self._weigh_reference(keyword, node, at, level, base)
                weight, patterns = weight + below, patterns + within
        self.branches = max(self.branches, branching)
        return weight, patterns

    def _weigh_reference(self, keyword: str, node: dict[str, Any], at: str, level: int, base: str) -> tuple[int, int]:
        """Returns the weight of the heaviest possible target: the target of a dynamic reference depends on the call."""
        place = f"{at}/{keyword}"
        targets = self._targets(keyword, node[keyword], place, base)
        self.led.setdefault(id(node), []).extend(targets)
        weighed = [self.weigh(target, place, level, base) for target in targets]
        return max(below for below, _ in weighed), max(within for _, within in weighed)

    def _refuse_keywords(self, node: dict[str, Any], at: str) -> None:
        for keyword, dialect in _DIALECT_OF_REF.items():
            if keyword in node and dialect != self.places.dialect:
                raise SchemaRefused(f"{_place(at)}/{keyword} is not of this dialect, but of {dialect}")
        # A second base would change the meaning of every "#/..." below it; a base that no keyword reaches has no
        # effect.
        unnoted = node is not self.root and id(node) not in self.places.bases
        for keyword, refused in (("$id", unnoted), ("id", node is not self.root and not self._embeds)):
            if refused and isinstance(node.get(keyword), str):
                raise SchemaRefused(f"{_place(at)}/{keyword} is below the top of the schema")

    @property
    def _embeds(self) -> bool:
        return self.places.dialect in _EMBEDS

    def _targets(self, keyword: str, reference: object, at: str, base: str) -> Sequence[object]:
        name, _, fragment = reference.partition("#") if isinstance(reference, str) else ("", "", "")
        where = self.places.joined(base, name)
        if not isinstance(reference, str) or where not in self.places.resources or (name and not self._embeds):
            raise SchemaRefused(f"{_place(at)} leads out of the schema: {str(reference)[:100]!r}")
        fragment = unquote(fragment)
        if keyword == _RECURSIVE_REF:
            top = self.places.resources[where]
            return [top, *self.places.dynamic.get(_RECURSIVE_REF, ())] if top.get("$recursiveAnchor") is True else [top]
        if not fragment or fragment.startswith("/"):
            return [self._pointed(fragment, reference, at, where)]
        target = self._anchored(fragment, at, where)
        if keyword == _DYNAMIC_REF and target.get("$dynamicAnchor") == fragment:
            return self.places.dynamic[fragment]
        return [target]

    def _pointed(self, pointer: str, reference: str, at: str, where: str) -> object:
        node: object = self.places.resources[where]
        for token in pointer.split("/")[1:]:
            step = token.replace("~1", "/").replace("~0", "~")
            if isinstance(node, dict) and step in node:
                node = node[step]
            elif isinstance(node, list) and step.isascii() and step.isdigit() and int(step) < len(node):
                node = node[int(step)]
            else:
                raise SchemaRefused(f"{_place(at)} leads nowhere: {reference[:100]!r}")
        if not isinstance(node, dict | bool):
            raise SchemaRefused(f"{_place(at)} leads to something that is not a schema: {reference[:100]!r}")
        return node

    def _anchored(self, name: str, at: str, where: str) -> dict[str, Any]:
        found = self.places.anchors.get((where, name), ())
        if len(found) != 1:
            raise SchemaRefused(f"{_place(at)} names an anchor that does not exist once: {name[:100]!r}")
        return found[0]


def _dialect_of(schema: dict[str, Any], default: str) -> str:
    """Returns the dialect that a schema names, without an empty fragment; "" if it is not a name."""
    dialect = schema.get("$schema", default)
    return dialect.removesuffix("#") if isinstance(dialect, str) else ""


def _subschemas(node: dict[str, Any]) -> Iterator[tuple[str, str, object]]:
    """Yields keyword, path and value of every schema directly below this one."""
    for keyword in _ONE:
        if isinstance(node.get(keyword), dict):
            yield keyword, keyword, node[keyword]
    for keyword in _LISTS:
        for index, child in enumerate(_list(node, keyword)):
            yield keyword, f"{keyword}/{index}", child
    for keyword in (*_MAPS, *_DEFINITIONS):
        for name, child in _mapping(node, keyword).items():
            if isinstance(child, dict | bool):
                yield keyword, f"{keyword}/{_escaped(name)}", child


def _list(node: dict[str, Any], keyword: str) -> list[Any]:
    value = node.get(keyword)
    return value if isinstance(value, list) else []


def _mapping(node: dict[str, Any], keyword: str) -> dict[str, Any]:
    value = node.get(keyword)
    return value if isinstance(value, dict) else {}


def _refuse_size(schema: dict[str, Any]) -> None:
    try:
        size = len(orjson.dumps(schema))
    except TypeError:  # nested too deep for orjson, or an integer beyond 64 bits
        raise SchemaRefused("the schema is not plain JSON, or nested too deeply") from None
    if size > MAX_SCHEMA_BYTES:
        raise SchemaRefused(f"the schema has {size} bytes, more than {MAX_SCHEMA_BYTES}")


def _extent(arguments: Any, enough: int) -> tuple[int, int, int]:
    """Returns the number of values and characters (keys included) and the depth of parsed JSON; counting ends soon
    after `enough` values."""
    values, characters, depth = 0, 0, 0
    level: list[Any] = [arguments]
    while level and values <= enough:
        depth += 1
        values += len(level)
        below: list[Any] = []
        for value in level:
            if isinstance(value, str):
                characters += len(value)
            elif isinstance(value, dict):
                characters += sum(map(len, value))
                below.extend(value.values())
            elif isinstance(value, list):
                below.extend(value)
        level = below
    return values, characters, depth


def _pointer(path: list[str | int]) -> str:
    pointer = "".join(f"/{_escaped(str(token))}" for token in path)
    # Below additionalProperties a name is the caller's own; a long one must not fill an error.
    return pointer if len(pointer) <= MAX_POINTER_CHARS else pointer[:MAX_POINTER_CHARS].rpartition("/")[0]


def _place(at: str) -> str:
    """Returns a path in a schema for error texts, shortened to its end."""
    return at if len(at) <= MAX_POINTER_CHARS else f"...{at[-MAX_POINTER_CHARS:]}"


def _escaped(token: str) -> str:
    return token.replace("~", "~0").replace("/", "~1")


def _no_retrieval(uri: str) -> Any:
    raise ValueError("references are never fetched")


def _why_uncompiled(error: Exception) -> str:
    path = _pointer(getattr(error, "instance_path", []))
    if path.endswith("/pattern") or "patternProperties" in path:
        return f"{path} is not a pattern of the linear-time kind, or too large: no look-around, no back-references"
    return f"{path or '/'} cannot be compiled"


def _why_invalid(schema: dict[str, Any]) -> str:
    """Returns the second engine's explanation of a schema that the meta-schema refuses. Imported late, because it is
    rarely needed."""
    import jsonschema
    from jsonschema.exceptions import best_match

    judge = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    error = best_match(judge(judge.META_SCHEMA).iter_errors(schema))
    if error is None:
        return "the schema does not follow its dialect"
    return f"{_pointer(list(error.absolute_path)) or '/'} does not follow the dialect ({error.validator})"
