"""Writes the dashboards for Grafana, by the builders of Grafana's own SDK.

    python -m deploy.grafana.make            writes deploy/grafana/dashboards/*.json anew
    python -m deploy.grafana.make --check    exits 1 and names what is not current

Every expression names series of `GET /metrics` alone, so that the dashboards need no recording rule.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from grafana_foundation_sdk.builders import bargauge, common, dashboard, prometheus, stat, statetimeline, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
    VizOrientation,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardLinkType,
    DataSourceRef,
    Threshold,
    ThresholdsMode,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

FOLDER: Final = Path(__file__).parent / "dashboards"
SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")
SCOPE: Final = 'job=~"$job",instance=~"$instance"'
UPSTREAM: Final = 'upstream=~"$upstream"'
TAG: Final = "sidecar"
FROM: Final = "now-3h"

Panel = Any  # each kind of panel has a builder of its own, and they share no base
Row = tuple[str, Sequence[Panel]]


class Query(NamedTuple):
    expr: str
    legend: str = "__auto"


# --- expressions ------------------------------------------------------------------------------------------------------


def series(name: str, *where: str) -> str:
    return f"{name}{{{','.join((SCOPE, *where))}}}"


def total(name: str, *by: str, where: Sequence[str] = ()) -> Query:
    """The sum of a gauge."""
    return Query(f"sum{_by(by)} ({series(name, *where)})", _legend(by))


def rate(name: str, *by: str, where: Sequence[str] = ()) -> Query:
    """The growth of a counter in a second."""
    return Query(f"sum{_by(by)} (rate({series(name, *where)}[$__rate_interval]))", _legend(by))


def growth(name: str, *by: str, where: Sequence[str] = ()) -> Query:
    """The growth of a counter in the time that the dashboard shows."""
    return Query(f"sum{_by(by)} (increase({series(name, *where)}[$__range]))", _legend(by))


def share(name: str, part: str, *by: str, where: Sequence[str] = ()) -> Query:
    """The part, of 1, of a counter's growth that has a label; 0 if it does not grow."""
    of, whole = rate(name, *by, where=(*where, part)).expr, rate(name, *by, where=where).expr
    return Query(f"{of} / clamp_min({whole}, 1e-9)", _legend(by))


def quantile(q: float, name: str, *by: str, where: Sequence[str] = ()) -> Query:
    """A quantile of a histogram."""
    buckets = rate(f"{name}_bucket", "le", *by, where=where).expr
    return Query(f"histogram_quantile({q:g}, {buckets})", _legend(by))


def quantiles(name: str, *where: str) -> list[Query]:
    return [Query(quantile(q, name, where=where).expr, f"p{q * 100:g}") for q in (0.5, 0.95, 0.99)]


def _by(labels: Sequence[str]) -> str:
    return f" by ({', '.join(labels)})" if labels else ""


def _legend(labels: Sequence[str]) -> str:
    return " ".join(f"{{{{{label}}}}}" for label in labels) or "__auto"


# --- panels -----------------------------------------------------------------------------------------------------------


def graph(title: str, unit: str, *queries: Query, about: str = "", span: int = 8, stacked: bool = False) -> Panel:
    """Values over time."""
    tooltip = common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING)
    panel = _panel(timeseries.Panel(), title, unit, queries, about, span).tooltip(tooltip).min(0)
    return panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL)).fill_opacity(20) if stacked else panel


def number(title: str, unit: str, query: Query, *, about: str = "", bad_from: float | None = None) -> Panel:
    """The last value, a sixth of the width; red from `bad_from` on."""
    panel = _panel(stat.Panel(), title, unit, [query], about, 4, height=4).reduce_options(_last())
    panel = panel.color_mode(BigValueColorMode.VALUE if bad_from is None else BigValueColorMode.BACKGROUND)
    return panel.thresholds(_steps(("green", None), *([] if bad_from is None else [("red", bad_from)])))


