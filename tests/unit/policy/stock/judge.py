"""Holds the decisions of compiled Casbin models against plain pycasbin.

python -m tests.unit.policy.stock.judge --requests 100000            each setup
python -m tests.unit.policy.stock.judge --models 20000 --seed 1      models that are drawn, 100 requests each
python -m tests.unit.policy.stock.judge --patterns 100000 --seed 1   patterns that are drawn, of each function
"""

import argparse
import copy
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any

import casbin
from casbin import util
from casbin.config import Config
from casbin.model import Model
from casbin.persist import Adapter
from casbin.persist.adapter import _extract_tokens

from sidecar.policy import patterns
from sidecar.policy.stock.compiler import uncompiled_rule
from sidecar.policy.stock.expression import BadExpressionError
from sidecar.policy.stock.functions import COMPILED, FUNCTIONS, BadPatternError, time_match
from sidecar.policy.stock.model import definitions_of, model_of
from sidecar.policy.stock.roles import RoleOptions, checked
from sidecar.policy.stock.rules import Rules
from tests.unit.policy.stock import generated
from tests.unit.policy.stock.setups import SETUPS, Setup

_REGISTERED = {
    "keyGet": util.key_get,
    "keyGet2": util.key_get2,
    "keyGet3": util.key_get3,
    "who": patterns.who,
    "glob": patterns.glob,
    "globs": patterns.globs,
}
"""Functions that pycasbin's programs register in code."""
Rows = Mapping[str, Sequence[tuple[str, ...]]]


class Judge:
    """pycasbin over a model and rows. An exception is a refusal. pycasbin keeps the names that it is asked about; where
    names match patterns, later decisions can depend on them. A judge that `forgets` keeps none."""

    def __init__(
        self,
        conf: str,
        rows: Rows,
        options: Mapping[str, Mapping[str, str]],
        suffix: str = "",
        *,
        forgets: bool = False,
    ) -> None:
        logging.getLogger("casbin").disabled = True
        model = Model()
        model.load_model_from_text(conf)
        self._enforcer = casbin.Enforcer(model, _Given(rows))
        for name, function in _REGISTERED.items():
            self._enforcer.add_function(name, function)
        for name, chosen in options.items():
            if "match" in chosen:
                self._enforcer.add_named_matching_func(name, generated.FUNCTIONS[chosen["match"]])
            if "match_domain" in chosen:
                self._enforcer.add_named_domain_matching_func(name, generated.FUNCTIONS[chosen["match_domain"]])
            for link in rows.get(name, ()) if "condition" in chosen else ():
                if len(link) == 5:
                    self._enforcer.add_named_domain_link_condition_func(name, *link[:3], util.time_match_func)
                else:
                    self._enforcer.add_named_link_condition_func(name, *link[:2], util.time_match_func)
        for assertion in self._enforcer.model.model.get("g", {}).values() if forgets else ():
            assertion.rm = _Forgetful(assertion.rm)
        self._context = (self._enforcer.new_enforce_context(suffix),) if suffix else ()

    def allows(self, request: Sequence[Any]) -> bool:
        try:
            return bool(self._enforcer.enforce(*self._context, *request))
        except Exception:  # pycasbin raises what its expressions raise
            return False


