r"""Evaluates the CEL conditions of rules.

Conditions are CEL. Google's C++ runtime (`cel-expr-python`) compiles and type-checks them when the policy is loaded,
except plain ones (`plain_parser`, `plain_conditions`): these it compiles only when an input is not plain. A condition
holds only when it returns Boolean true. An error, another value or an exhausted budget gives `error`, which an allow
row treats as "no match" and a deny row as "match".

Input from callers is bounded in this order. Only the values that the expression reads are converted. Values nested
deeper than 64 are not converted (the runtime converts by recursion on the C stack: 10,000 levels end the process), nor
is text with a NUL (the runtime would see `acme/x` where the upstream gets `acme/x\0…`). The size of the read values,
multiplied by the macros' iterations, must fit the decision's budget. The runtime itself stops after 10,000 iterations,
and its regular expressions (RE2) are linear.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from sidecar.policy.faults import meant, shown
from sidecar.policy.grammar import Wrong
from sidecar.policy.plain_conditions import UNITS_PER_CHAR, UNITS_PER_NODE, PlainCondition, Ran, plain_condition
from sidecar.policy.plain_parser import parsed
from sidecar.policy.similar_keys import read_of
from sidecar.policy.syntax import CalledFunction, Path, Syntax, name_of, syntax_of
from sidecar.vocabulary import Chain, Principal, Question, Read

if TYPE_CHECKING:
    from cel_expr_python import cel

MAX_CONDITION_CHARS = 4096
MAX_DEPTH = 64
MAX_ITERATIONS = 10_000  # the runtime's own budget
# One unit is 20 to 50 ns, measured with the worst inputs found; a decision may take some tens of milliseconds.
MAX_UNITS = 1_000_000
_MAX_NODES = MAX_UNITS // UNITS_PER_NODE
_UNITS_PER_MATCHED_CHAR = 16  # RE2 on a pattern that outgrows its DFA
_UNITS_PER_DYNAMIC_CHAR = 64  # RE2 on a pattern that the caller supplies
_CONTAINS_SQUARE = 1 / 64  # `contains` is quadratic if both texts come from the caller

PRINCIPAL_FIELDS = ("name", "kind", "id", "scopes", "roles")
CALL_FIELDS = ("server", "tool", "action", "meta")
VARIABLES = ("args", "principal", "origin", "chain", "call", "now")

Outcome = Ran | Literal["assumed", "doubted"]

Evaluation = tuple[Ran, Mapping[str, Any], float]
"""The outcome of a condition, the values that it read, by path, and the remaining units."""

_COMPILE_ERROR = re.compile(r"ERROR: <input>:(\d+):(\d+): (.*)")
_UNDECLARED = re.compile(r"undeclared reference to '([^']*)'")
# Names to suggest for a mistyped one: standard definitions of cel-spec, and the sidecar's own
_FUNCTIONS = (
    *("has_role", "has", "all", "exists", "exists_one", "filter", "map", "size"),
    *("contains", "startsWith", "endsWith", "matches", "timestamp", "duration"),
    *("getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear", "getFullYear"),
    *("getHours", "getMinutes", "getMonth", "getSeconds"),
    *("int", "uint", "double", "string", "bool", "bytes", "type", "dyn"),
)
_Tree = dict[str, Any]  # by key: the tree below, or the path that ends there, such as "args.repo"


def lets_match(outcome: object, denies: int) -> bool:
    """Whether a row's condition lets it match. An error means no match for an allow row, and a match for a deny row. A
    doubted condition is treated like an error, and an assumed one, while listing, the opposite way."""
    if outcome in ("error", "doubted"):
        return bool(denies)
    if outcome == "assumed":
        return not denies
    return outcome == "true"


class ConditionContext(NamedTuple):
    """The inputs of the conditions of one link. `subject` is the position of the link's subject in the chain; `args` is
    empty for a link that lends authority; `question` is that of the call as a whole, for every link; `now_s` is in
    seconds since the epoch."""

    chain: Chain
    subject: int
    question: Question
    args: Mapping[str, Any]
    now_s: float
    roles_of: Callable[[Principal], frozenset[str]]

    def variable(self, name: str) -> Any:
        """Returns the value of one of the VARIABLES."""
        match name:
            case "args":
                return self.args
            case "principal":
                return self._principal(self.chain[self.subject])
            case "origin":
                return self._principal(self.chain[0])
            case "chain":
                return [self._principal(principal) for principal in self.chain]
            case "call":
                asked = self.question
                return {"server": asked.server, "tool": asked.tool, "action": asked.action, "meta": asked.meta}
            case _:
                return datetime.fromtimestamp(self.now_s, UTC)

    def _principal(self, principal: Principal) -> dict[str, Any]:
        scopes, roles = sorted(principal.scopes), sorted(self.roles_of(principal))
        name, kind, own_id = principal.name, principal.kind, principal.id
        return {"name": name, "kind": kind, "id": own_id, "scopes": scopes, "roles": roles}


@dataclass(frozen=True, slots=True)
class Condition:
    """One compiled `when`. `digest` is the SHA-256 of its text in hex; `paths` and `tree` are the values that it reads;
    `from_caller`: it reads `args` or `call.meta`; `looped` and `ranged` are the paths that are read inside macros, and
    iterated over; `per_char` and `per_square` are the units that a character costs, alone and squared; `names` are the
    names that it reads in `args`. `plain` evaluates it without CEL's runtime if possible."""

    text: str
    digest: str
    paths: tuple[Path, ...]
    from_caller: bool
    program: cel.Expression | LateProgram
    tree: _Tree
    syntax: Syntax
    looped: tuple[Path, ...]
    ranged: tuple[Path, ...]
    per_char: float
    per_square: float
    names: Read
    plain: PlainCondition | None = None

    @property
    def trusts_meta(self) -> bool:
        return any(path[:2] in (("call",), ("call", "meta")) for path in self.paths)

    def run(self, scene: ConditionContext, units: float = MAX_UNITS) -> Evaluation:
        """Evaluates it with the remaining `units` of the decision. Missing values are not among the read values; `now`
        is in seconds. Never raises for input that a caller can send."""
        ran = None if self.plain is None else self.plain.run(scene, units)
        return self.evaluate(scene, units) if ran is None else ran

    def evaluate(self, scene: ConditionContext, units: float) -> Evaluation:
        """Evaluates it in CEL's runtime."""
        read: dict[str, Any] = {}
        try:
            data = _cut({name: scene.variable(name) for name in self.tree}, self.tree, read)
            if "now" in read:
                read["now"] = data["now"].timestamp()
            units -= self._cost(data)
            if units < 0:
                return "error", read, units
            value = self.program.eval(None, data).plain_value()  # positional: a keyword argument takes longer
        except (RuntimeError, ValueError, OverflowError, _UnfitError):
            return "error", read, units  # the runtime's own failures; the rule's effect decides how to fail closed
        return "true" if value is True else "false" if value is False else "error", read, units

    def _cost(self, data: Mapping[str, Any]) -> float:
        """Returns the upper bound of one run's cost, in units."""
        nodes, chars = _size(data.values())
        units = nodes * UNITS_PER_NODE + chars * self.per_char + (chars * chars * self.per_square)
        syntax = self.syntax
        if not syntax.loops or units > MAX_UNITS:
            return units
        ranged, _ = _size([_at(data, path) for path in self.ranged])
        nodes, chars = _size([_at(data, path) for path in self.looped])
        iterations: int = min(MAX_ITERATIONS, (ranged + syntax.range_nodes) ** syntax.loops)
        return units + iterations * (
            nodes + syntax.loop_nodes + chars * self.per_char + chars * chars * self.per_square
        )


