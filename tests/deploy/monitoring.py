"""What the dashboards and rules under deploy/ ask of Prometheus."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import promql_parser
import yaml

from tests.pages import ROOT

DASHBOARDS = sorted((ROOT / "deploy/grafana/dashboards").glob("*.json"))
RULES = sorted((ROOT / "deploy/prometheus/rules").glob("*.yml"))
# What Grafana puts in the place of a dashboard's variables.
CHOSEN = {
    "$job": ".*",
    "$instance": ".*",
    "$upstream": ".*",
    "$limit": ".*",
    "$__rate_interval": "1m",
    "$__range": "1h",
}


class Asked(NamedTuple):
    """One expression, and where it stands."""

    place: str
    expr: str


class Selected(NamedTuple):
    """One selector of an expression: a series, and its literal label values."""

    series: str
    values: tuple[tuple[str, str], ...]
    labels: frozenset[str]


def panels(path: Path) -> Iterator[dict[str, Any]]:
    """The panels of a dashboard that ask something."""
    for panel in json.loads(path.read_text("utf-8"))["panels"]:
        if panel["type"] != "row":
            yield panel


def questions(path: Path) -> Iterator[Asked]:
    """The expressions of a dashboard, with a choice for each variable."""
    for panel in panels(path):
        for target in panel["targets"]:
            expr = target["expr"]
            for variable, choice in CHOSEN.items():
                expr = expr.replace(variable, choice)
            yield Asked(f"{path.name}: {panel['title']}", expr)


def rules() -> Iterator[dict[str, Any]]:
    for path in RULES:
        for group in yaml.safe_load(path.read_text("utf-8"))["groups"]:
            yield from group["rules"]


def alerts() -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def selected(expr: str) -> Iterator[Selected]:
    """The selectors of an expression. Raises ValueError if it does not parse."""
    found: list[Any] = []
    promql_parser.walk(promql_parser.parse(expr), lambda node: found.append(node))
    grouped = frozenset(
        label
        for node in found
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None
        for label in node.modifier.labels
    )
    for node in found:
        if isinstance(node, promql_parser.VectorSelector):
            matchers = node.matchers.matchers
            values = tuple((one.name, value) for one in matchers for value in _literals(one.value))
            yield Selected(node.name, values, grouped | {one.name for one in matchers})


def _literals(value: str) -> Iterator[str]:
    """The alternatives of a matcher's value that are no pattern."""
    for part in value.split("|"):
        if part and "*" not in part:
            yield part
