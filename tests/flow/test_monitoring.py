"""The dashboards and rules of deploy/: they parse, name what a sidecar exports, and each alert fires when it should."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.grafana import make
from sidecar.observability.registry import SeriesTable
from tests.deploy.monitoring import DASHBOARDS, RULES, Asked, alerts, panels, questions, rules, selected
from tests.flow.world import world
from tests.pages import ROOT
from tests.tables import tables

ALERTS = tables("deploy/alerts")
OF_SCRAPES = {"job", "instance", "le"}
PAGE = (ROOT / "docs/reference/alerts.md").read_text("utf-8")
promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian: prometheus) is not installed")


def told_by(*words: str) -> str:
    done = subprocess.run(["promtool", *words], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# --- dashboards -------------------------------------------------------------------------------------------------------


def test_the_dashboards_are_those_of_their_generator() -> None:
    found = make.dashboards()
    assert {path.name: path.read_text("utf-8") for path in DASHBOARDS} == found, "run: python -m deploy.grafana.make"


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_is_whole_in_the_schema_of_grafana(path: Path) -> None:
    """Its own models read it without dropping a member, which they do with what they do not know."""
    register_default_plugins()
    written = json.loads(path.read_text("utf-8"))
    assert not lost(written, read_by_grafana(written))
    assert lost({**written, "tittle": "x"}, read_by_grafana({**written, "tittle": "x"})) == [".tittle"]
    assert written["uid"] == path.stem and written["schemaVersion"] >= 39
    ids = [panel["id"] for panel in written["panels"]]
    assert len(ids) == len({*ids})
    cells = [
        (x, y)
        for panel in written["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert max(x for x, _ in cells) < 24
    assert len(cells) == len({*cells}), "panels overlap"
    variables = {variable["name"] for variable in written["templating"]["list"]}
    for panel in panels(path):
        assert panel["datasource"]["uid"] == "${datasource}" and panel["title"]
        used = {*re.findall(r"\$([a-z]\w*)", json.dumps(panel["targets"]))}
        assert used <= variables and {"job", "instance"} <= used, panel["title"]


def read_by_grafana(written: dict[str, Any]) -> Any:
    return json.loads(json.dumps(Dashboard.from_json(written), cls=JSONEncoder))


def lost(written: Any, read: Any, at: str = "") -> list[str]:
    """The places of what is not in both alike; defaults may have been added."""
    if isinstance(written, dict) and isinstance(read, dict):
        return [one for name, value in written.items() for one in lost(value, read.get(name), f"{at}.{name}")]
    if isinstance(written, list) and isinstance(read, list) and len(written) == len(read):
        pairs = enumerate(zip(written, read, strict=True))
        return [one for place, pair in pairs for one in lost(*pair, f"{at}[{place}]")]
    return [] if written == read else [at]


def test_the_provisioning_files_are_yaml_of_grafana() -> None:
    sources = yaml.safe_load((ROOT / "deploy/grafana/provisioning/datasources/prometheus.yml").read_text("utf-8"))
    providers = yaml.safe_load((ROOT / "deploy/grafana/provisioning/dashboards/sidecar.yml").read_text("utf-8"))
    assert [source["type"] for source in sources["datasources"]] == ["prometheus"]
    assert [provider["type"] for provider in providers["providers"]] == ["file"]


# --- expressions ------------------------------------------------------------------------------------------------------


async def test_every_expression_names_series_labels_and_values_that_a_running_sidecar_exports(tmp_path: Path) -> None:
    async with world(tmp_path, settings="metrics: {tool_label: {top: 5}}\n") as running:
        scraped = await running.metrics()
        tables_of = {table.name: table for table in running.app.metrics._tables}
    families = dict(re.findall(r"^# TYPE (\S+) (\S+)$", scraped, re.MULTILINE))
    assert tables_of.keys() <= families.keys()
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    asked = [one for path in DASHBOARDS for one in questions(path)]
    asked += [Asked(rule.get("alert") or rule["record"], rule["expr"]) for rule in rules()]
    for place, expr in asked:
        for series, values, labels in selected(expr):
            if series in recorded or series == "up":
                continue
            name = family_of(series, families)
            assert name, f"{place}: no sidecar exports {series}"
            if (table := tables_of.get(name)) is None:  # the process's own, or that of folded observations
                continue
            assert labels - OF_SCRAPES <= {*table.labels} | labels_beside(expr, tables_of), f"{place}: {labels}"
            for label, value in values:
                choices = choices_of(table, label)
                assert not choices or value in choices, f"{place}: {label} is never {value}"


def family_of(series: str, families: dict[str, str]) -> str:
    """The family of a series; "" if there is none."""
    for suffix in ("_bucket", "_count", "_sum"):
        base = series.removesuffix(suffix)
        if base != series and families.get(base) == "histogram":
            return base
    return series if families.get(series) in ("counter", "gauge") else ""


def choices_of(table: SeriesTable, label: str) -> set[str]:
    """The closed set of a label's values; empty if they come from the configuration."""
    choices = dict(zip(table.labels, table._choices, strict=True)).get(label, ())
    return set() if label in ("upstream", "limit", "budget", "agent", "schedule", "tool") else {*map(str, choices)}


