"""Makes the values of a Casbin request from a call.

The subject, domain, object and action of a request are the sidecar's names, mapped to those of the policy (`NameMap`).
Attributes of the subject and the object, such as `r.sub.Age`, come from attributes.yaml, from the known facts about
every principal (`name`, `kind`, `id`, `roles`, `scopes`) and object (`name`, `kind`, `server`), and from the arguments
that `policy.request` names. Callers write arguments, so only those that the settings name are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from sidecar.policy.attributes import Attributes
from sidecar.policy.conditions import ConditionContext
from sidecar.policy.grammar import ON_SERVERS
from sidecar.policy.roles import PolicySubject
from sidecar.policy.similar_keys import read_of
from sidecar.policy.stock.expression import Attributed, EvaluationError, text_fields
from sidecar.policy.stock.names import NameMap, NameTable, ObjectName
from sidecar.policy.stock.reading import StockSource, path_of
from sidecar.policy.stock.roles import RequestCaller
from sidecar.settings.policy import CasbinNames, CasbinSettings, ObjectTarget
from sidecar.vocabulary import ANONYMOUS

_CALLER_WRITES: Final = ("args.", "call.meta.")
_MISSING: Final = object()


class RequestTexts(NamedTuple):
    """The names of a request in the policy. `granted` are the roles of the caller's token."""

    sub: str
    dom: str
    obj: str
    act: str
    granted: tuple[str, ...] = ()

    @property
    def caller(self) -> str:
        return RequestCaller(self.sub, {}, self.granted) if self.granted else self.sub


class CasbinRequests:
    """Makes requests of one policy."""

    def __init__(self, source: StockSource, settings: CasbinSettings, attributes: Attributes) -> None:
        request = source.model.request
        self._names, self._attributes = name_map(settings.names), attributes
        self._roles = frozenset(link[1] for links in source.links.values() for link in links)
        fields = text_fields(request)
        self._texts = [fields.get(name, "") for name in request]
        self._paths = [
            None if text else path_of(name, settings) for name, text in zip(request, self._texts, strict=True)
        ]
        given = [(*key.partition("."), path) for key, path in settings.request.items()]
        self._given = {
            text: {attribute: path for field, dot, attribute, path in given if dot and fields.get(field) == text}
            for text in ("sub", "obj")
        }
        used = [path for path in self._paths if path] + [path for one in self._given.values() for path in one.values()]
        self._written = tuple(dict.fromkeys(path for path in used if path.startswith(_CALLER_WRITES)))
        self.arguments = read_of((tuple(path.split(".")[1:]) for path in used if path.startswith("args.")), ())

    @property
    def from_caller(self) -> bool:
        """Whether requests contain values that the caller writes."""
        return bool(self._written)

    def caller(self, subject: PolicySubject) -> RequestTexts | None:
        """Returns the names of a caller, without object and action; None if the policy has no name for it.

        A name that results from a pattern is never that of a role: otherwise a user who chooses the name `admin` would
        have that role. `anonymous` has a name only if an entry names it."""
        names = self._names
        sub, dom = names.subjects.text(subject.name), names.domains.text(subject.domain)
        exact = subject.name in names.subjects.exact
        if sub is None or dom is None or (not exact and (sub in self._roles or subject.name == ANONYMOUS)):
            return None
        granted = {role for each in subject.granted if (role := names.roles.text(each)) is not None}
        return RequestTexts(sub, dom, "", "", tuple(sorted(granted)))

    def texts(self, subject: PolicySubject, obj: str, act: str) -> RequestTexts | None:
        """Returns the names of a request; None if the policy has no name for one of them."""
        caller, target = self.caller(subject), self._names.objects.map(obj)
        if caller is None or target is None:
            return None
        action = self._names.actions.text(act) if target.act is None else target.act
        return None if action is None else caller._replace(obj=target.obj, act=action)

    def unnamed(self, subject: PolicySubject, obj: str, act: str) -> str:
        """Returns why the policy has no name for a part of a request; "" if it has names for all parts."""
        names = self._names
        sub, target = names.subjects.text(subject.name), names.objects.map(obj)
        if sub is None:
            return f"policy.names.subjects has no entry for {subject.name}"
        if names.domains.text(subject.domain) is None:
            return f"policy.names.domains has no entry for {subject.domain}, the namespace of {subject.name}"
        if self.caller(subject) is None and subject.name == ANONYMOUS:
            return "in policy.names.subjects only an entry of its own names anonymous"
        if self.caller(subject) is None:
            rule = "only an entry without * in policy.names.subjects may name a role"
            return f"{subject.name} would be {sub}, which is a role of the policy, and {rule}"
        if target is None:
            return f"policy.names.objects has no entry for {obj}"
        if target.act is None and names.actions.text(act) is None:
            return f"policy.names.actions has no entry for {act}"
        return ""

    def plain(self, texts: RequestTexts) -> list[Any]:
        """Returns the values of a request of which no attribute is read."""
        values = {"sub": texts.caller, "dom": texts.dom, "obj": texts.obj, "act": texts.act, "": ""}
        return [values[text] for text in self._texts]

    def full(self, texts: RequestTexts, obj: str, scene: ConditionContext) -> tuple[list[Any], Mapping[str, Any]]:
        """Returns the values of a request with all attributes, and the values among them that the caller wrote, by
        path. `obj` is the sidecar's name of the object. Raises EvaluationError for a missing field."""
        sources = _Sources(scene, obj, self._attributes)
        values: dict[str, Any] = {
            "sub": RequestCaller(texts.sub, self._with_given("sub", sources.principal, sources), texts.granted),
            "dom": texts.dom,
            "obj": Attributed(texts.obj, self._with_given("obj", sources.object, sources)),
            "act": texts.act,
        }
        request = [
            values[text] if path is None else _there(path, sources.value(path))
            for text, path in zip(self._texts, self._paths, strict=True)
        ]
        written = {path: sources.value(path) for path in self._written}
        return request, {path: value for path, value in written.items() if value is not _MISSING}

    def names_on(self, server: str) -> bool:
        """Whether the policy has names for objects on a server."""
        return any(self._names.objects.meets(f"{kind}{server}/") for kind in ON_SERVERS)

    def known(self, rows: Iterable[str]) -> Iterator[str]:
        """Yields the sidecar's names for which the policy has names. `rows` are the names in its rows."""
        for table in (self._names.subjects, self._names.objects):
            yield from table.exact
        if self._names.subjects.is_identity:
            yield from rows

    def patterns(self) -> Iterator[str]:
        """Yields the patterns of principals that the policy has names for."""
        yield from self._names.subjects.patterns

    def _with_given(self, text: str, attributes: Mapping[str, Any], sources: _Sources) -> Mapping[str, Any]:
        given = self._given[text]
        if not given:
            return attributes
        # An argument that the caller omits does not exist, even if attributes.yaml has a value for it.
        found = {**attributes, **{attribute: sources.value(path) for attribute, path in given.items()}}
        return {attribute: value for attribute, value in found.items() if value is not _MISSING}


