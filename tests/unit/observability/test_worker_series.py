"""Are the series of several workers added up so that no counter goes back?"""

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse_text

from sidecar.observability.metrics import Metrics
from sidecar.observability.registry import MAX_SERIES, OTHER, SeriesTable
from sidecar.observability.worker_series import NOTHING_KNOWN, WorkerSeries, series_from


def worker(calls: int = 0) -> Metrics:
    metrics = Metrics(upstreams=("github",))
    for _ in range(calls):
        metrics.request_finished("mcp", "github", "tools/call", "success", 0.003, {})
    return metrics


def values(metrics: Metrics, *others: WorkerSeries) -> dict[str, float]:
    """The value of each sample, by its name and labels."""
    _, body = metrics.render("", others)
    return {
        sample.name + "".join(f" {value}" for _, value in sorted(sample.labels.items())): sample.value
        for family in parse_text(body.decode())
        for sample in family.samples
    }


def told(metrics: Metrics, *, alive: bool = True) -> WorkerSeries:
    series = series_from(metrics.exposition.series().plain(), alive=alive)
    assert series is not None
    return series


CALLS = "sidecar_requests_total tools/call mcp success github"
TIMES = "sidecar_request_duration_seconds"


def test_counters_histograms_and_numbers_of_processes_are_summed() -> None:
    one, other = worker(2), worker(3)
    alone, found = values(one), values(one, told(other))
    assert found[CALLS] == 5.0
    assert found[f"{TIMES}_count mcp github"] == found[f"{TIMES}_bucket 0.005 mcp github"] == 5.0
    assert found[f"{TIMES}_sum mcp github"] == pytest.approx(0.015)
    assert found[f"{TIMES}_bucket 0.002 mcp github"] == 0.0
    assert found["process_resident_memory_bytes"] > alone["process_resident_memory_bytes"]
    assert found["process_start_time_seconds"] == alone["process_start_time_seconds"]
    assert (found["sidecar_workers up"], found["sidecar_workers down"]) == (2.0, 0.0)
    assert values(one)[CALLS] == 2.0, "the worker's own numbers stay"


def test_a_gauge_is_the_sum_the_greatest_or_the_least() -> None:
    one, other = worker(), worker()
    for metrics, sessions, status in ((one, 3, "ready"), (other, 4, "offline")):
        metrics.sessions(sessions)
        metrics.upstream_stands("github", status)
        metrics.store_up(status == "ready")
        metrics.policy_loaded("r", {}, float(sessions))
        metrics.store_is("redis")
    for found in (values(one, told(other)), values(other, told(one))):
        assert found["sidecar_sessions"] == 7.0
        assert found["sidecar_upstream_up github"] == found["sidecar_store_up"] == 0.0
        assert found["sidecar_policy_last_reload_timestamp_seconds"] == 4.0
        assert found["sidecar_store_info redis"] == found["sidecar_policy_info r"] == 1.0


def test_one_that_died_counts_on_with_its_counters_alone_and_the_next_goes_on_from_them() -> None:
    one, dead, new = worker(2), worker(3), worker()
    dead.sessions(4)
    found = values(one, told(dead, alive=False))
    assert found[CALLS] == 5.0 and found["sidecar_sessions"] == 0.0 and found["sidecar_workers down"] == 1.0
    new.resume(told(dead, alive=False))
    after = values(one, told(new))
    assert after[CALLS] == 5.0 and after["sidecar_worker_restarts_total"] == 1.0
    assert after["process_cpu_seconds_total"] >= found["process_cpu_seconds_total"]
    new.request_finished("mcp", "github", "tools/call", "success", 0.003, {})
    assert values(one, told(new))[CALLS] == 6.0
    first = worker()
    first.resume(None)
    assert values(first)["sidecar_worker_restarts_total"] == 0.0


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'{"v": 2}', b'{"v": 1, "tables": {}}', b"null"])
def test_numbers_that_cannot_be_understood_are_none(raw: bytes) -> None:
    assert series_from(raw) is None
    assert values(worker(1), NOTHING_KNOWN)[CALLS] == 1.0


def test_rows_beyond_the_bound_are_folded() -> None:
    table = SeriesTable("counter", "calls_total", "Calls.", late=True, tool=())
    for number in range(MAX_SERIES + 10):
        table.add_row((f"t{number}",), [1.0])
    assert len(table.rows) == MAX_SERIES + 1 and table.rows[OTHER,] == [10.0]