def labels_beside(expr: str, tables_of: dict[str, SeriesTable]) -> set[str]:
    """The labels of all series of an expression: which of them an aggregation groups by is not looked at."""
    return {
        label
        for name, table in tables_of.items()
        if re.search(rf"\b{name}\b|\b{name}_", expr)
        for label in table.labels
    }


# --- rules ------------------------------------------------------------------------------------------------------------


def test_every_alert_has_a_severity_a_text_and_a_runbook_and_every_runbook_an_alert() -> None:
    headings = re.findall(r"^### (Sidecar\w+)$", PAGE, re.MULTILINE)
    assert sorted(headings) == sorted(alerts())
    for name, rule in alerts().items():
        notes = rule["annotations"]
        assert (
            rule["labels"]["severity"] in ("page", "ticket") and notes["summary"] and notes["description"].endswith(".")
        )
        assert notes["runbook_url"] == f"docs/reference/alerts.md#{name.lower()}"


def test_every_alert_is_tried() -> None:
    assert ALERTS.keys() == alerts().keys()


@promtool
def test_promtool_finds_the_rules_and_the_configuration_right() -> None:
    told_by("check", "rules", "--lint-fatal", *map(str, RULES))
    assert told_by("check", "config", str(ROOT / "deploy/prometheus/prometheus.yml")).count("SUCCESS") >= 2


@promtool
def test_each_alert_fires_when_it_should_and_not_when_it_should_not(tmp_path: Path) -> None:
    """Each with a file of its own that has no other alert, so that promtool evaluates no others."""
    recording = [rule for rule in rules() if "record" in rule]
    files = []
    for name, case in ALERTS.items():
        rule = alerts()[name]
        needed = [*(recording if ":" in rule["expr"] else ()), rule]
        (tmp_path / f"{name}.rules").write_text(yaml.safe_dump({"groups": [{"name": name, "rules": needed}]}))
        notes = {**rule["annotations"], "summary": case["summary"]}
        firing = {"exp_labels": case["labels"], "exp_annotations": notes}
        asked = {"eval_time": case.get("at", "10m"), "alertname": name}
        tried = [
            {
                "name": f"{name} {word}",
                "interval": "1m",
                "input_series": [{"series": one, "values": values} for one, values in case[word].items()],
                "alert_rule_test": [{**asked, "exp_alerts": expected}],
            }
            for word, expected in (("fires", [firing]), ("quiet", []))
        ]
        files.append(tmp_path / f"{name}.tests")
        written = {"rule_files": [f"{name}.rules"], "evaluation_interval": "1m", "tests": tried}
        files[-1].write_text(yaml.safe_dump(written))
    told_by("test", "rules", *map(str, files))