def bars(title: str, unit: str, *queries: Query, about: str = "", span: int = 8, full: float = 0.0) -> Panel:
    """A bar for the last value of each series; with `full`, orange near it and red at it."""
    panel = _panel(bargauge.Panel(), title, unit, queries, about, span).orientation(VizOrientation.HORIZONTAL).min(0)
    panel = panel.reduce_options(_last())
    return panel.thresholds(_steps(("green", None), *([("orange", 0.8 * full), ("red", full)] if full else [])))


def states(title: str, query: Query, *, about: str = "", span: int = 12) -> Panel:
    """States of 0 (red) and 1 (green) over time."""
    panel = _panel(statetimeline.Panel(), title, "bool_on_off", [query], about, span)
    return panel.thresholds(_steps(("red", None), ("green", 1)))


def _panel(
    panel: Panel, title: str, unit: str, queries: Sequence[Query], about: str, span: int, height: int = 8
) -> Panel:
    panel = panel.title(title).unit(unit).datasource(SOURCE).span(span).height(height)
    for place, query in enumerate(queries):
        asked = prometheus.Dataquery().expr(query.expr).legend_format(query.legend)
        panel = panel.with_target(asked.ref_id(chr(ord("A") + place)).range())
    return panel.description(about) if about else panel


def _last() -> Any:
    return common.ReduceDataOptions().calcs(["lastNotNull"])


def _steps(*steps: tuple[str, float | None]) -> Any:
    found = [Threshold(color=colour, value=value) for colour, value in steps]
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(found)


# --- dashboards -------------------------------------------------------------------------------------------------------

REQUESTS, SECONDS = "sidecar_requests_total", "sidecar_request_duration_seconds"
DECISIONS, CHECKS = "sidecar_decisions_total", "sidecar_limit_checks_total"
DENIED = 'decision=~"deny|would_deny"'

OVERVIEW: Sequence[Row] = [
    ("Now", [
        number("Requests", "reqps", rate(REQUESTS)),
        number("Denied", "percentunit", share(REQUESTS, 'status="permission_denied"'), bad_from=0.5),
        number("Rate limited", "percentunit", share(REQUESTS, 'status="rate_limited"'), bad_from=0.2),
        number("Errors", "percentunit", share(REQUESTS, 'status="error"'), bad_from=0.05),
        number("p95 latency", "s", quantile(0.95, SECONDS)),
        number("Sidecars", "short", Query(f"count({series('sidecar_build_info')})")),
    ]),
    ("Requests", [
        graph("Requests by status", "reqps", rate(REQUESTS, "status"), stacked=True),
        graph("Requests by upstream", "reqps", rate(REQUESTS, "upstream"), stacked=True),
        graph("Requests by method", "reqps", rate(REQUESTS, "method"), stacked=True),
        graph("Latency", "s", *quantiles(SECONDS), about="From the first byte of a request to the end of its answer."),
        graph("Own time, p95 by stage", "s", quantile(0.95, "sidecar_stage_duration_seconds", "stage",
              where=('stage!="upstream"',)), about="What the sidecar adds: all stages except the upstream's."),
        graph("In progress", "short", total("sidecar_inflight_requests", "protocol"),
              Query(total("sidecar_open_streams").expr, "streams"), Query(total("sidecar_sessions").expr, "sessions")),
    ]),
    ("Policy and limits", [
        graph("Denials by reason", "reqps", rate(DECISIONS, "reason", where=(DENIED,)), stacked=True),
        graph("Callers not authenticated", "reqps", rate("sidecar_auth_failures_total", "reason"), stacked=True),
        graph("Refusals by limit", "reqps", rate(CHECKS, "limit", where=('outcome="refused"',))),
        bars("Budgets used", "percentunit",
             Query(f"max by (budget) ({series('sidecar_budget_used_ratio')})", "{{budget}}"), full=1.0),
        graph("Policy revisions in force", "short", Query(f"count by (revision) ({series('sidecar_policy_info')})",
              "{{revision}}"), about="More than one for a long time: a sidecar did not load the newest files."),
        graph("Reloads", "short", growth("sidecar_policy_reloads_total", "result")),
    ]),
    ("Approvals", [
        graph("Calls waiting for approval", "short", Query(f"max({series('sidecar_approvals_waiting')})", "waiting"),
              about="Replicas that share a store count the same calls.", span=6),
        graph("Wait of the oldest", "s", Query(f"max({series('sidecar_approvals_oldest_seconds')})", "oldest"), span=6),
        graph("Approvals by outcome", "short", growth("sidecar_approvals_total", "outcome"), span=6),
        graph("Time to an answer", "s", *quantiles("sidecar_approval_seconds"), span=6),
    ]),
    ("Health", [
        states("Upstreams", Query(f"min by (upstream) ({series('sidecar_upstream_up')})", "{{upstream}}")),
        graph("Reasons for degraded", "short", Query(f"{total('sidecar_degraded', 'reason').expr} > 0",
              "{{reason}}"), about="The codes of /readyz. Empty: none is degraded.", span=6),
        graph("In shadow mode", "short", Query(total("sidecar_enforcement_mode", where=('mode="shadow"',)).expr,
              "sidecars"), about="These sidecars record what policy and limits would refuse, and let it pass.", span=6),
    ]),
]  # fmt: skip