class _UnfitError(Exception):
    """A value that must not reach the runtime."""


class Language:
    """Compiles conditions. One is created per load. CEL's library is loaded with the first condition or input that is
    not plain."""

    @cached_property
    def environment(self) -> cel.Env:
        from cel_expr_python import cel

        record = cel.Type.Map(cel.Type.STRING, cel.Type.DYN)
        types = dict.fromkeys(VARIABLES, record)
        types |= {"chain": cel.Type.List(record), "now": cel.Type.TIMESTAMP}
        has_role = cel.Overload(
            "has_role_principal_string",
            return_type=cel.Type.BOOL,
            parameters=[record, cel.Type.STRING],
            impl=lambda principal, role: role in principal["roles"],
        )
        return cel.NewEnv(variables=types, functions=[cel.FunctionDecl("has_role", [has_role])])

    def compile(self, text: str) -> Condition:
        """Compiles a condition. Raises Wrong, with the position inside the text if there is one."""
        if len(text) > MAX_CONDITION_CHARS:
            raise Wrong("P401", f"a condition has at most {MAX_CONDITION_CHARS} characters")
        serialized = parsed(text)
        plain = None if serialized is None else plain_condition(serialized)
        program: cel.Expression | LateProgram = LateProgram(self, text)
        if serialized is None or plain is None:
            program = self._program(text)
            serialized = program.serialize()
            plain = plain_condition(serialized)
        syntax = syntax_of(serialized)
        _check_reads(text, syntax)
        return _condition(text, program, syntax, plain)

    def _program(self, text: str) -> cel.Expression:
        try:
            program = self.environment.compile(text)
        except RuntimeError as error:
            raise _compile_error(text, str(error)) from None
        if program.return_type().name() not in ("BOOL", "DYN"):
            raise Wrong(
                "P402", f"returns {program.return_type().name().lower()}", "a condition must return true or false"
            )
        return program


class LateProgram:
    """CEL's program of a condition that was parsed here: compiled when an input is not plain."""

    __slots__ = ("_language", "_program", "_text")

    def __init__(self, language: Language, text: str) -> None:
        self._language, self._text = language, text
        self._program: cel.Expression | None = None

    def eval(self, activation: None, data: Mapping[str, Any]) -> cel.Value:
        """Evaluates like `cel.Expression.eval`. Raises RuntimeError."""
        if self._program is None:
            self._program = self._language.environment.compile(self._text)
        return self._program.eval(activation, data)


