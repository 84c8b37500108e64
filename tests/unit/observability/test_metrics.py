"""Do the series say what happened, and can nobody outside make one?"""

import ast
import re

import prometheus_client
import pytest
from hypothesis import given, settings, strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from sidecar import __version__
from sidecar.observability import metrics, registry as kept_rows
from sidecar.observability.metrics import Metrics
from sidecar.protocols.a2a.operations import BY_ACTION
from tests.tables import tables
from tests.unit.policy_tools.traffic import counted_calls

TABLES = tables("observability/metrics")

SERIES = TABLES["series"]
BUDGET = "budgets:nhi:*:usd:day"
MARKS = {"auth": 0.00005, "policy": 0.00035, "upstream": 0.02035}
Sample = tuple[str, frozenset[tuple[str, str]]]


@pytest.fixture
def measured() -> Metrics:
    return Metrics(upstreams=["github", "files"], limits=["tools:github:rate"], budgets=[BUDGET])


def samples(measured: Metrics, beginning: str = "") -> dict[Sample, float]:
    """Those whose name begins so."""
    measured.settle()
    _, body = measured.render("")
    families = parse_text("".join(f"{line}\n" for line in body.decode().splitlines() if line.startswith(beginning)))
    found = (sample for family in families for sample in family.samples)
    return {(sample.name, frozenset(sample.labels.items())): sample.value for sample in found}


def value(measured: Metrics, name: str, **labels: str) -> float:
    return samples(measured, f"sidecar_{name}")[f"sidecar_{name}", frozenset(labels.items())]


def finish(measured: Metrics, upstream: str = "github", method: str = "tools/call", status: str = "success") -> None:
    measured.request_finished("mcp", upstream, method, status, 0.021, MARKS)


def test_of_a_budget_the_fullest_counter_is_told_until_its_period_is_over(measured: Metrics) -> None:
    for ratio in (0.25, 0.75, 0.5):
        measured.budget_used(BUDGET, ratio, 100.0)
    measured.budget_used("a budget that is gone", 1.0, 100.0)
    assert value(measured, "budget_used_ratio", budget=BUDGET) == 0.75
    measured.budgets_reset(99.9)
    assert value(measured, "budget_used_ratio", budget=BUDGET) == 0.75
    measured.budgets_reset(100.0)
    assert value(measured, "budget_used_ratio", budget=BUDGET) == 0
    measured.budget_used(BUDGET, 0.125, 200.0)
    assert value(measured, "budget_used_ratio", budget=BUDGET) == 0.125
    measured.reconfigured(upstreams=["github"])
    assert not [name for name, _ in samples(measured) if name == "sidecar_budget_used_ratio"]


def test_every_documented_series_is_there_with_its_labels(measured: Metrics) -> None:
    measured.policy_loaded("rev-1", {}, 0.0)
    measured.store_is("memory")
    seen = {(name, frozenset(label for label, _ in labels) - {"le"}) for name, labels in samples(measured)}
    for name, labels in re.findall(r"(\w+)\{([\w,]*)\}", SERIES):
        suffix = "_bucket" if name.endswith("seconds") and "timestamp" not in name else ""
        assert (f"sidecar_{name}{suffix}", frozenset(filter(None, labels.split(",")))) in seen


def test_a_request_moves_its_counter_and_its_histograms(measured: Metrics) -> None:
    measured.inflight({"mcp": 1})
    assert value(measured, "inflight_requests", protocol="mcp") == 1
    measured.inflight({})
    assert value(measured, "inflight_requests", protocol="mcp") == 0
    measured.request_finished("mcp", "github", "tools/call", "success", 0.021, MARKS)
    labels = {"protocol": "mcp", "upstream": "github"}
    assert value(measured, "requests_total", method="tools/call", status="success", **labels) == 1
    assert value(measured, "request_duration_seconds_count", **labels) == 1
    assert value(measured, "request_duration_seconds_sum", **labels) == 0.021
    assert value(measured, "request_duration_seconds_bucket", le="0.02", **labels) == 0
    assert value(measured, "request_duration_seconds_bucket", le="0.05", **labels) == 1
    assert value(measured, "stage_duration_seconds_count", stage="policy") == 1
    assert value(measured, "stage_duration_seconds_count", stage="arguments") == 0


# what is reported → the sample that it moves


@pytest.mark.parametrize("row", TABLES["verbs"].strip().splitlines())
def test_each_verb_moves_its_series(measured: Metrics, row: str) -> None:
    verb, sample = row.split(" -> ")
    name, given = verb[:-1].split("(", 1)
    found = getattr(measured, name)(*ast.literal_eval(f"({given},)"))
    if name.endswith("_row"):
        found[0] += 1
    series, *labels, expected = sample.split()
    assert value(measured, series, **dict(label.split("=") for label in labels)) == float(expected)


