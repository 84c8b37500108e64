"""The metric series of the sidecar.

Every series of CONTRACT 8 is declared here once. The stages report events by the methods of `Metrics`; no other module
uses the name of a series.

Label values come from the settings or from closed sets; any other becomes `other`, so that callers cannot create series
(threats O7). There is also a hard limit on the number of series, and what exceeds it is counted.

The numbers are stored in `registry.py`.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as OPENMETRICS
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from sidecar import __version__
from sidecar.errors import Reason
from sidecar.observability.registry import AS_GIVEN, OTHER, SeriesTable
from sidecar.protocols.a2a.operations import BY_ACTION, SEND, STREAM
from sidecar.protocols.mcp.messages import METHODS, NOTIFICATIONS, SERVER_REQUESTS
from sidecar.vocabulary import PermissionKind

NONE = "none"  # the reason label of an allowed call

# OpenTelemetry's buckets for MCP operations, with smaller ones for calls to a local server.
REQUEST_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
STAGE_BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5)

PROTOCOLS = ("mcp", "a2a", "http")  # http: plain calls, and bytes that are not a request
TOOL_ERROR = "tool_error"  # delivered, with a failure of the tool: `success` with `tool_error` in the audit
# The same values as in the audit, so that the two can be compared.
STATUSES = ("success", TOOL_ERROR, "permission_denied", "rate_limited", "error")
METHODS_OF_MCP = frozenset(METHODS) | frozenset(NOTIFICATIONS) | SERVER_REQUESTS
METHODS_OF_A2A = frozenset(BY_ACTION)
WIRE_METHODS = METHODS_OF_MCP | METHODS_OF_A2A
METHODS_OF: Mapping[str, Collection[str]] = {"mcp": METHODS_OF_MCP, "a2a": METHODS_OF_A2A, "http": WIRE_METHODS}
# Created before the first call, so that `rate()` sees it.
COMMON_METHODS = ("tools/call", "tools/list")
COMMON_OF_AGENTS = (SEND.action, STREAM.action)
STAGES = ("auth", "parse", "policy", "arguments", "limits", "audit", "upstream")  # the names that `pipeline` marks
KINDS = tuple(kind.value for kind in PermissionKind)
CREDENTIALS = ("jwt", "api_key", "agent_token", "local", "certificate", "anonymous", NONE)
LIMIT_OUTCOMES = ("admitted", "refused", "unavailable", "degraded")  # degraded: admitted locally while the store is out
STORE_FORGOT = ("emptied", "rolled_back")
STORE_UNTOLD = ("give_back", "release", "charge")
DECISIONS = ("allow", "deny", "would_deny")  # would_deny in shadow mode only
UPSTREAM_STATES = ("ready", "degraded", "offline")
BREAKER_STATES = ("closed", "open", "half_open")
MODES = ("enforce", "shadow")
REVISIONS = ("same", "other")
RELOADS = ("ok", "failed")
CALLBACK_KINDS, CALLBACK_RESULTS = ("push", "task"), ("delivered", "failed", "refused", "withheld", "given_up")
SCHEDULE_RESULTS = ("success", "failure", "timeout", "cancelled", "refused", "missed", "skipped")
TASK_STATES = ("pending", "running", "completed", "failed", "cancelled")
AGENT_STATUSES = ("success", "failure", "timeout", "cancelled")  # the seed's ExecutionStatus
AGENT_STATES = ("idle", "starting", "running", "completed", "failed", "timeout", "cancelled", "cleanup")
AUDIT_COPIES = ("copied", "lost")
AUDIT_EVENTS, AUDIT_RESULTS = ("decision", "outcome", "refusal", "control", "evidence"), ("written", "failed")
TROUBLE = (
    Reason.UPSTREAM_OPEN,
    Reason.UPSTREAM_FAILED,
    Reason.UPSTREAM_TIMEOUT,
    Reason.UPSTREAM_LIMITED,
    Reason.RESPONSE_REFUSED,
)
DENIALS = (Reason.DENIED_BY_RULE, Reason.EXPIRED, Reason.CONDITION_FALSE, Reason.NO_MATCHING_RULE)
POLICY_REASONS = (
    *DENIALS,
    Reason.METHOD_UNKNOWN,
    Reason.PRINCIPAL_DISABLED,
)
AUTH_REASONS = (
    Reason.UNAUTHENTICATED,
    Reason.BAD_CREDENTIAL,
    Reason.CREDENTIAL_CONFLICT,
    Reason.CLIENT_UNKNOWN,
    Reason.INSUFFICIENT_SCOPE,
)


class Metrics:
    """Every series, and the methods that update them. Times are in seconds.

    `upstreams`, those of them that are `agents`, `limits` and `budgets` (limits that count costs) are the configured
    names; `reconfigured` changes them.
    """

    def __init__(
        self,
        *,
        upstreams: Iterable[str],
        agents: Iterable[str] = (),
        limits: Iterable[str] = (),
        budgets: Iterable[str] = (),
    ) -> None:
        # Label values, filled by `reconfigured`.
        self._upstreams, self._limits, self._budgets = set[str](), set[str](), set[str]()
        self._agents = set[str]()  # agent programs, filled by `agents_offered`
        self._schedules = set[str]()
        self._configured_schedules, self._added_schedules = frozenset[str](), frozenset[str]()
        self._requests = SeriesTable(
            "counter",
            "requests_total",
            "Requests answered on the data listener.",
            {"protocol": PROTOCOLS, "upstream": self._upstreams, "method": WIRE_METHODS, "status": STATUSES},
        )
        self._request_s = SeriesTable(
            "histogram",
            "request_duration_seconds",
            "Time from the first byte of a request to the end of its answer.",
            {"protocol": PROTOCOLS, "upstream": self._upstreams},
            REQUEST_BUCKETS_S,
        )
        self._stage_s = SeriesTable(
            "histogram",
            "stage_duration_seconds",
            "Time spent in each stage of a request.",
            {"stage": STAGES},
            STAGE_BUCKETS_S,
        )
        self._unanswered = SeriesTable(
            "counter",
            "refusals_unanswered_total",
            "Requests of callers who are nobody that were closed unanswered: their address was refused too often.",
        )
        self._decisions = SeriesTable(
            "counter",
            "decisions_total",
            "Policy answers, one for each call.",
            {"kind": KINDS, "decision": DECISIONS, "reason": (NONE, *POLICY_REASONS)},
        )
        self._limit_checks = SeriesTable(
            "counter",
            "limit_checks_total",
            "Limits asked, by answer.",
            {"limit": self._limits, "outcome": LIMIT_OUTCOMES},
        )
        self._budget_used = SeriesTable(
            "gauge",
            "budget_used_ratio",
            "How much of a budget is spent, of 1: of its fullest counter that this process has charged.",
            {"budget": self._budgets},
        )
        self._fullest: dict[str, tuple[float, float]] = {}  # by budget: the highest ratio, and when its counter resets
        self._auth_failures = SeriesTable(
            "counter",
            "auth_failures_total",
            "Requests whose caller was not accepted.",
            {"credential": CREDENTIALS, "reason": AUTH_REASONS},
        )
        self._schema_violations = SeriesTable(
            "counter",
            "schema_violations_total",
            "Calls whose arguments did not fit the schema.",
            {"upstream": self._upstreams},
        )
        self._upstream_up = SeriesTable(
            "gauge",
            "upstream_up",
            "Whether the upstream answers (1) or is offline.",
            {"upstream": self._upstreams},
        )
        self._upstream_state = SeriesTable(
            "gauge",
            "upstream_state",
            "1 for the status that the upstream has.",
            {"upstream": self._upstreams, "state": UPSTREAM_STATES},
        )
        self._breaker_moves = SeriesTable(
            "counter",
            "breaker_transitions_total",
            "Changes of the upstream's breaker, by the state it came into.",
            {"upstream": self._upstreams, "to": BREAKER_STATES},
        )
        self._sessions_lost = SeriesTable(
            "counter",
            "upstream_sessions_lost_total",
            "Sessions that the upstream had opened and did not know any more.",
            {"upstream": self._upstreams},
        )
        self._messages_dropped = SeriesTable(
            "counter",
            "upstream_messages_dropped_total",
            "Messages of the upstream, beside answers, that were dropped because they were malformed.",
            {"upstream": self._upstreams},
        )
        self._pin_mismatches = SeriesTable(
            "gauge",
            "pin_mismatches",
            "Tools that are not as they were pinned, or without pins as they were first listed.",
            {"upstream": self._upstreams},
        )
        self._hidden_text = SeriesTable(
            "gauge",
            "hidden_text_tools",
            "Tools with hidden characters in their texts.",
            {"upstream": self._upstreams},
        )
        self._upstream_s = SeriesTable(
            "histogram",
            "upstream_duration_seconds",
            "Time from sending a call to the upstream to the end of its answer.",
            {"upstream": self._upstreams},
            REQUEST_BUCKETS_S,
        )
        self._missed = SeriesTable(
            "counter",
            "federation_unavailable_total",
            "Servers that did not answer a question to all servers.",
            {"upstream": self._upstreams, "reason": TROUBLE},
        )
        self._inflight = SeriesTable("gauge", "inflight_requests", "Requests under way.", {"protocol": PROTOCOLS})
        self._streams = SeriesTable("gauge", "open_streams", "Event streams open to callers.", {"protocol": PROTOCOLS})
        self._task_states = SeriesTable(
            "gauge", "a2a_tasks", "Tasks of the task API that are kept.", {"state": TASK_STATES}
        )
        self._agent_runs = SeriesTable(
            "counter",
            "agent_runs_total",
            "Runs of agents that are programs, of one that asks its turns, by what they came to.",
            {"agent": self._agents, "status": AGENT_STATUSES},
        )
        self._agent_queue = SeriesTable(
            "gauge", "agent_queue_length", "Runs of the agent that wait for their turn here.", {"agent": self._agents}
        )
        self._agent_executions = SeriesTable(
            "gauge",
            "agent_executions",
            "Runs of the agent that are under way here, by their state; idle waits for its turn.",
            {"agent": self._agents, "state": AGENT_STATES},
        )
        self._agent_pool = SeriesTable(
            "gauge",
            "agent_pool_used_ratio",
            "How many runs of the agent are at work here, of those that may be at once.",
            {"agent": self._agents},
        )
        self._schedule_runs = SeriesTable(
            "counter",
            "schedule_runs_total",
            "Runs of the schedule, and times at which it was due without one, by what they came to.",
            {"schedule": self._schedules, "result": SCHEDULE_RESULTS},
        )
        self._schedule_success = SeriesTable(
            "gauge",
            "schedule_last_success_timestamp_seconds",
            "When a run of the schedule ended well, since the epoch.",
            {"schedule": self._schedules},
        )
        self._sessions = SeriesTable("gauge", "sessions", "Sessions of callers that are alive.")
        self._policy_rules = SeriesTable("gauge", "policy_rules", "Rules of the serving policy.", {"kind": KINDS})
        self._policy_info = SeriesTable(
            "gauge", "policy_info", "The revision of the serving policy.", {"revision": AS_GIVEN}
        )
        self._reloads = SeriesTable("counter", "policy_reloads_total", "Reloads of the policy.", {"result": RELOADS})
        self._reloaded_at = SeriesTable(
            "gauge", "policy_last_reload_timestamp_seconds", "When the serving policy was loaded, since the epoch."
        )
        self._source_up = SeriesTable(
            "gauge", "policy_source_up", "Whether the source of policy was well when last looked at."
        )
        self._source_at = SeriesTable(
            "gauge",
            "policy_source_last_success_timestamp_seconds",
            "When the source of policy was well, since the epoch.",
        )
        self._source_version = SeriesTable("gauge", "policy_source_version", "The version of the policy that it gave.")
        self._replicas = SeriesTable(
            "gauge",
            "policy_replicas",
            "Other replicas that serve the same policy, or another.",
            {"revision": REVISIONS},
        )
        self._mode = SeriesTable("gauge", "enforcement_mode", "1 for the mode in force.", {"mode": MODES})
        self._store_up = SeriesTable(
            "gauge", "store_up", "Whether the store of limits counts what it is asked (1) or not."
        )
        self._store_info = SeriesTable("gauge", "store_info", "Which store counts the limits.", {"kind": AS_GIVEN})
        self._store_s = SeriesTable(
            "histogram",
            "store_duration_seconds",
            "Time of one question to the store of limits.",
            bounds=STAGE_BUCKETS_S,
        )
        self._store_forgot = SeriesTable(
            "counter",
            "store_forgot_total",
            "Times the store came back with less than it had been told, and was told again.",
            {"how": STORE_FORGOT},
        )
        self._store_untold = SeriesTable(
            "counter",
            "store_untold_total",
            "What the store could not be told of calls: an outage was too long, or this process ended in one.",
            {"verb": STORE_UNTOLD},
        )
        self._audit = SeriesTable(
            "counter",
            "audit_records_total",
            "Audit records, by what became of them.",
            {"event": AUDIT_EVENTS, "result": AUDIT_RESULTS},
        )
        self._callbacks = SeriesTable(
            "counter",
            "callbacks_total",
            "Attempts to call back, by what became of them; after `failed` comes another.",
            {"kind": CALLBACK_KINDS, "result": CALLBACK_RESULTS},
        )
        self._callbacks_waiting = SeriesTable("gauge", "callbacks_waiting", "Callbacks that wait, or are under way.")
        self._callback_s = SeriesTable(
            "histogram", "callback_duration_seconds", "Time of one attempt to call back.", bounds=REQUEST_BUCKETS_S
        )
        self._audit_depth = SeriesTable("gauge", "audit_queue_depth", "Records that are on their way to their sink.")
        self._audit_up = SeriesTable(
            "gauge", "audit_up", "Whether what was given to the evidence's sink last is there (1) or not."
        )
        self._audit_copies = SeriesTable(
            "counter", "audit_copies_total", "Lines for the copy of the evidence.", {"result": AUDIT_COPIES}
        )
        self._loop_lag_s = SeriesTable(
            "histogram", "loop_lag_seconds", "How late the event loop comes to a timer.", bounds=STAGE_BUCKETS_S
        )
        self._build = SeriesTable("gauge", "build_info", "What runs here.", {"version": AS_GIVEN, "python": AS_GIVEN})
        self._tables = [table for table in vars(self).values() if isinstance(table, SeriesTable)]
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        self._declare()
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
        """Sets the configured names; upstreams that are `agents` speak A2A, all others MCP. Counters of removed names
        stay, because counters must not go back."""
        for choices, names in (
            (self._upstreams, upstreams),
            (self._limits, limits),
            (self._budgets, budgets),
        ):
            choices.clear()
            choices.update(names)
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
        self._requests.declare(("mcp",), of_servers, COMMON_METHODS, STATUSES)
        self._requests.declare(("a2a",), of_agents, COMMON_OF_AGENTS, STATUSES)
        self._request_s.declare(("mcp", "http"), of_servers)
        self._request_s.declare(("a2a",), of_agents)
        self._request_s.declare(PROTOCOLS, (OTHER,))
        self._limit_checks.declare(sorted(self._limits), LIMIT_OUTCOMES)
        self._budget_used.declare(sorted(self._budgets))
        self._schema_violations.declare(of_servers)
        self._upstream_up.declare(sorted(self._upstreams))
        self._sessions_lost.declare(of_servers)
        self._messages_dropped.declare(of_servers)
        self._pin_mismatches.declare(of_servers)
        self._hidden_text.declare(of_servers)
        self._upstream_state.declare(sorted(self._upstreams), UPSTREAM_STATES)
        self._breaker_moves.declare(sorted(self._upstreams), BREAKER_STATES)
        self._upstream_s.declare(sorted(self._upstreams))

    def schedules_added(self, schedules: Collection[str]) -> None:
        """Sets the schedules that are not in the settings."""
        if self._added_schedules != frozenset(schedules):
            self._added_schedules = frozenset(schedules)
            self._schedules_known()

    def _schedules_known(self) -> None:
        self._schedules.clear()
        self._schedules |= self._configured_schedules | self._added_schedules
        self._schedule_success.keep(self._schedules)
        self._schedule_runs.chosen_anew()
        self._schedule_success.chosen_anew()
        self._schedule_runs.declare(sorted(self._schedules), SCHEDULE_RESULTS)

    # --- requests ---------------------------------------------------------------------------------------------------

    def request_started(self, protocol: str) -> None:
        """Counts a request in progress. Paired with `request_finished`."""
        self._inflight.add((protocol,))

    def request_finished(
        self, protocol: str, upstream: str, method: str, status: str, duration_s: float, stages_s: Mapping[str, float]
    ) -> None:
        """Counts an answered request. `status` is the audit's; `stages_s` the seconds spent by stage."""
        self._inflight.add((protocol,), -1)
        self._requests.add((protocol, upstream, method if method in METHODS_OF.get(protocol, ()) else OTHER, status))
        self._request_s.observe((protocol, upstream), duration_s)
        for stage, spent_s in stages_s.items():
            self._stage_s.observe((stage,), spent_s)

    def request_unanswered(self, protocol: str) -> None:
        """Counts a request that was closed without an answer. Replaces `request_finished`."""
        self._inflight.add((protocol,), -1)

    def refusal_unanswered(self) -> None:
        """Counts an unauthenticated request that was closed for too many refusals."""
        self._unanswered.add(())

    def decided(self, kind: str, decision: str, reason: str | None) -> None:
        """Counts a policy decision. `kind` is that of the deciding link; `decision` is allow, deny or, in shadow mode,
        would_deny."""
        self._decisions.add((kind, decision, NONE if reason is None else reason))

    def federation_missed(self, upstream: str, reason: str) -> None:
        """Counts a visible server that did not answer a request to all servers."""
        self._missed.add((upstream, reason))

    def budget_used(self, budget: str, ratio: float, until_s: float) -> None:
        """Sets the used ratio of one counter of a budget, until it resets (seconds since the epoch)."""
        if budget in self._budgets and ratio >= self._fullest.get(budget, (0.0, 0.0))[0]:
            self._fullest[budget] = ratio, until_s
            self._budget_used.set((budget,), ratio)

    def budgets_reset(self, now_s: float) -> None:
        """Sets budgets whose period is over to nothing used."""
        for budget in [budget for budget, (_, until_s) in self._fullest.items() if until_s <= now_s]:
            del self._fullest[budget]
            self._budget_used.set((budget,), 0.0)

    def limit_checked(self, limit: str, outcome: str) -> None:
        """Counts a limit check: `admitted`, `refused`, `unavailable`, or `degraded`, which is admitted locally while
        the store is out. `limit` is its configured label."""
        self._limit_checks.add((limit, outcome))

    def auth_failed(self, credential: str, reason: str) -> None:
        """Counts a caller that was not authenticated. `credential` is the kind presented, or `none`."""
        self._auth_failures.add((credential, reason))

    def schema_violated(self, upstream: str) -> None:
        """Counts invalid arguments."""
        self._schema_violations.add((upstream,))

    # --- upstreams, streams, sessions -------------------------------------------------------------------------------

    def upstream_answered(self, upstream: str, duration_s: float) -> None:
        """Records one exchange with an upstream, successful or not."""
        self._upstream_s.observe((upstream,), duration_s)

    def upstream_stands(self, upstream: str, status: str) -> None:
        """Sets an upstream's status: `ready`, `degraded` or `offline`."""
        if upstream not in self._upstreams:  # one that is being removed
            return
        self._upstream_up.set((upstream,), status != "offline")
        for each in UPSTREAM_STATES:
            self._upstream_state.set((upstream, each), each == status)

    def breaker_moved(self, upstream: str, to: str) -> None:
        """Counts a breaker's new state: `closed`, `open` or `half_open`."""
        self._breaker_moves.add((upstream, to))

    def session_lost(self, upstream: str) -> None:
        """Counts a session that the upstream lost."""
        self._sessions_lost.add((upstream,))

    def message_dropped(self, upstream: str) -> None:
        """Counts a dropped message of the upstream."""
        self._messages_dropped.add((upstream,))

    def pins_mismatched(self, upstream: str, count: int) -> None:
        """Sets how many of the upstream's tools differ from their pins."""
        self._pin_mismatches.set((upstream,), count)

    def hidden_text_found(self, upstream: str, count: int) -> None:
        """Sets how many of the upstream's tools have hidden characters in their texts."""
        self._hidden_text.set((upstream,), count)

    def streams(self, protocol: str, count: int) -> None:
        """Sets the number of event streams open to callers."""
        self._streams.set((protocol,), count)

    def tasks(self, counts: Mapping[str, int]) -> None:
        """Sets the number of the task API's tasks by state."""
        for state in TASK_STATES:
            self._task_states.set((state,), counts.get(state, 0))

    def agents_offered(self, names: Iterable[str]) -> None:
        """Sets the names of the agent programs."""
        self._agents.clear()
        self._agents.update(names)
        for gauge in (self._agent_queue, self._agent_executions, self._agent_pool):
            gauge.keep(self._agents)
            gauge.declare(sorted(self._agents), *([AGENT_STATES] if gauge is self._agent_executions else []))
        self._agent_runs.chosen_anew()
        self._agent_runs.declare(sorted(self._agents), AGENT_STATUSES)

    def agent_ran(self, agent: str, status: str) -> None:
        """Counts a finished run: `success`, `failure`, `timeout` or `cancelled`."""
        self._agent_runs.add((agent, status))

    def agent_stands(self, agent: str, running: int, waiting: int, places: int, states: Mapping[str, int]) -> None:
        """Sets an agent's running and waiting runs, its places for concurrent runs, and its runs by state."""
        self._agent_queue.set((agent,), waiting)
        self._agent_pool.set((agent,), running / places)
        for state in AGENT_STATES:
            self._agent_executions.set((agent, state), states.get(state, 0))

    def schedule_ran(self, schedule: str, result: str, count: int = 1) -> None:
        """Counts the results of a schedule's runs or due times."""
        self._schedule_runs.add((schedule, result), count)

    def schedule_succeeded(self, schedule: str, at_s: float) -> None:
        """Sets the time of a schedule's last successful run, in seconds since the epoch."""
        self._schedule_success.set((schedule,), at_s)

    def sessions(self, count: int) -> None:
        """Sets the number of live sessions."""
        self._sessions.set((), count)

    # --- policy, store, audit, loop ---------------------------------------------------------------------------------

    def policy_loaded(self, revision: str, rules: Mapping[str, int], at: float) -> None:
        """Describes the policy that serves. `rules` counts them by kind, `at` is in seconds since the epoch."""
        self._policy_info.only((revision,))
        for kind in KINDS:
            self._policy_rules.set((kind,), rules.get(kind, 0))
        self._reloaded_at.set((), at)

    def policy_reloaded(self, result: str) -> None:
        """Counts a reload: `ok`, or `failed`, after which the old policy stays in use."""
        self._reloads.add((result,))

    def policy_source(self, up: bool, good_at: float | None, version: int | None) -> None:
        """Describes the last check of the policy source; `good_at` is the time of the last successful one."""
        self._source_up.set((), up)
        if good_at is not None:
            self._source_at.set((), good_at)
        if version is not None:
            self._source_version.set((), version)

    def replicas(self, same: int, other: int) -> None:
        """Sets how many other replicas serve the same revision, and how many another."""
        self._replicas.set(("same",), same)
        self._replicas.set(("other",), other)

    def enforcement(self, mode: str) -> None:
        """Sets the mode in force: `enforce` or `shadow`."""
        for each in MODES:
            self._mode.set((each,), each == mode)
        if mode == "shadow":
            self._decisions.declare(KINDS, ("would_deny",), DENIALS)

    def store_is(self, kind: str) -> None:
        """Sets the kind of store that counts the limits, as in the settings."""
        self._store_info.only((kind,))

    def store_up(self, up: bool) -> None:
        """Sets whether the store's last answer arrived and did not refuse to count."""
        self._store_up.set((), up)

    def store_answered(self, duration_s: float) -> None:
        """Records one request to the store, successful or not."""
        self._store_s.observe((), duration_s)

    def store_forgot(self, how: str) -> None:
        """Counts a loss of data in the store: `emptied` (or exchanged), or `rolled_back` by a failover. The usage was
        written again."""
        self._store_forgot.add((how,))

    def store_untold(self, verb: str, count: int) -> None:
        """Counts calls whose end (`give_back`, `release`) or admission (`charge`) did not reach the store."""
        self._store_untold.add((verb,), count)

    def audit_recorded(self, event: str, result: str) -> None:
        """Counts an audit record: `written` or `failed`."""
        self._audit.add((event, result))

    def callback_attempted(self, kind: str, result: str, duration_s: float) -> None:
        """Records one attempt at a callback."""
        self._callbacks.add((kind, result))
        self._callback_s.observe((), max(0.0, duration_s))

    def callbacks_wait(self, count: int) -> None:
        """Sets the number of unfinished callbacks."""
        self._callbacks_waiting.set((), count)

    def audit_depth(self, depth: int) -> None:
        """Sets the number of records on their way to the sink."""
        self._audit_depth.set((), depth)

    def audit_up(self, up: bool) -> None:
        """Sets whether the sink accepts records."""
        self._audit_up.set((), up)

    def audit_copied(self, copied: int, lost: int) -> None:
        """Sets the numbers of lines copied and lost since the start."""
        self._audit_copies.set(("copied",), copied)
        self._audit_copies.set(("lost",), lost)

    def loop_lagged(self, lag_s: float) -> None:
        """Records one measurement of the event loop's lag."""
        self._loop_lag_s.observe((), lag_s)

    # --- what a scrape sees -----------------------------------------------------------------------------------------

    def collect(self) -> Iterator[Metric]:
        """Yields every family; prometheus-client calls this at a scrape."""
        for table in self._tables:
            yield table.family()
        folded = CounterMetricFamily(
            "sidecar_metrics_folded_total", "Observations folded into `other` by the cap on series.", labels=("metric",)
        )
        for table in self._tables:
            folded.add_metric((table.name,), table.folded)
        yield folded

    def render(self, accept: str) -> tuple[str, bytes]:
        """Returns content type and body for an `Accept` header: OpenMetrics 1.0 if it is accepted, otherwise text
        format 0.0.4."""
        if "application/openmetrics-text" in accept:
            return OPENMETRICS, _as_openmetrics(self._registry)
        return CONTENT_TYPE_PLAIN_0_0_4, generate_latest(self._registry)

    def _declare(self) -> None:
        self._stage_s.declare(STAGES)
        self._decisions.declare(KINDS, ("allow",), (NONE,))
        self._decisions.declare(KINDS, ("deny",), POLICY_REASONS)
        self._auth_failures.declare(CREDENTIALS, AUTH_REASONS)
        self._inflight.declare(PROTOCOLS)
        self._streams.declare(PROTOCOLS)
        self._policy_rules.declare(KINDS)
        self._reloads.declare(RELOADS)
        self._mode.declare(MODES)
        self._store_forgot.declare(STORE_FORGOT)
        self._store_untold.declare(STORE_UNTOLD)
        self._task_states.declare(TASK_STATES)
        self._audit.declare(AUDIT_EVENTS, AUDIT_RESULTS)
        self._audit_copies.declare(AUDIT_COPIES)
        self._callbacks.declare(CALLBACK_KINDS, CALLBACK_RESULTS)
        for table in (
            self._unanswered,
            self._sessions,
            self._reloaded_at,
            self._store_up,
            self._store_s,
            self._callbacks_waiting,
            self._callback_s,
            self._audit_depth,
            self._audit_up,
            self._loop_lag_s,
        ):
            table.declare()
        self._build.only((__version__, platform.python_version()))


_as_openmetrics: Callable[[CollectorRegistry], bytes] = generate_openmetrics  # the library's function is untyped