def _compile_error(text: str, message: str) -> Wrong:
    found = _COMPILE_ERROR.search(message)
    if found is None:
        return Wrong("P401", "does not compile: " + message.splitlines()[0][:200])
    offset, told = max(0, int(found[2]) - 1), "does not compile: " + found[3][:200]
    unknown = _UNDECLARED.search(found[3])
    if unknown is None:
        return Wrong("P401", told, "look at the brackets, quotes and operators around it", offset=offset, width=1)
    word = unknown[1].partition(".")[0]  # the compiler marks the dot or bracket after the name
    hint = meant(word, (*VARIABLES, *_FUNCTIONS)) or "variables are " + ", ".join(VARIABLES)
    return Wrong("P401", told, hint, offset=max(0, text.rfind(word, 0, offset + len(word))), width=len(word))


def _check_reads(text: str, syntax: Syntax) -> None:
    for read in syntax.reads:
        known = {"principal": PRINCIPAL_FIELDS, "origin": PRINCIPAL_FIELDS, "call": CALL_FIELDS}.get(read.path[0])
        if known and len(read.path) > 1 and read.path[1] not in known:
            hint = meant(read.path[1], known) or "known fields are " + ", ".join(known)
            at = max(read.offset, text.find(read.path[1], read.offset))
            width = len(read.path[1])
            raise Wrong("P403", f"{read.path[0]} has no {shown(read.path[1])}", hint, offset=at, width=width)
    for call in syntax.calls:
        if call.function == "has_role" and any(path[0] in ("args", "call") for path in call.first_argument):
            hint = "use principal, origin or an element of chain"
            raise Wrong("P404", "has_role of a value that the caller wrote", hint, offset=call.offset, width=1)


def _condition(
    text: str, program: cel.Expression | LateProgram, syntax: Syntax, plain: PlainCondition | None
) -> Condition:
    paths = _outermost({read.path for read in syntax.reads if read.path[0] in VARIABLES})
    tree: _Tree = {}
    for path in paths:
        branch = tree
        for step in path[:-1]:
            branch = branch.setdefault(step, {})
        branch[path[-1]] = name_of(path)
    named = (*(read.path for read in syntax.reads), *syntax.sought)
    loops = any(read.ranged and read.path[0] == "args" for read in syntax.reads)
    return Condition(
        text=text,
        digest=sha256(text.encode()).hexdigest(),
        paths=paths,
        from_caller=any(path[0] == "args" or path == ("call",) or path[:2] == ("call", "meta") for path in paths),
        program=program,
        tree=tree,
        syntax=syntax,
        looped=_outermost({read.path for read in syntax.reads if read.looped and read.path[0] in VARIABLES}),
        ranged=tuple(read.path for read in syntax.reads if read.ranged and read.path[0] in VARIABLES),
        per_char=max([UNITS_PER_CHAR, *(_units_per_char(call) for call in syntax.calls)]),
        per_square=_CONTAINS_SQUARE if any(c.function == "contains" and c.dynamic for c in syntax.calls) else 0,
        names=read_of([path[1:] for path in named if path[0] == "args"], syntax.inner if loops else ()),
        plain=plain,
    )


def _units_per_char(call: CalledFunction) -> float:
    if call.function != "matches":
        return UNITS_PER_CHAR
    return _UNITS_PER_DYNAMIC_CHAR if call.dynamic else _UNITS_PER_MATCHED_CHAR


def _outermost(paths: set[Path]) -> tuple[Path, ...]:
    return tuple(sorted(path for path in paths if not any(path[:size] in paths for size in range(1, len(path)))))


def _cut(value: Any, tree: _Tree, read: dict[str, Any]) -> Any:
    """Returns the part of the value that the tree reads, and adds the values at the tree's leaves to `read`, by
    path."""
    if not isinstance(value, dict):
        return value
    cut = {}
    for key, below in tree.items():
        if key in value:
            found = value[key]
            if isinstance(below, str):
                read[below] = found
            else:
                found = _cut(found, below, read)
            cut[key] = found
    return cut


def _at(value: Any, path: Path) -> Any:
    for step in path:
        if not isinstance(value, dict) or step not in value:
            return None
        value = value[step]
    return value


def _size(values: Iterable[Any]) -> tuple[int, int]:
    """Returns the number of nodes and of characters in some values. Stops above the largest possible budget. Raises
    _UnfitError for text with a NUL and for values that are nested too deeply."""
    nodes = chars = 0
    level = [*values]
    for _ in range(MAX_DEPTH):
        nodes += len(level)
        below: list[Any] = []
        for value in level:
            if isinstance(value, str):
                if "\0" in value:
                    raise _UnfitError
                chars += len(value)
            elif isinstance(value, (dict, list)):
                if nodes + len(below) + len(value) > _MAX_NODES:
                    return nodes + len(below) + len(value), chars
                below.extend(value)
                if isinstance(value, dict):
                    below.extend(value.values())
        if not below:
            return nodes, chars
        level = below
    raise _UnfitError