def test_counters_are_there_before_the_first_event(measured: Metrics) -> None:
    known = samples(measured)
    for status in metrics.STATUSES:
        labels = {"protocol": "mcp", "upstream": "files", "method": "tools/call", "status": status}
        assert known["sidecar_requests_total", frozenset(labels.items())] == 0
    assert known["sidecar_upstream_up", frozenset({("upstream", "files")})] == 0
    assert known["sidecar_audit_records_total", frozenset({("event", "decision"), ("result", "failed")})] == 0


def test_agents_are_counted_by_what_a2a_asks_of_them(measured: Metrics) -> None:
    """And have no series of what only a server of MCP is asked: a hundred of them are not a hundred thousand lines."""
    measured.reconfigured(upstreams=["github", "planner"], agents=["planner"])
    labels = {"protocol": "a2a", "upstream": "planner", "status": "success"}
    for action in BY_ACTION:
        measured.request_finished("a2a", "planner", action, "success", 0.1, {})
        assert value(measured, "requests_total", method=action, **labels) == 1
    assert value(measured, "requests_total", method="message/send", **labels | {"status": "error"}) == 0
    theirs = [(name, dict(found)) for name, found in samples(measured) if ("upstream", "planner") in found]
    assert {found.get("protocol", "a2a") for _, found in theirs} == {"a2a"}
    of_servers = ("sidecar_schema_violations_total", "sidecar_pin_mismatches", "sidecar_hidden_text_tools")
    assert not [name for name, _ in theirs if name in of_servers]


def test_only_the_serving_revision_is_shown(measured: Metrics) -> None:
    for revision in ("one", "two"):
        measured.policy_loaded(revision, {}, 0.0)
    assert {dict(labels)["revision"] for name, labels in samples(measured) if name == "sidecar_policy_info"} == {"two"}


def test_a_flood_of_invented_names_makes_no_series(measured: Metrics) -> None:
    def flood(word: str) -> None:
        finish(measured, word, word, word)
        measured.request_finished(word, word, word, word, 1.0, {word: 1.0})
        measured.decision_row(word, word, word)[0] += 1
        measured.limit_row(word, word)[0] += 1
        measured.auth_failed(word, word)
        measured.schema_violated(word)
        measured.upstream_answered(word, 1.0)
        measured.upstream_stands(word, word)
        measured.breaker_moved(word, word)
        measured.streams(word, 1)
        measured.policy_reloaded(word)
        measured.audit_row(word, word)[0] += 1

    flood("first")
    before = set(samples(measured))
    for number in range(1000):
        flood(f"invented-{number}\n{{}}")
    assert set(samples(measured)) == before
    labels = {"protocol": "mcp", "upstream": "other", "method": "other", "status": "other"}
    assert value(measured, "requests_total", **labels) == 1001
    assert [line for line in measured.render("")[1].splitlines() if b"invented" in line] == []


def test_beyond_the_cap_observations_are_folded_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_rows, "MAX_SERIES", 50)
    measured = Metrics(upstreams=[f"up-{number}" for number in range(100)])
    for number in range(100):
        finish(measured, f"up-{number}", "prompts/get")
    requests = [name for name, _ in samples(measured) if name == "sidecar_requests_total"]
    assert len(requests) == 51
    labels = dict.fromkeys(("protocol", "upstream", "method", "status"), "other")
    assert value(measured, "requests_total", **labels) == 100
    assert value(measured, "metrics_folded_total", metric="sidecar_requests_total") >= 100