PRINCIPAL: Sequence[Row] = [
    ("Calls", [
        number("Requests", "reqps", rate(REQUESTS)),
        number("Denied", "percentunit", share(REQUESTS, 'status="permission_denied"'), bad_from=0.5),
        number("Rate limited", "percentunit", share(REQUESTS, 'status="rate_limited"'), bad_from=0.2),
        number("Tool errors", "percentunit", share(REQUESTS, 'status="tool_error"'), bad_from=0.2),
        number("Sessions", "short", total("sidecar_sessions")),
        number("Streams", "short", total("sidecar_open_streams")),
        graph("Calls by upstream and method", "reqps", rate(REQUESTS, "upstream", "method"), span=12, stacked=True),
        graph("Calls by tool", "reqps", rate(REQUESTS, "upstream", "tool", where=('tool!=""',)), span=12, stacked=True,
              about="Needs metrics.tool_label in sidecar.yaml."),
    ]),
    ("Access", [
        graph("Decisions by kind", "reqps", rate(DECISIONS, "kind", "decision"), stacked=True),
        graph("Denials by reason", "reqps", rate(DECISIONS, "reason", where=(DENIED,)), stacked=True),
        graph("Credentials not accepted", "reqps", rate("sidecar_auth_failures_total", "credential", "reason")),
        graph("Arguments that do not match the schema", "reqps", rate("sidecar_schema_violations_total", "upstream")),
        graph("Limit checks", "reqps", rate(CHECKS, "limit", "outcome", where=('limit=~"$limit"',))),
        bars("Budgets used", "percentunit",
             Query(f"max by (budget) ({series('sidecar_budget_used_ratio')})", "{{budget}}"), full=1.0),
    ]),
    ("Latency", [
        graph("Latency by upstream, p95", "s", quantile(0.95, SECONDS, "upstream"), span=12),
        graph("Time by stage, p95", "s", quantile(0.95, "sidecar_stage_duration_seconds", "stage"), span=12),
    ]),
]  # fmt: skip

