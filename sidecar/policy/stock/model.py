"""Casbin models of any form: requests, columns, role definitions, effects and matchers as Casbin reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sidecar.policy.model import SECTIONS
from sidecar.policy.stock.expression import Definitions
from sidecar.policy.stock.roles import RoleForm

_PARAMETERS: Final = re.compile(r"\((.*?)\)")


class Effect(StrEnum):
    """The effects of pycasbin, as its effector compares them."""

    ALLOW_OVERRIDE = "some(where (p_eft == allow))"
    DENY_OVERRIDE = "!some(where (p_eft == deny))"
    ALLOW_AND_DENY = "some(where (p_eft == allow)) && !some(where (p_eft == deny))"
    PRIORITY = "priority(p_eft) || deny"
    SUBJECT_PRIORITY = "subjectPriority(p_eft) || deny"

    @property
    def allows_by_default(self) -> bool:
        return self is Effect.DENY_OVERRIDE


_EFFECTS: Final = {"".join(effect.split()): effect for effect in Effect}


@dataclass(frozen=True, slots=True)
class StockModel:
    """One checked model. `suffix` chooses among `r`, `r2`…"""

    request: tuple[str, ...]
    columns: tuple[str, ...]
    roles: Mapping[str, RoleForm]
    effect: Effect
    matcher: str
    suffix: str = ""


class BadModelError(Exception):
    """`key` is the wrong entry; "" if an entry is missing."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key, self.message = key, message


def model_of(entries: Mapping[str, str], suffix: str = "") -> StockModel:
    """Returns the model of entries by key (`r`, `p2`, `g`…). Raises BadModelError."""
    request, columns, matcher = (_entry(entries, f"{key}{suffix}") for key in "rpm")
    effect_text = _entry(entries, "e")  # pycasbin has one effect for all models
    roles = {key: _role_form(key, text) for key, text in entries.items() if re.fullmatch(r"g\d*", key)}
    effect = _EFFECTS.get("".join(re.sub(r"\bp\d*[._]", "p_", effect_text).split()))
    if effect is None:
        raise BadModelError("e", "Casbin knows no such effect")
    return StockModel(_names(request), _names(columns), roles, effect, matcher, suffix)


def definitions_of(model: StockModel) -> Definitions:
    """Returns the names that the model's matcher may use."""
    arguments = {key: form.arguments for key, form in model.roles.items()}
    conditional = frozenset(key for key, form in model.roles.items() if form.parameters)
    return Definitions(model.request, model.columns, arguments, model.suffix, conditional)


def _entry(entries: Mapping[str, str], key: str) -> str:
    if key not in entries:
        section = next(name for name, letter in SECTIONS.items() if letter == key[0])
        raise BadModelError("", f"[{section}] with {key} = … is missing")
    return entries[key]


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


def _role_form(key: str, text: str) -> RoleForm:
    parameters = _PARAMETERS.search(text)
    count = len(parameters[1].split(",")) if parameters is not None else 0
    fields = len(text.split(",")) - count
    if fields not in (2, 3) or text.count("_") != fields + count:
        raise BadModelError(key, "a role definition is _, _ or _, _, _ (with a domain), and (_, …) for conditions")
    return RoleForm(fields == 3, count)
