"""Turns validation errors, of `reject()` and of pydantic, into findings for the author of a file, with suggestions."""

import re
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Annotated, Any, NoReturn, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from sidecar.settings.yaml_nodes import Loc


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault. `at` is its place, relative to the checked value; with `on_key`, the key is wrong, not its value."""

    message: str
    code: str = "Y104"
    hint: str = ""
    at: Loc = ()
    on_key: bool = False


def reject(message: str, code: str = "Y104", hint: str = "", at: Loc = (), on_key: bool = False) -> NoReturn:
    """Raises PydanticCustomError with one fault, for use in a pydantic validator."""
    raise PydanticCustomError("findings", "invalid", {"findings": (Finding(message, code, hint, at, on_key),)})


def reject_any(findings: Iterable[Finding]) -> None:
    """Raises PydanticCustomError with all faults, if there are any, for use in a pydantic validator."""
    if found := tuple(findings):
        raise PydanticCustomError("findings", "invalid", {"findings": found})


def findings_of(error: ValidationError, model: type[BaseModel]) -> Iterator[Finding]:
    """All findings of a failed validation, with `at` relative to the whole document."""
    for detail in error.errors(include_url=False):
        loc: Loc = detail["loc"]
        context: Mapping[str, Any] = detail.get("ctx") or {}
        if detail["type"] == "findings":
            yield from (replace(found, at=loc + found.at) for found in context["findings"])
        elif detail["type"] != "too_short" or len(detail["input"]) < context["min_length"]:
            # Otherwise it only follows from invalid entries, which pydantic does not count.
            yield replace(_finding(detail, loc, context, model), at=loc)


def meant(word: str, known: Iterable[str]) -> str:
    """Returns `did you mean "tools/call"?`, or "" if no known word is similar."""
    near = get_close_matches(word[:128], list(known), n=1, cutoff=0.6)
    return f'did you mean "{near[0]}"?' if near else ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The hint for an unknown word: the most similar known one, otherwise all known ones if they are few, or ""."""
    choices = sorted(known)
    return meant(word, choices) or (f"known here: {', '.join(choices)}" if 0 < len(choices) <= 24 else "")


def nothing_like(what: str, word: str, known: Iterable[str]) -> str:
    """The message `what`, that nothing has this name, with the hint for it."""
    hint = did_you_mean(word, known)
    return f"{what}; {hint}" if hint else what


_EXPECTED = {
    "string_type": "a string",
    "float_type": "a number",
    "bool_type": "true or false",
    **dict.fromkeys(("int_type", "int_from_float"), "a whole number"),
    **dict.fromkeys(("list_type", "tuple_type", "set_type", "frozen_set_type"), "a list"),
    **dict.fromkeys(("dict_type", "mapping_type", "model_type", "model_attributes_type"), "a mapping"),
}
_BOUNDS = {
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be more than {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be less than {lt}",
    "too_short": "must have at least {min_length} entries",
    "too_long": "must have at most {max_length} entries",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
}


def _finding(detail: ErrorDetails, loc: Loc, context: Mapping[str, Any], model: type[BaseModel]) -> Finding:
    last = str(loc[-1]) if loc else ""
    match detail["type"]:
        case "extra_forbidden":
            hint = _elsewhere(model, loc) or did_you_mean(last, _keys_of(_at(model, loc[:-1])))
            return Finding(f'unknown key "{last}"', "Y101", hint, on_key=True)
        case "missing":
            return Finding(f'the key "{last}" is missing', "Y102", on_key=True)
        case "literal_error":
            return _wrong_word(detail["input"], context)
        case "value_error":
            return Finding(str(context["error"]))
        case kind if kind in _EXPECTED:
            return _wrong_type(_EXPECTED[kind], detail["input"])
        case kind if kind in _BOUNDS:
            text = _BOUNDS[kind].format_map(context)
            return Finding(text.replace(" 1 entries", " 1 entry").replace(" 1 characters", " 1 character"))
    return Finding(detail["msg"][:1].lower() + detail["msg"][1:])


def _wrong_type(expected: str, found: object) -> Finding:
    hint = ""
    if expected == "a string" and isinstance(found, bool | int | float):
        hint = "quote it"
    elif expected == "a list" and isinstance(found, str):
        hint = "put it into brackets: [ ]"
    elif isinstance(found, str) and expected in {"a whole number", "a number", "true or false"}:
        spelt = {"a whole number": r"-?[0-9]+", "a number": r"-?[0-9]+(\.[0-9]+)?"}.get(expected, "true|false")
        hint = "write it without quotes" if re.fullmatch(spelt, found) else f"write {expected}"
    elif expected == "a mapping" and found is None:
        hint = "write something below it, or remove it"
    return Finding(f"expected {expected}, found {_kind_of(found)}", "Y103", hint)


def _kind_of(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "nothing", True: "true", False: "false"}[value]
    kinds = ((int, "a number"), (float, "a number"), (str, "a string"), (Mapping, "a mapping"), (Sequence, "a list"))
    return next((name for kind, name in kinds if isinstance(value, kind)), "something else")


def _wrong_word(found: object, context: Mapping[str, Any]) -> Finding:
    expected = str(context["expected"]).replace("'", '"')
    known = [word.strip() for word in expected.replace(" or ", ", ").split(",")]
    words = [word.strip('"') for word in known]
    hint = f"it must be {expected}"
    if isinstance(found, str) and found in known:  # the number 1 is valid, and "1" was written
        return Finding(f"expected {expected}, found a string", "Y103", "write it without quotes")
    if isinstance(found, str) and (near := get_close_matches(found, words, n=1)):
        hint = f'did you mean "{near[0]}"?'
    shown = f'"{found}"' if isinstance(found, str) else _kind_of(found)
    return Finding(f"{shown} is not one of the known values", "Y104", hint)


def _elsewhere(model: type[BaseModel], loc: Loc) -> str:
    """The hint for a key that is valid one level down or up; "" if it is not."""
    *place, key = loc
    here = _at(model, tuple(place))
    for name in sorted(_keys_of(here)):
        if key in _keys_of(inner for kind in here for inner in _below(kind, name)):
            return f"it belongs below {name}"
    if place and isinstance(place[-1], str) and key in _keys_of(_at(model, tuple(place[:-1]))):
        return f"it belongs next to {place[-1]}, not below it"
    return ""


def _keys_of(kinds: Iterable[Any]) -> set[str]:
    return {
        field.alias or name
        for kind in kinds
        if isinstance(kind, type) and issubclass(kind, BaseModel)
        for name, field in kind.model_fields.items()
    }


def _at(model: type[BaseModel], loc: Loc) -> list[Any]:
    """The type that the schema allows at a place. Steps that the schema does not have (union tags) are skipped."""
    here: list[Any] = [model]
    for step in loc:
        here = [inner for kind in here for inner in _below(kind, step)] or here
    return here


def _below(kind: Any, step: str | int) -> list[Any]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        fields = {field.alias or name: field for name, field in kind.model_fields.items()}
        return _flat(fields[step].annotation) if isinstance(step, str) and step in fields else []
    arguments = get_args(kind)
    origin = get_origin(kind)
    if not isinstance(origin, type) or not arguments:
        return []
    if issubclass(origin, Mapping) and isinstance(step, str):
        return _flat(arguments[1])
    if issubclass(origin, Sequence) and isinstance(step, int):
        return _flat(arguments[0])
    return []


def _flat(annotation: Any) -> list[Any]:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _flat(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return [kind for part in get_args(annotation) for kind in _flat(part)]
    return [annotation]
