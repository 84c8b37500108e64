"""The metric series of the sidecar: each is declared here once, in `Metrics`.

Label values come from the settings, from the tools that servers list, or from closed sets; any other becomes `other`,
so that callers cannot create series. The number of series is bounded too, and any excess is counted.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property, partial
from operator import sub
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from sidecar import __version__
from sidecar.errors import Reason
from sidecar.observability.registry import AS_GIVEN, OTHER, Kind, Row, SeriesTable, add_all
from sidecar.observability.tool_labels import ToolLabels
from sidecar.protocols.a2a.operations import BY_ACTION, SEND, STREAM
from sidecar.protocols.mcp.messages import METHODS, NOTIFICATIONS, SERVER_REQUESTS
from sidecar.vocabulary import EngineName, PermissionKind

if TYPE_CHECKING:
    from sidecar.observability.exposition import Exposition
    from sidecar.observability.worker_series import WorkerSeries

MAX_KNOWN_SERIES = 4096  # about 1 KB each
MAX_ENDED = 256  # ended requests that `settle` adds together, in less than a millisecond
STATUS_AT = 3  # among the labels of `requests_total`
NONE = "none"  # the reason of an allowed call, and the credential of a request without one

# OpenTelemetry's buckets for MCP operations, with smaller ones for calls to a local server.
REQUEST_BUCKETS_S = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
)  # fmt: skip
APPROVAL_BUCKETS_S = (1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 14400.0, 86400.0)
STAGE_BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0)

ASKED = ("authzen", "ext_authz", "auth_request")  # decisions for other enforcement points
APPROVAL_OUTCOMES = ("asked", "approved", "refused", "expired", "withdrawn", "used")
PROTOCOLS = ("mcp", "a2a", "http", *ASKED)  # http: plain calls, and bytes that are not a request
TOOL_ERROR = "tool_error"  # delivered, with a failure of the tool: `success` with `tool_error` in the audit
# The same values as in the audit, so that they can be compared.
STATUSES = ("success", TOOL_ERROR, "permission_denied", "rate_limited", "error")
METHODS_OF_MCP = frozenset(METHODS) | frozenset(NOTIFICATIONS) | SERVER_REQUESTS
METHODS_OF_A2A = frozenset(BY_ACTION)
WIRE_METHODS = METHODS_OF_MCP | METHODS_OF_A2A
METHODS_OF: Mapping[str, Collection[str]] = dict.fromkeys(PROTOCOLS, WIRE_METHODS) | {
    "mcp": METHODS_OF_MCP,
    "a2a": METHODS_OF_A2A,
}
# The series of these methods exist before the first call, so that `rate()` sees it.
COMMON_METHODS = ("tools/call", "tools/list")
COMMON_OF_AGENTS = (SEND.action, STREAM.action)
# The stages whose ends a request marks.
STAGES = ("auth", "parse", "policy", "arguments", "approval", "limits", "audit", "upstream")
KINDS = tuple(kind.value for kind in PermissionKind)
ENGINES = get_args(EngineName)
CREDENTIALS = ("jwt", "api_key", "agent_token", "local", "certificate", "anonymous", NONE)
LIMIT_OUTCOMES = ("admitted", "refused", "unavailable", "degraded")  # degraded: admitted locally during an outage
STORE_FORGOT = ("emptied", "rolled_back")
STORE_UNTOLD = ("give_back", "release", "charge")
DECISIONS = ("allow", "deny", "would_deny")  # would_deny in shadow mode only
UPSTREAM_STATES = ("ready", "degraded", "offline")
BREAKER_STATES = ("closed", "open", "half_open")
MODES = ("enforce", "shadow")
REVISIONS = ("same", "other")
RELOADS = ("ok", "failed")
# The reasons for which `/readyz` reports `degraded`.
DEGRADED_REASONS = (
    "files-refused", "restart-needed", "source-refused", "store-out", "store-refuses", "store-degraded", "task-ended",
    "task-store-out", "run-store-out", "session-store-out", "callback-store-out", "task-api-store-out",
    "approval-store-out", "schedule-store-out", "schedule-unreadable", "overloaded", "audit-out", "disabled-unsaved",
    "engines-differ", "issuer-without-keys", "keys-differ",
)  # fmt: skip
CALLBACK_KINDS, CALLBACK_RESULTS = (
    ("push", "task", "approval"),
    ("delivered", "failed", "refused", "withheld", "given_up"),
)
SCHEDULE_RESULTS = ("success", "failure", "timeout", "cancelled", "refused", "missed", "skipped")
TASK_STATES = ("pending", "waiting", "running", "completed", "failed", "cancelled")
AGENT_STATUSES = ("success", "failure", "timeout", "cancelled")  # ExecutionStatus of the original data models
AGENT_STATES = ("idle", "starting", "running", "completed", "failed", "timeout", "cancelled", "cleanup")
AUDIT_EVENTS, AUDIT_RESULTS = ("decision", "outcome", "refusal", "control", "evidence"), ("written", "failed")
TROUBLE = (
    Reason.UPSTREAM_OPEN,
    Reason.UPSTREAM_FAILED,
    Reason.UPSTREAM_TIMEOUT,
    Reason.UPSTREAM_LIMITED,
    Reason.RESPONSE_REFUSED,
)
DENIALS = (Reason.DENIED_BY_RULE, Reason.EXPIRED, Reason.CONDITION_FALSE, Reason.NO_MATCHING_RULE)
POLICY_REASONS = (*DENIALS, Reason.METHOD_UNKNOWN, Reason.PRINCIPAL_DISABLED)
AUTH_REASONS = (
    Reason.UNAUTHENTICATED,
    Reason.BAD_CREDENTIAL,
    Reason.CREDENTIAL_CONFLICT,
    Reason.CLIENT_UNKNOWN,
    Reason.INSUFFICIENT_SCOPE,
)

# The help text of every series.
HELP: Mapping[str, str] = {
    "requests_total": "Requests answered on the data listener.",
    "request_duration_seconds": "Time from the first byte of a request to the end of its answer.",
    "stage_duration_seconds": "Time spent in each stage of a request.",
    "inflight_requests": "Requests in progress.",
    "open_streams": "Event streams open to callers.",
    "sessions": "Open sessions of callers.",
    "refusals_unanswered_total": "Unauthenticated requests closed without an answer, after too many of one address.",
    "auth_failures_total": "Requests whose caller was not authenticated.",
    "decisions_total": "Policy decisions, one for each call.",
    "approvals_waiting": "Calls that wait for a person's approval.",
    "approvals_oldest_seconds": "How long the oldest waiting call has waited; 0 if none waits.",
    "approvals_total": "Approvals, by outcome; each that is requested has a later outcome.",
    "approval_seconds": "Time from the request for an approval to a person's answer.",
    "limit_checks_total": "Checks of limits, by outcome.",
    "budget_used_ratio": "Spent part of a budget, from 0 to 1: of its fullest counter that this process charged.",
    "schema_violations_total": "Calls whose arguments did not match the schema.",
    "upstream_up": "Whether the upstream answers (1) or is offline.",
    "upstream_state": "1 for the current status of the upstream.",
    "breaker_transitions_total": "Changes of the upstream's circuit breaker, by new state.",
    "upstream_sessions_lost_total": "Sessions that the upstream had opened and no longer knew.",
    "upstream_messages_dropped_total": "Malformed messages of the upstream, other than answers, that were dropped.",
    "pin_mismatches": "Tools that differ from their pins, or without pins from when they were first listed.",
    "hidden_text_tools": "Tools with hidden characters in their texts.",
    "upstream_duration_seconds": "Time from sending a call to the upstream to the end of its answer.",
    "federation_unavailable_total": "Servers that did not answer a request to all servers.",
    "a2a_tasks": "Stored tasks of the task API.",
    "agent_runs_total": "Ended runs of agent programs, by result.",
    "agent_queue_length": "Runs of the agent that wait in the queue of this process.",
    "agent_executions": "Runs of the agent in progress in this process, by state; idle waits in the queue.",
    "agent_pool_used_ratio": "Runs of the agent in progress in this process, as a part of its maximum.",
    "schedule_runs_total": "Runs of the schedule, and due times without a run, by result.",
    "schedule_last_success_timestamp_seconds": "When a run of the schedule last succeeded, since the epoch.",
    "callbacks_total": "Attempts to send a callback, by result; another attempt follows `failed`.",
    "callback_duration_seconds": "Time of one attempt to send a callback.",
    "callbacks_waiting": "Callbacks that wait or are in progress.",
    "policy_rules": "Rules of the policy in force.",
    "policy_info": "The revision of the policy in force.",
    "policy_engine_info": "1 for the engine that decides the kind: compiled rules, pycasbin, or both.",
    "policy_engine_differences_total": "Links that compiled rules and pycasbin decided differently; they were denied.",
    "policy_reloads_total": "Reloads of the policy.",
    "policy_last_reload_timestamp_seconds": "When the policy in force was loaded, since the epoch.",
    "policy_source_up": "Whether the last read of the policy source succeeded (1) or not.",
    "policy_source_last_success_timestamp_seconds": "Last successful read of the policy source, since the epoch.",
    "policy_source_version": "The version of the policy that the source returned.",
    "policy_replicas": "Other replicas that serve the same policy, or another one.",
    "enforcement_mode": "1 for the mode in force.",
    "store_up": "Whether the store of limits is available (1) or not.",
    "store_info": "The store that counts the limits.",
    "store_duration_seconds": "Time of one request to the store of limits.",
    "store_forgot_total": "Times that the store came back with less data, and was restored from this process.",
    "store_untold_total": "Changes that did not reach the store: an outage was too long, or this process ended in one.",
    "audit_records_total": "Audit records, by result.",
    "audit_queue_depth": "Records that wait for their sink.",
    "audit_up": "Whether the audit sink accepted the last records (1) or not.",
    "worker_restarts_total": "Workers that replaced one that ended.",
    "loop_lag_seconds": "Delay of the event loop at a timer.",
    "degraded": "How often each reason for `degraded` applies, as in `/readyz`.",
    "build_info": "Version of the sidecar and of Python.",
}


class RequestSeries(NamedTuple):
    """The rows that the end of a request changes. `durations` and `upstream_durations` are rows of histograms."""

    durations: Row
    upstream_durations: Row | None
    """None if the upstream was not called."""
    counts: tuple[Row, ...]
    """The rows that count one event each."""
    about: object
    """An object that must live as long as the rows, because their key in `known_series` has its `id`."""


class Metrics:
    """Every series, and the methods that update them. Times are in seconds. An attribute declared with `.count`,
    `.only` or `.row` is called with the labels; one declared with `.put…` or `.time…` with the labels, then the value.
    `budgets` are limits that count costs. If `top_tools` is not 0, requests have a label `tool`, with that many of the
    most called tools."""

    def __init__(
        self,
        *,
        upstreams: Iterable[str],
        agents: Iterable[str] = (),
        limits: Iterable[str] = (),
        budgets: Iterable[str] = (),
        top_tools: int = 0,
    ) -> None:
        self._tables: list[SeriesTable] = []
        self._of_servers: list[SeriesTable] = []  # created for MCP servers and not for agents

        def table(kind: Kind, name: str, /, **more: Any) -> SeriesTable:
            self._tables.append(SeriesTable(kind, name, HELP[name], **more))
            return self._tables[-1]

        counter, gauge = partial(table, "counter"), partial(table, "gauge")
        # With several workers, the sum, the maximum or the minimum is shown.
        highest, lowest = partial(gauge, across="max"), partial(gauge, across="min")
        times_of_requests = partial(table, "histogram", bounds=REQUEST_BUCKETS_S)
        times_of_stages = partial(table, "histogram", bounds=STAGE_BUCKETS_S)
        # Label values, filled by `reconfigured` and `agents_offered`.
        self._upstreams, self._limits, self._budgets = set[str](), set[str](), set[str]()
        self._programs, self._schedules = set[str](), set[str]()
        self._configured_schedules, self._added_schedules = frozenset[str](), frozenset[str]()
        of_upstreams = {"upstream": self._upstreams}
        late: dict[str, Any] = of_upstreams | {"late": True}

        def of_server(kind: Kind, name: str) -> SeriesTable:
            self._of_servers.append(table(kind, name, across="max", **late))
            return self._of_servers[-1]

        # Requests
        self.tool_labels = ToolLabels(top_tools) if top_tools else None
        of_tools = {} if self.tool_labels is None else {"tool": self.tool_labels.values}
        whole = {"protocol": PROTOCOLS, **of_upstreams, "method": WIRE_METHODS, "status": STATUSES, **of_tools}
        self._requests = counter("requests_total", late=True, **whole)
        self._removed_requests = Counter[str]()  # by status: those of removed series
        self._request_s = times_of_requests(
            "request_duration_seconds", protocol=PROTOCOLS, upstream=self._upstreams, late=True
        )
        self._stage_s = times_of_stages("stage_duration_seconds", stage=STAGES)
        self._inflight = gauge("inflight_requests", protocol=PROTOCOLS)
        self.streams = gauge("open_streams", protocol=PROTOCOLS).put_at
        self.sessions = gauge("sessions").put
        self.refusal_unanswered = counter("refusals_unanswered_total").count
        self.auth_failed = counter("auth_failures_total", credential=CREDENTIALS, reason=AUTH_REASONS).count
        reasons = (NONE, *POLICY_REASONS)
        self._decisions = counter("decisions_total", late=True, kind=KINDS, decision=DECISIONS, reason=reasons)
        self._limit_checks = counter("limit_checks_total", limit=self._limits, outcome=LIMIT_OUTCOMES)
        self.limit_row = self._limit_checks.row
        self._approvals_waiting = highest("approvals_waiting").put
        self._approvals_oldest_s = highest("approvals_oldest_seconds").put
        self._approvals = counter("approvals_total", outcome=APPROVAL_OUTCOMES)
        self._approval_s = table("histogram", "approval_seconds", bounds=APPROVAL_BUCKETS_S)
        self._budget_used = highest("budget_used_ratio", budget=self._budgets)
        self._fullest: dict[str, tuple[float, float]] = {}  # by budget: the highest ratio, and when its counter resets

        # Upstreams
        self.schema_violated = of_server("counter", "schema_violations_total").count
        self._upstream_up = lowest("upstream_up", **of_upstreams)
        self._upstream_state = highest("upstream_state", **of_upstreams, state=UPSTREAM_STATES)
        self.breaker_moved = counter("breaker_transitions_total", **of_upstreams, to=BREAKER_STATES).count
        self.session_lost = of_server("counter", "upstream_sessions_lost_total").count
        self.message_dropped = of_server("counter", "upstream_messages_dropped_total").count
        self.pins_mismatched = of_server("gauge", "pin_mismatches").put_at
        self.hidden_text_found = of_server("gauge", "hidden_text_tools").put_at
        self._upstream_s = times_of_requests("upstream_duration_seconds", **of_upstreams)
        self.upstream_answered = self._upstream_s.time_at
        self.federation_missed = counter("federation_unavailable_total", **late, reason=TROUBLE).count

        # Tasks, agent programs, schedules, callbacks
        self._task_states = highest("a2a_tasks", state=TASK_STATES)
        programs = {"agent": self._programs}
        self.agent_ran = counter("agent_runs_total", **programs, status=AGENT_STATUSES).count
        self._agent_queue = gauge("agent_queue_length", **programs)
        self._agent_executions = gauge("agent_executions", **programs, state=AGENT_STATES)
        self._agent_pool = highest("agent_pool_used_ratio", **programs)
        schedules = {"schedule": self._schedules}
        self._schedule_runs = counter("schedule_runs_total", **schedules, result=SCHEDULE_RESULTS)
        self._schedule_success = highest("schedule_last_success_timestamp_seconds", late=True, **schedules)
        self.schedule_succeeded = self._schedule_success.put_at
        self._callbacks = counter("callbacks_total", kind=CALLBACK_KINDS, result=CALLBACK_RESULTS)
        self._callback_s = times_of_requests("callback_duration_seconds")
        self.callbacks_wait = gauge("callbacks_waiting").put

        # Policy
        self._policy_rules = highest("policy_rules", kind=KINDS)
        self._policy_info = highest("policy_info", revision=AS_GIVEN)
        self._engines = highest("policy_engine_info", kind=KINDS, engine=ENGINES)
        self._differences = counter("policy_engine_differences_total", late=True, kind=KINDS)
        self.policy_reloaded = counter("policy_reloads_total", result=RELOADS).count
        self._reloaded_at = highest("policy_last_reload_timestamp_seconds")
        self._source_up = lowest("policy_source_up", late=True)
        self._source_at = lowest("policy_source_last_success_timestamp_seconds", late=True)
        self._source_version = highest("policy_source_version", late=True)
        self._replicas = highest("policy_replicas", revision=REVISIONS, late=True)
        self._mode = highest("enforcement_mode", mode=MODES)

        # Store, audit, process
        self.store_up = lowest("store_up").put
        self.store_is = highest("store_info", kind=AS_GIVEN).only
        self.store_answered = partial(times_of_stages("store_duration_seconds").observe, ())
        self.store_forgot = counter("store_forgot_total", how=STORE_FORGOT).count
        self.store_untold = counter("store_untold_total", verb=STORE_UNTOLD).count
        self.audit_row = counter("audit_records_total", event=AUDIT_EVENTS, result=AUDIT_RESULTS).row
        self.audit_depth = gauge("audit_queue_depth").put
        self.audit_up = lowest("audit_up").put
        self._restarts = counter("worker_restarts_total", late=True)
        self._before: Mapping[str, float] = {}
        self.loop_lagged = times_of_stages("loop_lag_seconds").time
        self._degraded = highest("degraded", reason=DEGRADED_REASONS)
        highest("build_info", version=AS_GIVEN, python=AS_GIVEN).only(__version__, platform.python_version())

        self._decisions.declare(KINDS, ("allow",), (NONE,))
        self._decisions.declare(KINDS, ("deny",), POLICY_REASONS)
        self.known_series: dict[object, RequestSeries] = {}
        self.ended: list[tuple[RequestSeries, float, float, Mapping[str, float]]] = []
        """Answered requests, before `settle`: their rows, start, end, and the ends of their stages."""
        self.reconfigured(upstreams=upstreams, agents=agents, limits=limits, budgets=budgets)

    def reconfigured(
        self,
        *,
        upstreams: Iterable[str],
        agents: Iterable[str] = (),
        limits: Iterable[str] = (),
        budgets: Iterable[str] = (),
        schedules: Iterable[str] = (),
    ) -> None:
        """Sets the configured names; `agents` are the upstreams that speak A2A. Counters of removed names remain,
        because a counter must not decrease."""
        for choices, names in ((self._upstreams, upstreams), (self._limits, limits), (self._budgets, budgets)):
            choices.clear()
            choices.update(names)
        self.known_series.clear()
        self._budget_used.keep(self._budgets)
        self._fullest = {budget: known for budget, known in self._fullest.items() if budget in self._budgets}
        for gauge in (self._upstream_up, self._upstream_state):
            gauge.keep(self._upstreams)
        self._configured_schedules = frozenset(schedules)
        self._schedules_known()
        for table in self._tables:
            table.chosen_anew()
        of_agents = sorted(self._upstreams.intersection(agents))
        of_servers = sorted(self._upstreams.difference(of_agents))
        of_tools = () if self.tool_labels is None else (("",),)
        self._requests.declare(("mcp",), of_servers, COMMON_METHODS, STATUSES, *of_tools)
        self._requests.declare(("a2a",), of_agents, COMMON_OF_AGENTS, STATUSES, *of_tools)
        self._request_s.declare(("mcp", "http"), of_servers)
        self._request_s.declare(("a2a",), of_agents)
        self._request_s.declare(PROTOCOLS, (OTHER,))
        for table in self._of_servers:
            table.declare(of_servers)

    def schedules_added(self, schedules: Collection[str]) -> None:
        if self._added_schedules != frozenset(schedules):
            self._added_schedules = frozenset(schedules)
            self._schedules_known()

    def _schedules_known(self) -> None:
        self._schedules.clear()
        self._schedules |= self._configured_schedules | self._added_schedules
        self._schedule_success.keep(self._schedules)
        self._schedule_runs.chosen_anew()
        self._schedule_success.chosen_anew()

    def inflight(self, counts: Mapping[str, int]) -> None:
        """Sets the number of requests in progress, by protocol."""
        self._inflight.each(PROTOCOLS, counts)

    def request_finished(
        self, protocol: str, upstream: str, method: str, status: str, duration_s: float, marks: Mapping[str, float]
    ) -> None:
        """Counts a request that ended after `duration_s`. `status` is one of STATUSES; `marks` are the ends of its
        stages, in seconds after its start."""
        self.ended.append((self.request_series(protocol, upstream, method, status), 0.0, duration_s, marks))
        self.settle()

    def request_series(
        self,
        protocol: str,
        upstream: str,
        method: str,
        status: str,
        *counts: Row,
        answered: bool = False,
        about: object = None,
        tool: str = "",
    ) -> RequestSeries:
        """Returns the rows of requests with this end. `counts` are further rows that each request increments.
        `answered`: the upstream was called. `about` is kept with the rows. `tool` is a value of `tool_labels`."""
        method = method if method in METHODS_OF.get(protocol, ()) else OTHER
        labels = (protocol, upstream, method, status, *([] if self.tool_labels is None else [tool]))
        return RequestSeries(
            self._request_s.row(protocol, upstream),
            self._upstream_s.row(upstream) if answered else None,
            (self._requests.row(*labels), *counts),
            about,
        )

    def keep_series(self, key: object, series: RequestSeries) -> None:
        """Caches rows in `known_series`, which is emptied when the settings or the chosen tools change, and when it is
        full. Does nothing if a table is full."""
        tables = (self._requests, self._request_s, self._upstream_s, self._decisions, self._limit_checks)
        if any(table.is_full for table in tables):  # an event that is folded must be counted each time
            return
        if len(self.known_series) >= MAX_KNOWN_SERIES:
            self.known_series.clear()
        self.known_series[key] = series

    def settle(self) -> None:
        """Adds the numbers of the requests in `ended`. Adding them together costs less, because each separate addition
        would find cold caches."""
        waiting, self.ended = self.ended, []
        alike: dict[tuple[Any, ...], tuple[RequestSeries, list[tuple[float, ...]]]] = {}  # by rows and stages
        for series, started_s, ended_s, marks in waiting:
            key = id(series), *marks
            if (known := alike.get(key)) is None:
                known = alike[key] = series, []
            known[1].append((started_s, *marks.values(), ended_s))
        for (_, *stages), ((durations, upstream_durations, counts, _), times) in alike.items():
            for row in counts:
                row[0] += len(times)
            columns = list(zip(*times, strict=True))
            add_all(durations, REQUEST_BUCKETS_S, map(sub, columns[-1], columns[0]))
            for stage, before_s, after_s in zip(stages, columns, columns[1:], strict=False):
                spent_s = sorted(map(sub, after_s, before_s))
                add_all(self._stage_s.row(stage), STAGE_BUCKETS_S, spent_s)
                if stage == "upstream" and upstream_durations is not None:
                    add_all(upstream_durations, REQUEST_BUCKETS_S, spent_s)

    def requests_by_status(self) -> Mapping[str, int]:
        """How many requests ended in each status, in this process and in those that it replaced."""
        self.settle()
        counts = {**dict.fromkeys(STATUSES, 0), **self._removed_requests}
        for labels, (count,) in self._requests.rows.items():
            status = labels[STATUS_AT]
            counts[status] = counts.get(status, 0) + int(count)
        return counts

    def choose_tools(self) -> None:
        """Chooses again which tools have a label of their own. Called once a minute, but not in workers: the sum of all
        workers would decrease when one of them removes a series."""
        if self.tool_labels is None:
            return
        self.settle()
        for labels, (count,) in self.tool_labels.choose(self._requests):
            self._removed_requests[labels[STATUS_AT]] += int(count)
        self.known_series.clear()

    def decision_row(self, kind: str, decision: str, reason: str | None) -> Row:
        """The row of a policy decision (allow, deny, would_deny), by the kind of the deciding link. `reason` is None
        for an allowed call."""
        return self._decisions.row(kind, decision, NONE if reason is None else reason)

    def approvals_wait(self, count: int, oldest_s: float) -> None:
        """Sets how many calls wait for approval, and how long the oldest has waited."""
        self._approvals_waiting(count)
        self._approvals_oldest_s(oldest_s)

    def approval(self, outcome: str, answered_s: float | None = None) -> None:
        """Counts an approval by outcome; `answered_s` is the time until a person's answer, if the outcome is one."""
        self._approvals.count(outcome)
        if answered_s is not None:
            self._approval_s.time(answered_s)

    def budget_used(self, budget: str, ratio: float, until_s: float) -> None:
        """Sets the used ratio of a budget, if this counter of it is the fullest, until it resets at `until_s` (seconds
        since the epoch)."""
        if budget in self._budgets and ratio >= self._fullest.get(budget, (0.0, 0.0))[0]:
            self._fullest[budget] = ratio, until_s
            self._budget_used.set((budget,), ratio)

    def budgets_reset(self, now_s: float) -> None:
        """Sets the used ratio of budgets whose period has ended to zero."""
        for budget in [budget for budget, (_, until_s) in self._fullest.items() if until_s <= now_s]:
            del self._fullest[budget]
            self._budget_used.set((budget,), 0.0)

    def upstream_stands(self, upstream: str, status: str) -> None:
        """Sets an upstream's status: `ready`, `degraded` or `offline`."""
        if upstream not in self._upstreams:  # an upstream that is being removed
            return
        self._upstream_up.set((upstream,), status != "offline")
        self._upstream_state.each(UPSTREAM_STATES, {status: 1}, upstream)

    def tasks(self, counts: Mapping[str, int]) -> None:
        self._task_states.each(TASK_STATES, counts)

    def agents_offered(self, names: Iterable[str]) -> None:
        self._programs.clear()
        self._programs.update(names)
        for gauge in (self._agent_queue, self._agent_executions, self._agent_pool):
            gauge.keep(self._programs)
        for table in self._tables:
            table.chosen_anew()

    def agent_stands(self, agent: str, running: int, waiting: int, places: int, states: Mapping[str, int]) -> None:
        """Sets the gauges of an agent program: its running and waiting runs, its runs by state, and the used part of
        its `places` for concurrent runs."""
        self._agent_queue.set((agent,), waiting)
        self._agent_pool.set((agent,), running / places)
        self._agent_executions.each(AGENT_STATES, states, agent)

    def schedule_ran(self, schedule: str, result: str, count: int = 1) -> None:
        self._schedule_runs.count(schedule, result, amount=count)

    def callback_attempted(self, kind: str, result: str, duration_s: float) -> None:
        self._callbacks.count(kind, result)
        self._callback_s.time(max(0.0, duration_s))

    def policy_loaded(self, revision: str, rules: Mapping[str, int], at: float) -> None:
        """Describes the policy in force. `rules` are the numbers of its rules by kind; it was loaded `at` this time, in
        seconds since the epoch."""
        self._policy_info.only(revision)
        self._policy_rules.each(KINDS, rules)
        self._reloaded_at.put(at)

    def engines_decide(self, engines: Mapping[str, str]) -> None:
        """Sets the engine that decides each kind."""
        for kind, engine in engines.items():
            self._engines.each(ENGINES, {engine: 1}, kind)
        self._differences.declare(tuple(kind for kind, engine in engines.items() if engine == "both"))

    def engines_differed(self, kind: str, count: int) -> None:
        self._differences.count(kind, amount=count)

    def policy_source(self, up: bool, good_at: float | None, version: int | None) -> None:
        """Describes the last read of the policy source. `good_at` is the time of the last successful one, in seconds
        since the epoch; None leaves that series unchanged, and so does None as the `version`."""
        self._source_up.put(up)
        if good_at is not None:
            self._source_at.put(good_at)
        if version is not None:
            self._source_version.put(version)

    def replicas(self, same: int, other: int) -> None:
        """Sets how many other replicas serve the same revision, and how many serve another."""
        self._replicas.each(REVISIONS, {"same": same, "other": other})

    def degraded(self, reasons: Mapping[str, int]) -> None:
        """Sets how often each reason for `degraded` applies; 0 for reasons that are not given."""
        self._degraded.each(DEGRADED_REASONS, reasons)

    def enforcement(self, mode: str) -> None:
        self._mode.each(MODES, {mode: 1})
        if mode == "shadow":
            self._decisions.declare(KINDS, ("would_deny",), DENIALS)

    @property
    def tables(self) -> Sequence[SeriesTable]:
        """The table of each series, with the values up to the last `settle`."""
        return self._tables

    def request_traced(self, protocol: str, upstream: str, duration_s: float, about: Mapping[str, str]) -> None:
        """Stores the duration of an answered request as an exemplar; `about` are its labels, which name the trace."""
        self._request_s.exemplify((protocol, upstream), duration_s, about)

    @cached_property
    def exposition(self) -> Exposition:
        from sidecar.observability.exposition import Exposition  # loaded with the first scrape

        return Exposition(self._tables, self._before)

    def resume(self, dead: WorkerSeries | None) -> None:
        """Prepares the series of a worker. With `dead`, it continues from the counters of the worker that it replaces.
        Called once, before anything is counted or scraped."""
        self._restarts.declare()
        if dead is not None:
            from sidecar.observability.worker_series import resumed

            self._before = resumed(self._tables, dead)
            if self.tool_labels is not None:
                self.tool_labels.adopt(self._requests)
            self._restarts.count()

    def render(self, accept: str, others: Sequence[WorkerSeries] | None = None) -> tuple[str, bytes]:
        """Renders the values up to the last `settle` (`Exposition.render`). It may run in another thread."""
        return self.exposition.render(accept, others)
