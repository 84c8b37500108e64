"""Response models of the operator API.

The docstrings and bounds of members appear in the OpenAPI document. Times are RFC 3339, in UTC.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, NotRequired, TypedDict

from sidecar.tasks.programs.run_states import Category, RunState, RunStatus

PLAIN: Final[Mapping[str, Any]] = {"pattern": r"^[^\u0000-\u001f\u007f-\u009f]*$"}  # one line, no control characters
CONTEXT: Final[Mapping[str, Any]] = {**PLAIN, "maxLength": 256}
WHY: Final[Mapping[str, Any]] = {**PLAIN, "maxLength": 500}
NAME: Final[Mapping[str, Any]] = {**PLAIN, "minLength": 1, "maxLength": 128}
SLUG: Final[Mapping[str, Any]] = {"pattern": "^[a-z0-9]+(-[a-z0-9]+)*$", "maxLength": 64}
PRINCIPAL: Final[Mapping[str, Any]] = {"pattern": r"^(user|nhi):[!#-&(-)+\--{}~]{1,256}$"}


class RunError(TypedDict):
    """Why a try came to nothing."""

    category: Annotated[Category, "whose fault it was"]
    message: Annotated[str, "ours, or the program's last words"]


class RunUsage(TypedDict):
    """What a run took, all its processes together."""

    cpu_s: Annotated[float, "seconds of CPU"]
    cpu_percent: Annotated[float, "of one CPU"]
    memory_bytes: Annotated[int, "at its end"]
    peak_memory_bytes: Annotated[int, "at its highest"]
    disk_read_bytes: Annotated[int, "read from disks"]
    disk_write_bytes: Annotated[int, "written to disks"]


class RunTry(TypedDict):
    """One try that came to nothing, and was followed by another."""

    status: Annotated[RunStatus, "what it came to"]
    started_at: Annotated[str | None, "when its process was started"]
    ended_at: Annotated[str | None, "when it was over"]
    pid: Annotated[int | None, "of its process"]
    exit_code: Annotated[int | None, "of its process"]
    signal: Annotated[int | None, "that ended its process"]
    error: Annotated[RunError | None, "why"]
    usage: Annotated[RunUsage, "what it took"]


class RunTransition(TypedDict):
    """One change of state."""

    state: Annotated[RunState, "the state that it came into"]
    at: Annotated[str | None, "when"]
    why: Annotated[str | None, "why, where that is no matter of course"]


class Run(TypedDict):
    """One run of an agent, without what was said in it."""

    id: Annotated[str, "its name; over A2A it is the task's id"]
    agent: Annotated[str, "whose run it is"]
    caller: Annotated[Sequence[str], "on whose behalf: principals, first to last"]
    context: Annotated[str, "the conversation that it belongs to"]
    schedule: Annotated[str | None, "the schedule that ordered it"]
    state: Annotated[RunState, "`idle` is before its turn, and again when it is over"]
    previous_state: Annotated[RunState | None, "the state before"]
    status: Annotated[RunStatus | None, "what it came to; nothing while it goes on"]
    is_over: Annotated[bool, "whether nothing more becomes of it"]
    task_state: Annotated[str | None, "the same in A2A's words"]
    created_at: Annotated[str | None, "when it was ordered"]
    started_at: Annotated[
        str | None, "when the process of its last try was started; nothing while it waits for its turn"
    ]
    ended_at: Annotated[str | None, "when it was over"]
    duration_s: Annotated[float | None, "from that start to its end"]
    retries: Annotated[int, "tries beyond the first"]
    max_retries: Annotated[int, "how many there may be"]
    timeout_s: Annotated[float, "how long a try may take"]
    cancel_requested: Annotated[bool, "whether somebody gave it up"]
    pid: Annotated[int | None, "of its process"]
    exit_code: Annotated[int | None, "of its process"]
    signal: Annotated[int | None, "that ended its process"]
    error: Annotated[RunError | None, "why it came to nothing"]
    output_bytes: Annotated[int, "how much its program said"]


class RunInFull(Run):
    """One run of an agent. What was said in it is kept without secrets and control sequences, and within bounds."""

    input: Annotated[str, "what it was told"]
    output: Annotated[str, "the end of what it said"]
    message: Annotated[str | None, "its last word, or ours: a question, or why it failed"]
    usage: Annotated[RunUsage, "what it took"]
    transitions: Annotated[Sequence[RunTransition], "every change of state, oldest first"]
    tries: Annotated[Sequence[RunTry], "those before the last"]


class Runs(TypedDict):
    """Some runs."""

    runs: Annotated[Sequence[Run], "newest first"]
    next_offset: Annotated[int | None, "where to go on looking; nothing if there are no more"]


class Agent(TypedDict):
    """An agent that is a program, and how it stands here."""

    name: Annotated[str, "its key under `agents`"]
    id: Annotated[str, "its identifier: its name, unless its definition says another"]
    title: Annotated[str, "its name for people"]
    enabled: Annotated[bool, "whether it can be called"]
    mode: Annotated[str, "`task` or `interactive`"]
    access_type: Annotated[str, "`read-only` or `read-write`"]
    running: Annotated[int, "runs at work here"]
    waiting: Annotated[int, "runs that wait here for their turn"]
    places: Annotated[int, "how many are at work at once"]
    last_run: Annotated[Run | None, "the newest of its runs"]


class AgentInFull(Agent):
    """An agent that is a program, as far as its definition is no secret."""

    description: Annotated[str, "what it is for"]
    executable: Annotated[str, "its program"]
    input_pattern: Annotated[str, "how it is told"]
    output_pattern: Annotated[str, "where its answer is"]
    working_directory: Annotated[str | None, "nothing: a new one for each run"]
    environment: Annotated[Sequence[str], "names of the variables that it is given, without their values"]
    options: Annotated[Sequence[str], "options whose values a call may choose"]
    variables: Annotated[Sequence[str], "variables whose values a call may choose"]
    working_directories: Annotated[Sequence[str], "folders that a call may choose"]
    timeout_s: Annotated[float, "how long a try may take"]
    max_queue: Annotated[int, "how many runs may wait"]
    max_input_bytes: Annotated[int, "the largest prompt"]
    max_output_bytes: Annotated[int, "the most that it may say"]
    max_retries: Annotated[int, "tries beyond the first"]


class Agents(TypedDict):
    """All of them."""

    agents: Annotated[Sequence[Agent], "by name"]


class RunAnswer(TypedDict):
    """What a run that asked is told. A call chooses what the agent's definition lets it choose (`per_call`), and
    nothing else: never a program, its arguments or its environment."""

    prompt: NotRequired[Annotated[str, "what it is told"]]
    parameters: NotRequired[Annotated[Mapping[str, str], "options by name, with or without their hyphens"]]
    environment: NotRequired[Annotated[Mapping[str, str], "variables by name"]]
    working_directory: NotRequired[Annotated[str, "a folder"]]
    task_type: NotRequired[Annotated[str, "the skill that is asked for; rules read it as call.tool", NAME]]


class RunOrder(RunAnswer):
    """What is to be run, chosen as in an answer."""

    context: NotRequired[Annotated[str, "the conversation to go on with", CONTEXT]]
    principal: NotRequired[Annotated[str, "who calls: over the admin listener `nhi:operator` alone", PRINCIPAL]]


class Taken(TypedDict):
    """A task that was taken."""

    task_id: Annotated[str, "its name in the task API"]
    run_id: Annotated[str | None, "nothing where its agent has not taken it, not yet, or is no program"]
    error: Annotated[str | None, "why it failed, where it has failed already"]


class RunOrdered(Taken):
    """A run that was ordered."""

    agent: Annotated[str, "whose run it is"]
    principal: Annotated[str, "who calls"]


class CancelOrder(TypedDict):
    """Why a run is given up."""

    reason: NotRequired[Annotated[str, "for whoever reads the evidence", WHY]]


class Schedule(TypedDict):
    """A schedule, and how it stands."""

    name: Annotated[str, "its key under `schedules`, or the name under which it was added"]
    source: Annotated[str, "`configured` in sidecar.yaml, or `added` over these addresses, and kept in the store"]
    added_by: Annotated[str | None, "who added it"]
    added_at: Annotated[str | None, "when"]
    id: Annotated[str, "its identifier: its name, unless its definition says another"]
    title: Annotated[str, "its name for people"]
    agent: Annotated[str, "whom it calls"]
    principal: Annotated[str, "who calls"]
    cron: Annotated[str, "when"]
    timezone: Annotated[str, "of `cron`"]
    enabled: Annotated[bool, "whether it runs at all"]
    state: Annotated[
        str,
        "`created` while it is not enabled, `active`, `executing`, `paused` by an operator, or `unreadable`: how it "
        "stands was damaged, or another version wrote it, and it does not run",
    ]
    paused_by: Annotated[str | None, "who paused it"]
    paused_at: Annotated[str | None, "when"]
    next_due: Annotated[str | None, "when it is due next"]
    last_due: Annotated[str | None, "when it was due last"]
    last_task: Annotated[str | None, "what it ordered last: a task of the task API"]
    last_result: Annotated[str | None, "what came of it"]
    last_why: Annotated[str | None, "why, where that is no matter of course"]
    last_success_at: Annotated[str | None, "when a run of it ended well"]
    running: Annotated[Sequence[str], "its tasks that go on"]


class Schedules(TypedDict):
    """All of them."""

    schedules: Annotated[Sequence[Schedule], "by name"]


class NewSchedule(TypedDict):
    """A schedule that is to be kept in the store. Each member but `name` and `title` is what the key of its name is
    under `schedules` in sidecar.yaml, and has the same default."""

    name: Annotated[str, "its name, which no other schedule has", SLUG]
    title: NotRequired[Annotated[str, "its name for people", {"minLength": 1, "maxLength": 200}]]
    agent: Annotated[str, "whom it calls", SLUG]
    cron: Annotated[str, "when", {"minLength": 1, "maxLength": 256}]
    timezone: NotRequired[Annotated[str, "of `cron`"]]
    enabled: NotRequired[Annotated[bool, "whether it runs at all"]]
    principal: NotRequired[
        Annotated[
            str,
            "who calls; over the admin listener `nhi:<name>`, which is the default, or `nhi:operator`",
            {"pattern": "^nhi:"},
        ]
    ]
    input_parameters: NotRequired[Annotated[Mapping[str, Any], "what the agent is told"]]
    task_type: NotRequired[Annotated[str, "what its task is called", NAME]]
    missed: NotRequired[
        Annotated[str, "what becomes of runs that were due while no sidecar ran", {"enum": ["once", "skip"]}]
    ]
    missed_within: NotRequired[Annotated[float, "how late a run may begin, in seconds", {"exclusiveMinimum": 0}]]
    overlap: NotRequired[
        Annotated[str, "what becomes of a run that is due while the one before goes on", {"enum": ["skip", "allow"]}]
    ]


class Nothing(TypedDict):
    """An order without particulars."""


class ScheduleOrdered(Taken):
    """A run of a schedule that is not due."""

    schedule: Annotated[str, "which"]


class Problem(TypedDict):
    """A no (RFC 9457). What is said of callers elsewhere is said here too, as far as it is known."""

    type: Annotated[str, "`urn:sidecar:refusal:…`, or `about:blank` where the status says it all"]
    title: Annotated[str, "the same for people, from a closed set"]
    status: Annotated[int, "the HTTP status"]
    error: Annotated[str, "what is wrong, in a sentence"]
    reason: NotRequired[Annotated[str, "why it was refused, from a closed set"]]
    error_code: NotRequired[Annotated[str, "the coarse word"]]
    retry_after_s: NotRequired[Annotated[int, "when to come again, in seconds"]]
    limit: NotRequired[Annotated[float, "of the limit that refused"]]
    remaining: NotRequired[Annotated[float, "what is left of it"]]
    unit: NotRequired[Annotated[str, "of both, where it is not calls that count"]]
    reset_at: NotRequired[Annotated[str, "when it begins anew"]]
