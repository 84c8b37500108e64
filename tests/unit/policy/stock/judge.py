"""Holds the decisions of compiled Casbin models against plain pycasbin.

python -m tests.unit.policy.stock.judge --requests 100000          each setup
python -m tests.unit.policy.stock.judge --models 20000 --seed 1    models that are drawn
"""

import argparse
import logging
import random
from collections.abc import Mapping, Sequence
from typing import Any

import casbin
from casbin import util
from casbin.config import Config
from casbin.model import Model
from casbin.persist import Adapter
from casbin.persist.adapter import _extract_tokens

from sidecar.policy.stock.functions import FUNCTIONS, time_match
from sidecar.policy.stock.model import model_of
from sidecar.policy.stock.roles import RoleOptions, checked
from sidecar.policy.stock.rules import Rules
from tests.unit.policy.stock.setups import SETUPS, Setup

_FUNCTIONS = {"keyMatch": util.key_match_func, "keyMatch2": util.key_match2_func}
Rows = Mapping[str, Sequence[tuple[str, ...]]]


class Judge:
    """pycasbin over a model and rows. An exception is a refusal."""

    def __init__(self, conf: str, rows: Rows, options: Mapping[str, Mapping[str, str]], suffix: str = "") -> None:
        logging.getLogger("casbin").disabled = True
        model = Model()
        model.load_model_from_text(conf)
        self._enforcer = casbin.Enforcer(model, _Given(rows))
        for name, chosen in options.items():
            if "match" in chosen:
                self._enforcer.add_named_matching_func(name, _FUNCTIONS[chosen["match"]])
            if "match_domain" in chosen:
                self._enforcer.add_named_domain_matching_func(name, _FUNCTIONS[chosen["match_domain"]])
            for link in rows.get(name, ()) if "condition" in chosen else ():
                self._enforcer.add_named_link_condition_func(name, link[0], link[1], util.time_match_func)
        self._context = (self._enforcer.new_enforce_context(suffix),) if suffix else ()

    def allows(self, request: Sequence[Any]) -> bool:
        try:
            return bool(self._enforcer.enforce(*self._context, *request))
        except Exception:  # pycasbin raises what its expressions raise
            return False


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


def differences(setup: Setup, requests: int, drawn: random.Random) -> tuple[int, int]:
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=100_000)
    given = parser.parse_args()
    for name, setup in SETUPS.items():
        allowed, different = differences(setup, given.requests, random.Random(name))
        print(f"{name}: {given.requests} requests, {allowed} allowed, {different} different", flush=True)


if __name__ == "__main__":
    main()
