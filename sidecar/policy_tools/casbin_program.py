"""Reads the model and rows of a Casbin program, and proposes the settings under which they decide calls.

The files are not changed. What no file of the program states is asked of the user or assumed, and each assumption is
reported: the name in the policy of the caller at the local listener, the tools that correspond to its objects and
actions, and the settings in its code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Final, NamedTuple

from pydantic import Field

from sidecar.errors import PolicyError, fault_in
from sidecar.policy.faults import Faults
from sidecar.policy.files import KINDS, read_text
from sidecar.policy.grammar import NONE
from sidecar.policy.model import model_entries
from sidecar.policy.source import load_policy
from sidecar.policy.stock.expression import Text, place_of, text_fields
from sidecar.policy.stock.model import BadModelError, StockModel, model_of
from sidecar.policy.stock.reading import RowLine, path_of
from sidecar.policy.stock.row_index import Row
from sidecar.policy_tools.casbin_trace import attributes_read
from sidecar.settings.field_types import Slug, url_of
from sidecar.settings.policy import CasbinNames, CasbinSettings, Kind, ModelFiles, ObjectTarget, RoleFunctions

PLANNER: Final = "nhi:planner"
EXAMPLE: Final = "example"
EXAMPLE_URL: Final = "http://127.0.0.1:9100/mcp"
MAX_SERVERS: Final = 8  # objects that become one upstream each
MAX_DOMAINS: Final = 8  # that get one entry each
MAX_NAME_CHARS: Final = 256
MAX_KNOWN: Final = 100  # subjects of rows that are examined
MAX_SLUG_CHARS: Final = 64
_PATTERN: Final = re.compile(r"[*:{}()\[\]|\\/^$?]")
_NAMESPACE: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_NO_SLUG: Final = re.compile(r"[^a-z0-9]+")

Ask = Callable[[str, str, Sequence[str]], str]
"""Asks a person: a question, the default answer, and the possible answers (empty: any)."""


class CasbinMap(CasbinSettings):
    """The settings in a file for `--map`: those of a Casbin model in `policy`, and others with which `init` writes
    sidecar.yaml."""

    use: Annotated[int, Field(strict=True, ge=1, le=9)] = 1
    """The number of the definitions in use: 2 for `r2`, `p2` and `m2`."""
    upstreams: Mapping[Slug, Annotated[str, url_of("http", "https")]] = Field(default_factory=dict)
    """The MCP servers, by name."""


@dataclass(frozen=True, slots=True)
class CasbinProgram:
    """The files of a program. `rows` are those of the definition in use; `links` are the rows of roles, by
    definition."""

    model: StockModel
    rows: Sequence[Row]
    links: Mapping[str, Sequence[Row]]

    def column(self, text: Text) -> list[str]:
        """Returns the distinct values of a column, in order."""
        place = place_of(text, self.model.columns)
        return [] if place is None else list(dict.fromkeys(row[place] for row in self.rows if place < len(row)))

    def asks(self, text: Text) -> bool:
        """Whether a request has a text field of this name."""
        return text in text_fields(self.model.request).values()

    @property
    def roles(self) -> frozenset[str]:
        return frozenset(link[1] for link in self.links.get("g", ()) if len(link) > 1)

    def attributes(self) -> dict[str, list[str]]:
        """Returns the attributes that the matcher and rules in rows read, of the subject by `principal` and of the
        object by `object`."""
        texts = (text for row in self.rows for text in row)
        found: dict[str, list[str]] = {"principal": [], "object": []}
        for name, attribute in attributes_read(self.model, texts):
            side = {"sub": "principal", "obj": "object"}.get(text_fields(self.model.request).get(name, ""), "")
            if side and attribute not in found[side]:
                found[side].append(attribute)
        return found


class Proposal(NamedTuple):
    """The settings, with the assumptions. `why` are comments on settings, by their path; `notes` are sentences for the
    user; `attributes` are those of principals and objects that the policy reads; `example` is a sentence with a call
    and its request, "" for none."""

    settings: CasbinMap
    attributes: Mapping[str, Sequence[str]]
    why: Mapping[str, str]
    notes: Sequence[str]
    example: str


def files_in(policy: Sequence[Path]) -> list[Path]:
    """Returns the files of rows. For a folder these are all `.csv` files, ordered by name. Raises PolicyError."""
    found: list[Path] = []
    for path in policy:
        inside = sorted(path.glob("*.csv")) if path.is_dir() else [path]
        if not inside:
            raise PolicyError([fault_in(path, "no .csv file is in this folder", code="P001")])
        found += inside
    return found


def read_program(model: Path, policy: Sequence[Path], use: int) -> CasbinProgram | None:
    """Reads the files of a program, without rows that cannot be parsed; None if its model is invalid. `check_program`
    reports both."""
    faults = Faults()
    text = read_text(model, faults)
    entries = model_entries(str(model), text, faults) if text is not None else {}
    try:
        found = model_of({key: entry.value for key, entry in entries.items()}, "" if use == 1 else str(use))
    except BadModelError:
        return None
    rows: dict[str, list[Row]] = {}
    for path in policy:
        for line in (read_text(path, faults) or "").splitlines():
            if (stripped := line.strip()) and not stripped.startswith("#"):
                try:
                    key, *fields = RowLine(str(path), 0, stripped).fields
                except ValueError:
                    continue
                rows.setdefault(key, []).append(tuple(fields))
    links = {key: [row for row in rows.get(key, ()) if len(row) >= 2] for key in found.roles}
    return CasbinProgram(found, rows.get(f"p{found.suffix}", []), links)


def check_program(model: Path, policy: Sequence[Path], settings: CasbinMap) -> None:
    """Loads the program under these settings. Raises PolicyError with every fault."""
    files = ModelFiles.model_construct(model=model, policy=tuple(policy), use=settings.use)
    kinds: Mapping[Kind, ModelFiles] = {kind.value: files for kind in KINDS}  # type: ignore[misc]
    with TemporaryDirectory() as empty:
        load_policy(kinds, Path(empty), casbin=settings)


def propose(program: CasbinProgram, given: CasbinMap, ask: Ask | None = None) -> Proposal:
    """Returns the settings of a program: those in `given`; the others as the files suggest, or with `ask`, as the user
    answers."""
    return _Proposing(program, given, ask).run()


@dataclass
class _Proposing:
    program: CasbinProgram
    given: CasbinMap
    ask: Ask | None
    why: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def run(self) -> Proposal:
        program, given = self.program, self.given
        names, servers = self._names()
        settings = given.model_copy(
            update={
                "names": names,
                "roles": {**self._roles(), **given.roles},
                "request": {**self._request(), **given.request},
                "default": self._default(),
                "upstreams": given.upstreams or dict.fromkeys(servers, self._url()),
            }
        )
        read = program.attributes()
        for name in program.model.request:
            side, _, attribute = (path_of(name, settings) or "").partition(".")
            if name not in text_fields(program.model.request) and side in read and attribute not in read[side]:
                read[side].append(attribute)
        if any(read.values()):
            told = [f"{side}.{name}" for side, found in read.items() for name in found]
            self.notes.append(f"the policy reads {_listed(told)}: write them into policies/attributes.yaml")
        return Proposal(settings, read, self.why, self.notes, self._example(settings))

    def _names(self) -> tuple[CasbinNames, list[str]]:
        """Returns the names, and the upstreams that they belong to."""
        said = self.given.names.model_fields_set
        subject, domain = self._caller()
        tables: dict[str, Mapping[str, str | ObjectTarget]] = {
            name: getattr(self.given.names, name) for name in ("actions", "roles")
        }
        if "subjects" in said:
            tables["subjects"] = self.given.names.subjects
        elif subject:
            tables["subjects"] = self._subjects(subject)
        else:
            tables["subjects"] = {"user:*": "*", "nhi:*": "*"}
        if "domains" in said or not self.program.asks("dom") or not domain:
            tables["domains"] = self.given.names.domains
        else:
            tables["domains"] = {NONE: domain, "*": "*"}
            self.notes.append(f"callers without a namespace are in the domain {domain}")
            self.why["domains"] = "assumed for callers without a namespace; user:d/alice is in the domain d"
        objects, servers = self._objects()
        tables["objects"] = self.given.names.objects if "objects" in said else objects
        if "objects" in said:
            self.why.pop("objects", None)
            servers = list(dict.fromkeys(filter(None, map(_server_of, tables["objects"])))) or [EXAMPLE]
        return CasbinNames.model_validate(tables), servers

    def _caller(self) -> tuple[str, str]:
        """Returns the subject in the policy that `nhi:planner` is, and the domain of callers without a namespace; ""
        for a value that the rows do not show."""
        program = self.program
        roles = program.roles
        found = (pair for pair in self._pairs() if pair[0] and pair[0] not in roles and all(map(_is_plain, pair)))
        pairs = list(islice(found, MAX_KNOWN))
        subject, domain = next(iter(pairs), ("", ""))
        if not domain:
            domain = next(filter(_is_plain, program.column("dom")), "")
        if self.ask is None or "subjects" in self.given.names.model_fields_set or not program.asks("sub"):
            return subject, domain
        known = list(dict.fromkeys(name for name, _ in pairs))
        asked = f"The local listener calls as {PLANNER}. Who is that in the policy"
        return self.ask(f"{asked} ({_listed(known)})" if known else asked, subject or "planner", ()), domain

    def _pairs(self) -> Iterator[tuple[str, str]]:
        """Yields the subjects of rows, then the members of roles, each with its domain, "" for none."""
        columns, form = self.program.model.columns, self.program.model.roles.get("g")
        sub, dom = place_of("sub", columns), place_of("dom", columns)
        for row in self.program.rows:
            if sub is not None and len(row) == len(columns):
                yield row[sub], row[dom] if dom is not None else ""
        for link in self.program.links.get("g", ()):
            yield link[0], link[2] if form is not None and form.by_domain and len(link) > 2 else ""

    def _subjects(self, subject: str) -> dict[str, str]:
        """Returns the entries for subjects. Those for domains remove the namespace from a name: `user:d1/alice` is
        alice."""
        self.notes.append(f"{PLANNER}, the caller at the local listener, is {subject} in this policy")
        self.why["subjects"] = f"who {PLANNER} is was assumed: the first subject of the rows that is not a role"
        domains = self.program.column("dom") if self.program.asks("dom") else []
        plain = list(filter(_NAMESPACE.fullmatch, domains))[:MAX_DOMAINS]
        return {PLANNER: subject, **{f"user:{name}/*": "*" for name in plain}, "user:*": "*"}

    def _objects(self) -> tuple[dict[str, str | ObjectTarget], list[str]]:
        objects, with_action = self._known_objects(), self.program.asks("act")
        servers = {_slug(name): name for name in objects}
        plain = all(map(_is_plain, objects)) and all(servers) and len(servers) == len(objects)
        if objects and plain and len(objects) <= MAX_SERVERS:
            self.why["objects"] = "each object is an upstream, and its tools are the actions"
            found: dict[str, str | ObjectTarget] = {
                f"tool:{server}/*": ObjectTarget(obj=name, act="*") if with_action else name
                for server, name in servers.items()
            }
            return found, [*servers]
        obj = "/*" if any(name.startswith("/") for name in objects) else "*"
        if not with_action:
            self.why["objects"] = "the tool's name is the object"
            return {f"tool:{EXAMPLE}/*": obj}, [EXAMPLE]
        if not self.program.asks("obj"):
            self.why["objects"] = "the tool's name is the action"
            return {f"tool:{EXAMPLE}/*": ObjectTarget(obj="*", act="*")}, [EXAMPLE]
        called = "data/1/GET is /data/1 and GET" if obj == "/*" else "data1/read is data1 and read"
        self.why["objects"] = f"the tool {called}; for a tool of another name write its own entry above this one"
        return {f"tool:{EXAMPLE}/*/*": ObjectTarget(obj=obj, act="*2")}, [EXAMPLE]

    def _known_objects(self) -> list[str]:
        """Returns the objects of the rows. A role of objects is replaced by its members."""
        program, letter = self.program, f"r{self.program.model.suffix}"
        found = program.column("obj")
        fields = text_fields(program.model.request)
        obj = next((name for name, text in fields.items() if text == "obj"), "obj")
        for key in program.model.roles:
            if key != "g" and re.search(rf"\b{key}\(\s*{letter}\.{obj}\b", program.model.matcher):
                roles = {link[1] for link in program.links[key]}
                members = [link[0] for link in program.links[key]]
                found = list(dict.fromkeys(name for name in (*found, *members) if name not in roles))
        return found

    def _roles(self) -> dict[str, RoleFunctions]:
        found: dict[str, RoleFunctions] = {}
        for key, form in self.program.model.roles.items():
            if key in self.given.roles:
                continue
            links = self.program.links.get(key, ())
            if form.parameters:
                found[key] = RoleFunctions(condition="timeMatch")
                self.why[f"roles.{key}"] = "assumed: the only condition that Casbin has"
                self.notes.append(f"the parameters of {key} rows are taken for times (timeMatch)")
                continue
            members = [name for link in links for name in link[:2] if _PATTERN.search(name)]
            domains = [link[2] for link in links if form.by_domain and len(link) > 2 and _PATTERN.search(link[2])]
            chosen = {
                "match": self._matching(key, "names", members),
                "match_domain": self._matching(key, "domains", domains),
            }
            said = {name: value for name, value in chosen.items() if value}
            if said:
                found[key] = RoleFunctions.model_validate(said)
        return found

    def _matching(self, key: str, what: str, patterns: Sequence[str]) -> str:
        """Returns the function that matches patterns in role rows, as the user answers; "" for none. `what` is `names`
        or `domains`."""
        if not patterns:
            return ""
        call = "add_named_matching_func" if what == "names" else "add_named_domain_matching_func"
        if self.ask is not None:
            question = f"{key} rows have {_listed(patterns)}. Which function does the program give to {call}"
            answer = self.ask(question, "none", ("none", *_MATCHING))
            return "" if answer == "none" else answer
        option = "match" if what == "names" else "match_domain"
        self.notes.append(
            f"{key} rows have {_listed(patterns)}, taken literally: if the program calls {call}, write "
            f"policy.roles: {{{key}: {{{option}: <function>}}}}"
        )
        return ""

    def _request(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for name in self.program.model.request:
            if name in text_fields(self.program.model.request) or path_of(name, self.given) is not None:
                continue
            side, _, attribute = name.partition("_")
            of = {"subject": "principal", "user": "principal", "object": "object"}.get(side)
            found[name] = f"{of}.{attribute}" if attribute and of else f"principal.{name}"
            self.why[f"request.{name}"] = "assumed"
        if found:
            told = [f"r.{name} is {path}" for name, path in found.items()]
            self.notes.append(f"assumed: {', '.join(told)}")
        return found

    def _default(self) -> str:
        if self.program.model.effect.allows_by_default and self.given.default == "deny":
            self.why["default"] = "this model allows what no row denies"
            self.notes.append("this model allows every request that no row denies (policy.default: allow)")
            return "allow"
        return self.given.default

    def _url(self) -> str:
        return EXAMPLE_URL if self.ask is None else self.ask("The address of your MCP server", EXAMPLE_URL, ())

    def _example(self, settings: CasbinMap) -> str:
        """Returns a sentence with a call and its request, by the first object and action in rows; "" if the user gave
        names, or if a part is missing."""
        if self.given.names.model_fields_set or not self.program.asks("sub"):
            return ""
        subject = settings.names.subjects.get(PLANNER, "")
        obj = next((name for name in self._known_objects() if _is_plain(name.lstrip("/"))), "")
        act = next(filter(_is_plain, self.program.column("act")), "")
        server = next(iter(settings.names.objects)).removeprefix("tool:").partition("/")[0]
        if not subject or not obj or not act:
            return ""
        tool = act if server != EXAMPLE else f"{obj.lstrip('/')}/{act}"
        return f"tool:{server}/{tool}, called by {PLANNER}, is asked as ({subject}, {obj}, {act})"


_MATCHING: Final = ("keyMatch", "keyMatch2", "keyMatch3", "keyMatch4", "keyMatch5", "globMatch", "regexMatch")


def _server_of(pattern: str) -> str:
    """Returns the upstream that a pattern of objects names; "" if it names none, or has a wildcard there."""
    kind, _, rest = pattern.partition(":")
    server = rest.partition("/")[0]
    return server if kind in ("tool", "prompt", "resource") and "*" not in server else ""


def _is_plain(name: str) -> bool:
    """Whether a name is not a pattern and is valid in settings."""
    return not _PATTERN.search(name) and name.isprintable() and len(name) <= MAX_NAME_CHARS


def _slug(name: str) -> str:
    return _NO_SLUG.sub("-", name.lower()).strip("-")[:MAX_SLUG_CHARS].rstrip("-")


def _listed(names: Sequence[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")
