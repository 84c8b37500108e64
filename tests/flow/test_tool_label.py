"""The label `tool` of requests: bounded, and of tools that exist."""

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sidecar.errors import ConfigError
from sidecar.observability.metrics import Metrics
from sidecar.observability.registry import SeriesTable
from sidecar.observability.tool_labels import MAX_COUNTED, OTHER_TOOLS, ToolLabels
from sidecar.settings.load import load_settings
from tests.flow.world import World, world

ALL = "p, nhi:planner, tool:*, use, -, -, -, allow\n"
LISTED = {"search_code", "get_file", "delete_repo"}


async def counted(running: World) -> dict[tuple[str, str, str], float]:
    """The requests so far, by method, status and tool."""
    found: dict[tuple[str, str, str], float] = {}
    for family in text_string_to_metric_families(await running.metrics()):
        for sample in family.samples:
            if sample.name == "sidecar_requests_total" and sample.value:
                labels = sample.labels
                found[labels["method"], labels["status"], labels.get("tool", "no such label")] = sample.value
    return found


async def test_listed_tools_have_a_label_and_other_names_never(tmp_path: Path) -> None:
    async with world(tmp_path, rules=ALL, settings="metrics: {tool_label: {top: 2}}\n") as running:
        await running.ask("tools/list")
        for tool in ("get_file", "get_file", "no_such_tool", "delete_repo", "search_code"):
            await running.call(tool, {"repo": "acme/x"})
        assert await counted(running) == {
            ("tools/list", "success", ""): 1,
            ("tools/call", "success", "get_file"): 2,
            ("tools/call", "success", "delete_repo"): 1,
            ("tools/call", "error", OTHER_TOOLS): 1,
            ("tools/call", "success", OTHER_TOOLS): 1,
        }


async def test_without_the_setting_there_is_no_such_label(planner: World) -> None:
    await planner.call("get_file", {"repo": "acme/x"})
    assert await counted(planner) == {("tools/call", "success", "no such label"): 1}


def test_a_tool_that_is_called_more_takes_the_place_of_the_least_called() -> None:
    metrics = Metrics(upstreams=["github"], top_tools=2)
    labels = metrics.tool_labels
    assert labels is not None

    def call(tool: str, times: int) -> None:
        for _ in range(times):
            label = labels.label("github", tool, LISTED)
            series = metrics.request_series("mcp", "github", "tools/call", "success", tool=label)
            metrics.ended.append((series, 0.0, 0.1, {}))

    def rows() -> dict[str, float]:
        metrics.settle()
        found = {sample[-1]: row[0] for sample, row in metrics._requests.rows.items() if sample[2:4] == CALLED}
        return {tool: count for tool, count in found.items() if count}

    for tool, times in (("get_file", 10), ("delete_repo", 4), ("search_code", 8)):
        call(tool, times)
    metrics.choose_tools()
    assert rows() == {"get_file": 10, "delete_repo": 4, OTHER_TOOLS: 8}  # it takes twice as many calls, and one
    call("search_code", 5)  # with the half of before: nine, and two of the other
    metrics.choose_tools()
    call("search_code", 1)
    call("delete_repo", 1)
    assert rows() == {"get_file": 10, "search_code": 1, OTHER_TOOLS: 14}  # which never goes back
    assert labels.values == {"", OTHER_TOOLS, "get_file", "search_code"}
    assert metrics.requests_by_status()["success"] == 10 + 5 + 14


def test_a_worker_goes_on_with_the_tools_of_the_one_whose_place_it_takes() -> None:
    dead, new = Metrics(upstreams=["github"], top_tools=1), Metrics(upstreams=["github"], top_tools=1)
    assert dead.tool_labels is not None and new.tool_labels is not None
    label = dead.tool_labels.label("github", "get_file", LISTED)
    dead.ended.append((dead.request_series("mcp", "github", *CALLED, tool=label), 0.0, 0.1, {}))
    dead.settle()
    new.resume(dead.exposition.series())
    assert new.tool_labels.label("github", "search_code", LISTED) == OTHER_TOOLS
    assert new.tool_labels.label("github", "get_file", LISTED) == "get_file"


CALLED = ("tools/call", "success")


def test_what_is_counted_is_bounded_and_fades() -> None:
    labels, table = ToolLabels(1), SeriesTable("counter", "requests_total", "", upstream=["github"], tool=[""])
    tools = {str(number) for number in range(MAX_COUNTED + 1)}
    assert sum(labels.label("github", tool, tools) != OTHER_TOOLS for tool in sorted(tools)) == 1
    assert len(labels._calls) == MAX_COUNTED
    labels.choose(table)
    assert not labels._calls  # each had one call
    assert labels.values == {"", OTHER_TOOLS, "0"}


@pytest.mark.parametrize("value", ["true", "{top: 0}", "{top: 501}", "{}", "5", "{top: 2, of: 3}"])
def test_a_wrong_value_is_refused_at_its_place(tmp_path: Path, value: str) -> None:
    (tmp_path / "sidecar.yaml").write_text(f"version: 1\nmetrics: {{tool_label: {value}}}\n")
    with pytest.raises(ConfigError) as refused:
        load_settings(tmp_path / "sidecar.yaml", {})
    assert all(fault.line == 2 for fault in refused.value.faults)