def test_rows_that_are_kept_are_those_of_the_settings_and_none_that_others_are_folded_into(
    measured: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "mcp", "files", "tools/call", "success"
    for upstreams, before in ((["files"], 0), (["github"], 1), (["files"], 2)):
        measured.reconfigured(upstreams=upstreams)
        assert measured.known_series.get(key) is None
        measured.keep_series(key, measured.request_series(*key, measured.limit_row("unknown", "admitted")))
        series = measured.known_series.get(key)
        assert series is not None
        measured.ended.append((series, 0.0, 0.1, {}))
        assert value(measured, "limit_checks_total", limit="other", outcome="admitted") == before + 1
    labels = dict(zip(("protocol", "upstream", "method", "status"), key, strict=True))
    assert value(measured, "requests_total", **labels) == 2
    assert value(measured, "requests_total", **labels | {"upstream": "other"}) == 1
    monkeypatch.setattr(kept_rows, "MAX_SERIES", 5)
    measured.keep_series("others", measured.request_series(*key))
    assert "others" not in measured.known_series


def test_a_scrape_stays_quick_however_much_happened() -> None:
    """BL-065, as far as one process has it: what a large configuration can make, all of it at once."""
    measured = Metrics(upstreams=[f"up-{number}" for number in range(30)])
    for number in range(30):
        for method in metrics.WIRE_METHODS:
            for status in metrics.STATUSES:
                finish(measured, f"up-{number}", method, status)
    (_, body), calls = counted_calls(lambda: measured.render(""))
    lines = body.count(b"\n")
    assert lines > 5_000 and calls < 100 * lines, (lines, calls)


def test_new_names_after_a_reload_are_known(measured: Metrics) -> None:
    measured.schema_violated("github")
    measured.reconfigured(upstreams=["new"], limits=[])
    measured.schema_violated("new")
    measured.schema_violated("github")
    for name in ("new", "github", "other"):
        assert value(measured, "schema_violations_total", upstream=name) == 1


@given(st.lists(st.floats(0, 1000), max_size=20))
@settings(max_examples=15)
def test_the_buckets_are_those_of_the_library(durations: list[float]) -> None:
    ours = Metrics(upstreams=["github"])
    registry = prometheus_client.CollectorRegistry()
    judge = prometheus_client.Histogram("judge", "j", buckets=metrics.REQUEST_BUCKETS_S, registry=registry)
    for duration_s in durations:
        ours.upstream_answered("github", duration_s)
        judge.observe(duration_s)
    (family,) = registry.collect()
    expected = {sample.labels["le"]: sample.value for sample in family.samples if sample.name.endswith("_bucket")}
    bucket = "sidecar_upstream_duration_seconds_bucket"
    told = {dict(labels)["le"]: count for (name, labels), count in samples(ours).items() if name == bucket}
    assert told == expected
    assert value(ours, "upstream_duration_seconds_sum", upstream="github") == pytest.approx(sum(durations))


TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
ACCEPTS = {
    "": TEXT,
    "text/plain": TEXT,
    "*/*": TEXT,
    "application/openmetrics-text; version=1.0.0,text/plain;q=0.5": OPENMETRICS,
    "application/openmetrics-text; version=banana": OPENMETRICS,
}


@pytest.mark.parametrize("accept", ACCEPTS)
def test_the_form_is_what_was_asked_for(measured: Metrics, accept: str) -> None:
    finish(measured)
    measured.policy_loaded("r", {}, 1.0)
    measured.store_is("memory")
    content_type, body = measured.render(accept)
    assert content_type == ACCEPTS[accept]
    parse = parse_openmetrics if "openmetrics" in content_type else parse_text
    families = {family.name: family for family in parse(body.decode())}
    assert {f"sidecar_{name}" for name in ("policy_info", "upstream_up", "sessions")} <= set(families)
    assert families["sidecar_build_info"].samples[0].labels["version"] == __version__
    assert any(name.startswith("process_") for name in families)


def test_names_and_help_are_as_prometheus_wants_them(measured: Metrics) -> None:
    """promtool's own rules, for where it is not installed."""
    for family in measured.exposition.collect():
        assert family.documentation.endswith(".")
        assert re.fullmatch(r"sidecar_[a-z0-9_]+", family.name)
        samples_named = {sample.name for sample in family.samples}
        assert family.type != "counter" or all(name.endswith("_total") for name in samples_named)
        assert family.type == "counter" or not family.name.endswith("_total")
        assert family.type == "histogram" or not family.name.endswith(("_count", "_sum", "_bucket"))
        assert not re.search("_(ms|milliseconds|minutes|kb|percent)(_|$)", family.name)


def test_a_bucket_has_one_exemplar_at_most_and_it_is_the_last(measured: Metrics) -> None:
    finish(measured)
    for number in range(1000):
        about = {"trace_id": f"{number:032x}", "span_id": f"{number:016x}"}
        measured.request_traced("mcp", f"made-up-{number}" if number % 2 else "github", 0.021, about)
    measured.settle()
    _, body = measured.render(OPENMETRICS)
    told = [one for family in parse_openmetrics(body.decode()) for one in family.samples if one.exemplar]
    last = {one.labels["upstream"]: (one.exemplar.labels["trace_id"], one.exemplar.value) for one in told}
    assert last == {"github": (f"{998:032x}", 0.021), "other": (f"{999:032x}", 0.021)}
    assert len(told) == 2 and {one.labels["le"] for one in told} == {"0.05"}