class _Sources:
    """The values that paths of `policy.request` read in one call."""

    def __init__(self, scene: ConditionContext, obj: str, attributes: Attributes) -> None:
        principal = scene.chain[scene.subject]
        self._scene, self._attributes = scene, attributes
        self.principal = {**scene.variable("principal"), **attributes.of(principal.name)}
        kind, _, rest = obj.partition(":")
        self.object: Mapping[str, Any] = {
            "name": obj, "kind": kind, "server": rest.partition("/")[0], **attributes.of(obj)
        }  # fmt: skip

    def value(self, path: str) -> Any:
        side, _, rest = path.partition(".")
        match side:
            case "principal":
                found: Any = self.principal
            case "object":
                found = self.object
            case "origin":
                found = {**self._scene.variable("origin"), **self._attributes.of(self._scene.chain[0].name)}
            case "args":
                found = self._scene.args
            case _:
                found = self._scene.variable("call")
        for step in rest.split("."):
            found = found.get(step, _MISSING) if isinstance(found, Mapping) else _MISSING
        return found


def _there(path: str, value: Any) -> Any:
    if value is _MISSING:
        raise EvaluationError(f"there is no {path}")
    return value


def name_map(names: CasbinNames) -> NameMap:
    objects: dict[str, str | ObjectName] = {
        ours: ObjectName(theirs.obj, theirs.act) if isinstance(theirs, ObjectTarget) else theirs
        for ours, theirs in names.objects.items()
    }
    return NameMap(
        NameTable(names.subjects),
        NameTable(objects),
        NameTable(names.actions),
        NameTable(names.domains),
        NameTable(names.roles),
    )