class _Forgetful:
    """A role manager that keeps no names."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager

    def has_link(self, *names: str) -> bool:
        return bool(copy.deepcopy(self._manager).has_link(*names))


class _Given(Adapter):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def load_policy(self, model: Any) -> None:
        for key, found in self._rows.items():
            if key in model.model.get(key[0], {}):
                model.model[key[0]][key].policy.extend(list(row) for row in found)


def entries_of(conf: str) -> dict[str, str]:
    sections = Config.new_config_from_text(conf)._data
    return {key: value for section in sections.values() for key, value in section.items()}


def rows_of(policy: str) -> dict[str, list[tuple[str, ...]]]:
    rows: dict[str, list[tuple[str, ...]]] = {}
    for line in policy.splitlines():
        if tokens := _extract_tokens(line.strip()):
            rows.setdefault(tokens[0], []).append(tuple(tokens[1:]))
    return rows


def rules_of(conf: str, rows: Rows, options: Mapping[str, Mapping[str, str]], suffix: str = "") -> Rules:
    chosen = {
        name: RoleOptions(
            FUNCTIONS[said["match"]] if "match" in said else None,
            FUNCTIONS[said["match_domain"]] if "match_domain" in said else None,
            checked(time_match) if "condition" in said else None,
        )
        for name, said in options.items()
    }
    return Rules(model_of(entries_of(conf), suffix), rows.get(f"p{suffix}", ()), rows, chosen)


def differences(setup: Setup, requests: int, drawn: Random) -> tuple[int, int]:
    """Return the number of requests that were allowed, and of those decided otherwise than by pycasbin."""
    rows = rows_of(setup.policy)
    judge = Judge(setup.model, rows, setup.options, setup.suffix)
    rules = rules_of(setup.model, rows, setup.options, setup.suffix)
    allowed = different = 0
    for _ in range(requests):
        request = [drawn.choice(values) for values in setup.values]
        expected = judge.allows(request)
        allowed += expected
        different += rules.decide(request).allowed is not expected
    return allowed, different


def loaded(model: generated.DrawnModel) -> Rules | None:
    """Return the rules of a drawn model; None if it is refused when it is loaded."""
    try:
        rules = rules_of(model.conf, model.rows, model.options, model.suffix)
        for row in model.rows[f"p{model.suffix}"]:
            _check_row(rules, row)
    except (BadExpressionError, BadPatternError, ValueError):
        return None
    is_empty = not model.rows[f"p{model.suffix}"] and rules.expression.reads_rows
    return None if is_empty or rules.expression.foreign else rules


def _check_row(rules: Rules, row: Sequence[str]) -> None:
    for column in rules.expression.rules:
        if why := uncompiled_rule(row[column], definitions_of(rules.model)):
            raise BadExpressionError(why)
    for function, column in rules.expression.patterns:
        COMPILED[function](row[column])


def model_differences(models: int, requests: int, drawn: Random) -> Iterator[tuple[str, str]]:
    """Yield for each request of drawn models how it ended (allowed, denied, or different, with all of it), and for each
    model that is not loaded, refused."""
    for _ in range(models):
        model = generated.ModelDrawer(drawn).model()
        rules = loaded(model)
        if rules is None:
            yield "refused", model.conf
            continue
        try:
            judge = Judge(model.conf, model.rows, model.options, model.suffix)
        except Exception as error:  # pycasbin raises what it likes
            yield "refused by pycasbin", str(error)
            continue
        for _ in range(requests):
            request = model.request()
            expected, found = judge.allows(request), rules.decide(request)
            if found.allowed is expected:
                yield "allowed" if expected else "denied", ""
                continue
            if (
                Judge(model.conf, model.rows, model.options, model.suffix, forgets=True).allows(request)
                is found.allowed
            ):
                yield "otherwise, as pycasbin remembers names", ""
                continue
            attributes = [getattr(value, "attributes", None) for value in request]
            asked = f"{request} {attributes}\npycasbin: {expected}, here: {found}"
            yield "different", f"{model.conf}{model.rows} {model.options}\n{asked}"


def pattern_differences(patterns_of_each: int, drawn: Random) -> Iterator[tuple[str, str]]:
    """Yield for each pattern and text how the function ended (equal, different, or refused when it is loaded)."""
    for name, theirs in generated.FUNCTIONS.items():
        for _ in range(patterns_of_each):
            pattern, texts = generated.drawn_pattern(drawn, name)
            try:
                ours = COMPILED[name](pattern)
            except BadPatternError:
                yield "refused", name
                continue
            for text in texts:
                others = [drawn.choice(("id", "x", "a"))] if name in ("keyGet2", "keyGet3") else []
                expected, found = _outcome(theirs, text, pattern, *others), _outcome(ours, text, *others)
                is_looked_up = found is not True or FUNCTIONS[name].form(text).startswith(
                    FUNCTIONS[name].prefix(pattern)
                )
                is_equal = expected == found and is_looked_up
                yield f"{name} equal" if is_equal else "different", f"{name} {text!r} {pattern!r}: {expected}, {found}"


def _outcome(function: Any, *arguments: str) -> object:
    try:
        return function(*arguments)
    except Exception:  # pycasbin raises what its expressions raise
        return "raised"


def _print(found: Iterator[tuple[str, str]]) -> None:
    counts: Counter[str] = Counter()
    for outcome, detail in found:
        counts[outcome] += 1
        if outcome == "different" and counts[outcome] <= 5:
            print(detail, flush=True)
    print(", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=0)
    parser.add_argument("--models", type=int, default=0)
    parser.add_argument("--patterns", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if given.models:
        _print(model_differences(given.models, given.requests or 100, Random(given.seed)))
    elif given.requests:
        for name, setup in SETUPS.items():
            allowed, different = differences(setup, given.requests, Random(name))
            print(f"{name}: {given.requests} requests, {allowed} allowed, {different} different", flush=True)
    if given.patterns:
        _print(pattern_differences(given.patterns, Random(given.seed)))


if __name__ == "__main__":
    main()