UPSTREAMS: Sequence[Row] = [
    ("Now", [
        number("Answers", "bool_yes_no", Query(f"min({series('sidecar_upstream_up', UPSTREAM)})")),
        number("Calls", "reqps", rate("sidecar_upstream_duration_seconds_count", where=(UPSTREAM,))),
        number("Errors", "percentunit", share(REQUESTS, 'status="error"', where=(UPSTREAM,)), bad_from=0.05),
        number("Tool errors", "percentunit", share(REQUESTS, 'status="tool_error"', where=(UPSTREAM,)), bad_from=0.2),
        number("p95 latency", "s", quantile(0.95, "sidecar_upstream_duration_seconds", where=(UPSTREAM,))),
        number("Breaker opened", "short", growth("sidecar_breaker_transitions_total", where=(UPSTREAM, 'to="open"')),
               bad_from=1, about="In the selected time range."),
    ]),
    ("Calls", [
        graph("Requests by status", "reqps", rate(REQUESTS, "status", where=(UPSTREAM,)), stacked=True),
        graph("Requests by tool", "reqps", rate(REQUESTS, "tool", where=(UPSTREAM, 'tool!=""')), stacked=True,
              about="Needs metrics.tool_label in sidecar.yaml."),
        graph("Latency of the upstream", "s", *quantiles("sidecar_upstream_duration_seconds", UPSTREAM)),
    ]),
    ("Health", [
        states("State", Query(f"max by (upstream, state) ({series('sidecar_upstream_state', UPSTREAM)})",
               "{{upstream}} {{state}}")),
        graph("Breaker", "short", growth("sidecar_breaker_transitions_total", "upstream", "to", where=(UPSTREAM,)),
              span=12),
        graph("Sessions lost and messages dropped", "short",
              Query(growth("sidecar_upstream_sessions_lost_total", where=(UPSTREAM,)).expr, "sessions lost"),
              Query(growth("sidecar_upstream_messages_dropped_total", where=(UPSTREAM,)).expr, "messages dropped")),
        graph("Tools that differ from pins, or hide text", "short",
              Query(f"max by (upstream) ({series('sidecar_pin_mismatches', UPSTREAM)})", "{{upstream}} pins"),
              Query(f"max by (upstream) ({series('sidecar_hidden_text_tools', UPSTREAM)})", "{{upstream}} hidden")),
        graph("Arguments that do not match the schema", "reqps",
              rate("sidecar_schema_violations_total", "upstream", where=(UPSTREAM,))),
    ]),
]  # fmt: skip

PROCESS: Sequence[Row] = [
    ("Store", [
        states("Counts", Query(series("sidecar_store_up"), "{{instance}}"), span=8),
        graph("Time of a request", "s", *quantiles("sidecar_store_duration_seconds")),
        graph("Outages", "short", Query(growth("sidecar_store_forgot_total", "how").expr, "came back {{how}}"),
              Query(growth("sidecar_store_untold_total", "verb").expr, "not sent: {{verb}}")),
    ]),
    ("Audit", [
        states("Writes", Query(series("sidecar_audit_up"), "{{instance}}"), span=6),
        graph("Records", "short", rate("sidecar_audit_records_total", "event", where=('result="written"',)), span=6,
              stacked=True),
        graph("Records that were not written", "short",
              growth("sidecar_audit_records_total", "event", where=('result="failed"',)), span=6),
        graph("Queue", "short", Query(series("sidecar_audit_queue_depth"), "{{instance}}"), span=6),
    ]),
    ("Process", [
        graph("Memory", "bytes", Query(series("process_resident_memory_bytes"), "{{instance}}"), span=6),
        graph("CPU", "percentunit", Query(f"rate({series('process_cpu_seconds_total')}[$__rate_interval])",
              "{{instance}}"), span=6),
        graph("Open files, of the limit", "percentunit", Query(
              f"{series('process_open_fds')} / {series('process_max_fds')}", "{{instance}}"), span=6),
        graph("Delay of the event loop", "s", *quantiles("sidecar_loop_lag_seconds"), span=6),
        graph("Uptime", "s", Query(f"time() - {series('process_start_time_seconds')}", "{{instance}}"), span=12),
        graph("Observations counted as other", "short", growth("sidecar_metrics_folded_total", "metric"), span=6),
        graph("Workers replaced", "short", growth("sidecar_worker_restarts_total", "instance"), span=6,
              about="Of a sidecar with server.workers."),
        graph("Refusals without an answer", "reqps", rate("sidecar_refusals_unanswered_total", "instance"), span=12),
        graph("Time since the policy was loaded", "s", Query(
              f"time() - {series('sidecar_policy_last_reload_timestamp_seconds')}", "{{instance}}"), span=12),
    ]),
    ("CLI agents, schedules, callbacks", [
        graph("Runs by status", "short", rate("sidecar_agent_runs_total", "agent", "status"), stacked=True),
        graph("Pool use and waiting runs", "short",
              Query(f"max by (agent) ({series('sidecar_agent_pool_used_ratio')})", "{{agent}} used, of 1"),
              Query(total("sidecar_agent_queue_length", "agent").expr, "{{agent}} waiting")),
        graph("Tasks", "short", total("sidecar_a2a_tasks", "state"), stacked=True),
        graph("Schedules by result", "short", growth("sidecar_schedule_runs_total", "schedule", "result")),
        graph("Callbacks by result", "reqps", rate("sidecar_callbacks_total", "result")),
        graph("Callbacks that wait", "short", total("sidecar_callbacks_waiting")),
    ]),
]  # fmt: skip


def dashboards() -> Mapping[str, str]:
    """The text of each file by its name."""
    upstream = ("upstream", "Upstream", "label_values(sidecar_upstream_up, upstream)")
    limit = ("limit", "Limit", "label_values(sidecar_limit_checks_total, limit)")
    about = "A sidecar beside one agent: choose its instance. Principals are never labels."
    return {
        f"{name}.json": _text(name, title, about, rows, variables)
        for name, title, about, rows, variables in (
            ("sidecar-overview", "Sidecar / Overview", "All sidecars of a job together.", OVERVIEW, ()),
            ("sidecar-principal", "Sidecar / One principal", about, PRINCIPAL, (limit,)),
            ("sidecar-upstream", "Sidecar / One upstream", "An MCP server or an agent.", UPSTREAMS, (upstream,)),
            (
                "sidecar-process",
                "Sidecar / Store, audit, process",
                "The dependencies and the process of a sidecar.",
                PROCESS,
                (),
            ),
        )
    }


def _text(uid: str, title: str, about: str, rows: Sequence[Row], variables: Sequence[tuple[str, str, str]]) -> str:
    board = dashboard.Dashboard(title).uid(uid).description(about).tags([TAG]).time(FROM, "now").refresh("30s")
    board = board.timezone("browser").tooltip(1).link(_others())
    board = board.with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    known = (
        ("job", "Job", "label_values(sidecar_build_info, job)"),
        ("instance", "Instance", 'label_values(sidecar_build_info{job=~"$job"}, instance)'),
    )
    for name, label, query in (*known, *variables):
        board = board.with_variable(_variable(name, label, query))
    ids = iter(range(1, 1000))
    for name, panels in rows:
        board = board.with_row(dashboard.Row(name).id(next(ids)))
        for panel in panels:
            board = board.with_panel(panel.id(next(ids)))
    return json.dumps(board.build(), cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


def _variable(name: str, label: str, query: str) -> Any:
    made = dashboard.QueryVariable(name).label(label).datasource(SOURCE).query(query)
    made = made.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).sort(VariableSort.ALPHABETICAL_ASC)
    return made.multi(True).include_all(True).all_value(".*").current(VariableOption(text="All", value="$__all"))


def _others() -> Any:
    link = dashboard.DashboardLink("Sidecar").type(DashboardLinkType.DASHBOARDS).tags([TAG])
    return link.as_dropdown(True).include_vars(True).keep_time(True)


def main() -> None:
    found = dashboards()
    stale = [name for name, text in found.items() if not _is_current(FOLDER / name, text)]
    if "--check" in sys.argv[1:]:
        sys.exit("not current: " + ", ".join(stale) if stale else 0)
    for name in stale:
        (FOLDER / name).write_text(found[name], "utf-8")


def _is_current(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text("utf-8") == text


if __name__ == "__main__":
    main()
