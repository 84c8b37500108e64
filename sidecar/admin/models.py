"""Request and response models of the admin API, as the OpenAPI document shows them. Times are RFC 3339, in UTC."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, NotRequired, TypedDict

from sidecar.gateway.approvals import ApprovalState
from sidecar.gateway.decisions.authzen_messages import MAX_EVALUATIONS, MAX_RESULTS, SEMANTICS
from sidecar.settings import field_types
from sidecar.settings.field_types import PRINCIPAL_ID
from sidecar.tasks.api.task_record import TaskState
from sidecar.tasks.programs.run_record import Category, RunState, RunStatus

Bounds = Mapping[str, Any]

PLAIN: Final[Bounds] = {"pattern": r"^[^\u0000-\u001f\u007f-\u009f]*$"}  # one line, no control characters
CONTEXT: Final[Bounds] = {**PLAIN, "maxLength": 256}
WHY: Final[Bounds] = {**PLAIN, "maxLength": 500}
NAME: Final[Bounds] = {**PLAIN, "minLength": 1, "maxLength": 128}
SLUG: Final[Bounds] = {"pattern": f"^{field_types.SLUG}$", "maxLength": 64}
PRINCIPAL: Final[Bounds] = {"pattern": f"^(user|nhi):{PRINCIPAL_ID}$"}
CALLER: Final[Bounds] = {"pattern": f"^(anonymous|(user|nhi):{PRINCIPAL_ID})$"}
OBJECT: Final[Bounds] = {"pattern": r"^(tool|prompt|resource|nhi):\S{1,1024}$"}
LIMIT: Final[Bounds] = {"minLength": 1, "maxLength": 1024}


class RunError(TypedDict):
    """The error of a failed try."""

    category: Annotated[
        Category,
        "Origin of the failure: `transient` (a retry may succeed), `permanent`, `agent` (the "
        "program) or `system` (the sidecar).",
    ]
    message: Annotated[str, "Message of the sidecar, or the last output of the program."]


class RunUsage(TypedDict):
    """The resources that all processes of one try used together."""

    cpu_s: Annotated[float, "CPU time in seconds."]
    cpu_percent: Annotated[float, "Average CPU load, in percent of one CPU."]
    memory_bytes: Annotated[int, "Memory at the last measurement, in bytes."]
    peak_memory_bytes: Annotated[int, "Highest memory, in bytes."]
    disk_read_bytes: Annotated[int, "Bytes read from disks."]
    disk_write_bytes: Annotated[int, "Bytes written to disks."]


class RunTry(TypedDict):
    """A failed try that was followed by another one."""

    status: Annotated[RunStatus, "How the try ended."]
    started_at: Annotated[str | None, "Time at which its process started."]
    ended_at: Annotated[str | None, "Time at which the try ended."]
    pid: Annotated[int | None, "Id of its process."]
    exit_code: Annotated[int | None, "Exit code of its process."]
    signal: Annotated[int | None, "Number of the signal that ended its process."]
    error: Annotated[RunError | None, "Error of the try."]
    usage: Annotated[RunUsage, "Resources that the try used."]


class RunTransition(TypedDict):
    """A change of the state of a run."""

    state: Annotated[RunState, "The new state."]
    at: Annotated[str | None, "Time of the change."]
    why: Annotated[str | None, "Reason of the change, unless it is evident from the state."]


class Run(TypedDict):
    """A run of an agent, without its input and output."""

    id: Annotated[str, "Id of the run. Over A2A, it is the id of the task."]
    agent: Annotated[str, "Name of the agent."]
    caller: Annotated[Sequence[str], "The chain on whose behalf the agent runs, first to last."]
    context: Annotated[str, "Id of the conversation."]
    schedule: Annotated[str | None, "Name of the schedule that started the run."]
    state: Annotated[RunState, "State of the run. It is `idle` before the start and after the end."]
    previous_state: Annotated[RunState | None, "The state before."]
    status: Annotated[RunStatus | None, "How the run ended. Null until then."]
    is_over: Annotated[bool, "Whether the run has ended."]
    task_state: Annotated[str | None, "State of the A2A task."]
    created_at: Annotated[str | None, "Time at which the run was requested."]
    started_at: Annotated[str | None, "Time at which the process of the last try started. Null while the run waits."]
    ended_at: Annotated[str | None, "Time at which the run ended."]
    duration_s: Annotated[float | None, "Seconds from `started_at` to `ended_at`."]
    retries: Annotated[int, "Number of retries so far."]
    max_retries: Annotated[int, "Maximum number of retries."]
    timeout_s: Annotated[float, "Maximum duration of one try, in seconds."]
    cancel_requested: Annotated[bool, "Whether cancellation was requested."]
    pid: Annotated[int | None, "Id of its process."]
    exit_code: Annotated[int | None, "Exit code of its process."]
    signal: Annotated[int | None, "Number of the signal that ended its process."]
    error: Annotated[RunError | None, "Error of the last try."]
    output_bytes: Annotated[int, "Size of the output."]


class RunInFull(Run):
    """A run of an agent, with its texts. The texts are truncated, and secrets and control sequences are removed."""

    input: Annotated[str, "The prompt."]
    output: Annotated[str, "The end of the output."]
    message: Annotated[
        str | None, "The last message of the agent, such as a question, or of the sidecar, such as an error."
    ]
    usage: Annotated[RunUsage, "Resources that the last try used."]
    transitions: Annotated[Sequence[RunTransition], "Changes of state, oldest first."]
    tries: Annotated[Sequence[RunTry], "The tries before the last one."]


class Runs(TypedDict):
    """A page of runs."""

    runs: Annotated[Sequence[Run], "The runs, newest first."]
    next_offset: Annotated[int | None, "Offset of the next page. Null on the last page."]


class Agent(TypedDict):
    """A CLI agent, and its state in this process."""

    name: Annotated[str, "Key of the agent under `agents`."]
    id: Annotated[str, "Identifier. Default: `name`."]
    title: Annotated[str, "Display name."]
    enabled: Annotated[bool, "Whether the agent can be called."]
    mode: Annotated[str, "`task` or `interactive`."]
    access_type: Annotated[str, "`read-only` or `read-write`."]
    running: Annotated[int, "Number of runs in progress in this process."]
    waiting: Annotated[int, "Number of waiting runs in this process."]
    places: Annotated[int, "Maximum number of concurrent runs in this process."]
    last_run: Annotated[Run | None, "The newest run."]


class AgentInFull(Agent):
    """A CLI agent with its definition, except for secrets and arguments."""

    description: Annotated[str, "Description of the agent in its card."]
    executable: Annotated[str, "Program of the agent."]
    input_pattern: Annotated[str, "How the program receives its input."]
    output_pattern: Annotated[str, "Where the program writes its answer."]
    working_directory: Annotated[str | None, "Working folder of the program. Null: an empty folder for each run."]
    environment: Annotated[Sequence[str], "Names of the program's environment variables."]
    options: Annotated[Sequence[str], "Options whose values a call may choose."]
    variables: Annotated[Sequence[str], "Environment variables whose values a call may choose."]
    working_directories: Annotated[Sequence[str], "Folders that a call may choose as the working folder."]
    timeout_s: Annotated[float, "Maximum duration of one try, in seconds."]
    max_queue: Annotated[int, "Maximum number of waiting runs."]
    max_input_bytes: Annotated[int, "Maximum size of a prompt."]
    max_output_bytes: Annotated[int, "Maximum size of the output of a run."]
    max_retries: Annotated[int, "Maximum number of retries."]


class Agents(TypedDict):
    """All CLI agents."""

    agents: Annotated[Sequence[Agent], "The agents, in the order of their names."]


class OrderedTask(TypedDict):
    """A task of the task API, without its input and result, which only its caller can read."""

    id: Annotated[str, "Id of the task in the task API."]
    agent: Annotated[str, "Name of the agent."]
    caller: Annotated[Sequence[str], "The chain on whose behalf the task runs, first to last."]
    task_type: Annotated[str, "Type of the task, as requested."]
    state: Annotated[TaskState, "State of the task."]
    agent_state: Annotated[str | None, "State of the task at the agent, in terms of A2A."]
    created_at: Annotated[str | None, "Time at which the task was created."]
    started_at: Annotated[str | None, "Time at which the agent started."]
    completed_at: Annotated[str | None, "Time at which the task ended."]
    error: Annotated[str | None, "Why the task failed. Secrets are removed."]
    run_id: Annotated[str | None, "Id of the run, if the agent is a CLI agent."]
    approval: Annotated[str | None, "Id of the request for approval that the task waits for."]


class OrderedTasks(TypedDict):
    """A page of tasks."""

    tasks: Annotated[Sequence[OrderedTask], "The tasks, newest first."]
    total: Annotated[int, "Number of tasks on all pages."]


class RunAnswer(TypedDict):
    """An answer to a run that waits for input. A call may choose only what `per_call` of the agent's definition
    permits, and never a program or its arguments."""

    prompt: NotRequired[Annotated[str, "Text for the agent."]]
    parameters: NotRequired[Annotated[Mapping[str, str], "Options and their values, by name with or without hyphens."]]
    environment: NotRequired[Annotated[Mapping[str, str], "Environment variables, by name."]]
    working_directory: NotRequired[Annotated[str, "Working folder of the program."]]
    task_type: NotRequired[Annotated[str, "Skill of the agent. Rules read it as `call.tool`.", NAME]]


class RunOrder(RunAnswer):
    """A request to run an agent. It has the members of an answer too."""

    context: NotRequired[Annotated[str, "Id of the conversation to continue.", CONTEXT]]
    principal: NotRequired[
        Annotated[str, "The principal to run as. At the admin listener, only `nhi:operator`.", PRINCIPAL]
    ]


class Taken(TypedDict):
    """An accepted task."""

    task_id: Annotated[str, "Id of the task in the task API."]
    run_id: Annotated[
        str | None, "Id of the run. Null if the agent has not accepted the task yet, or is not a CLI agent."
    ]
    error: Annotated[str | None, "Why the task failed, if it has already failed."]
    approval: Annotated[str | None, "Id of the request for approval, if the task waits for a person."]


class RunOrdered(Taken):
    """A run that was started."""

    agent: Annotated[str, "Name of the agent."]
    principal: Annotated[str, "The principal that the run acts as."]


class CancelOrder(TypedDict):
    """A request to cancel a run."""

    reason: NotRequired[Annotated[str, "Reason, for the audit log.", WHY]]


class ApprovalVerdict(TypedDict):
    """The answer of one person to a request for approval."""

    principal: Annotated[str, "The person."]
    by: Annotated[str, "The person's credential, by its name in audit records."]
    roles: Annotated[Sequence[str], "Required roles that the person answered for."]
    at: Annotated[str | None, "Time of the answer."]
    reason: Annotated[str | None, "Reason that the person gave."]


class ApprovalRequest(TypedDict):
    """A request for approval of one call."""

    id: Annotated[str, "Id of the request. Callers and audit records use the same id."]
    state: Annotated[
        ApprovalState, "`waiting` until it is answered. An approval is `used` once, unless it is valid for some time."
    ]
    caller: Annotated[Sequence[str], "The chain of the call, first to last."]
    protocol: Annotated[str, "Protocol of the call."]
    upstream: Annotated[str, "The server or agent that is called."]
    object: Annotated[str, "Object of the call."]
    action: Annotated[str, "Action of the call."]
    args_hash: Annotated[str, "Keyed digest of the arguments, as in audit records."]
    rules: Annotated[Sequence[str], "Ids of the rules that require the approval."]
    roles: Annotated[Sequence[str], "Roles that these rules require."]
    open_roles: Annotated[Sequence[str], "Roles for which no person has answered yet."]
    needs_reason: Annotated[bool, "Whether an answer must give a reason."]
    asked_at: Annotated[str | None, "Time of the request."]
    answer_before: Annotated[str | None, "Time at which the request expires without an answer."]
    valid_s: Annotated[float | None, "How long the approval can be used, in seconds. Null: for one call."]
    usable_until: Annotated[str | None, "Time at which the approval expires unused. Null until it is given."]
    decision_id: Annotated[str, "Id of the decision that requested the approval."]
    used_by: Annotated[str | None, "Id of the decision that used the approval."]
    policy_revision: Annotated[str, "Revision of the policy that requires the approval."]
    answers: Annotated[Sequence[ApprovalVerdict], "The answers, first to last."]
    seen_by: Annotated[Sequence[str], "People who have seen the arguments."]


class ApprovalQuestion(TypedDict):
    """One object and action of a call, with the arguments."""

    object: Annotated[str, "Object of the call."]
    action: Annotated[str, "Action of the call."]
    arguments: Annotated[Mapping[str, Any], "Arguments of the call, in clear."]


class ApprovalInFull(ApprovalRequest):
    """A request for approval, with the arguments of the call if you may answer it."""

    objection: Annotated[str | None, "Why you may not answer the request or see the arguments. Null if you may."]
    questions: Annotated[
        Sequence[ApprovalQuestion] | None, "Objects, actions and arguments of the call. Null if you may not see them."
    ]


class ApprovalRequests(TypedDict):
    """A page of requests for approval."""

    approvals: Annotated[Sequence[ApprovalRequest], "The requests, newest first."]
    next_offset: Annotated[int | None, "Offset of the next page. Null on the last page."]


class ApprovalAnswer(TypedDict):
    """An answer to a request for approval."""

    reason: NotRequired[Annotated[str, "Reason of the answer. Some rules require it.", WHY]]
    principal: NotRequired[Annotated[str, "The person who answers. Accepted at the control socket only.", PRINCIPAL]]


class Schedule(TypedDict):
    """A schedule and its state."""

    name: Annotated[str, "Key of the schedule under `schedules`, or the name with which it was added."]
    source: Annotated[str, "`configured` in `sidecar.yaml`, or `added` over this API and stored."]
    added_by: Annotated[str | None, "Who added the schedule."]
    added_at: Annotated[str | None, "Time at which the schedule was added."]
    id: Annotated[str, "Identifier. Default: `name`."]
    title: Annotated[str, "Display name."]
    agent: Annotated[str, "The agent to call."]
    principal: Annotated[str, "The principal that it acts as."]
    cron: Annotated[str, "When to call the agent, as a cron expression or a nickname such as `@daily`."]
    timezone: Annotated[str, "Time zone of `cron`."]
    enabled: Annotated[bool, "Whether the schedule is active."]
    state: Annotated[
        str,
        "`created` while disabled, `active`, `executing`, `waiting` for a person's approval, "
        "`paused` by an operator, or `unreadable`: its stored state is damaged or of another "
        "version, and it does not run.",
    ]
    paused_by: Annotated[str | None, "Who paused the schedule."]
    paused_at: Annotated[str | None, "Time at which the schedule was paused."]
    next_due: Annotated[str | None, "Time at which the next run is due."]
    last_due: Annotated[str | None, "Time at which the last run was due."]
    last_task: Annotated[str | None, "Id of the last task, in the task API."]
    last_result: Annotated[str | None, "Result of the last due run."]
    last_why: Annotated[str | None, "Reason of this result, unless it is evident."]
    last_success_at: Annotated[str | None, "Time at which a run last succeeded."]
    running: Annotated[Sequence[str], "Ids of its tasks in progress."]


class Schedules(TypedDict):
    """All schedules."""

    schedules: Annotated[Sequence[Schedule], "The schedules, in the order of their names."]


class NewSchedule(TypedDict):
    """A schedule to add. Except for `name` and `title`, the members have the same meaning and default as the keys
    under `schedules` in `sidecar.yaml`."""

    name: Annotated[str, "Name of the schedule. It must be unique.", SLUG]
    title: NotRequired[Annotated[str, "Display name.", {"minLength": 1, "maxLength": 200}]]
    agent: Annotated[str, "The agent to call.", SLUG]
    cron: Annotated[
        str,
        "When to call the agent, as a cron expression or a nickname such as `@daily`.",
        {"minLength": 1, "maxLength": 256},
    ]
    timezone: NotRequired[Annotated[str, "Time zone of `cron`."]]
    enabled: NotRequired[Annotated[bool, "Whether the schedule is active."]]
    principal: NotRequired[
        Annotated[
            str,
            "The principal that it acts as. At the admin listener, `nhi:<name>`, which is the "
            "default, or `nhi:operator`.",
            {"pattern": "^nhi:"},
        ]
    ]
    input_parameters: NotRequired[Annotated[Mapping[str, Any], "Input of the agent."]]
    task_type: NotRequired[Annotated[str, "Type of its tasks. Rules read it as `call.tool`.", NAME]]
    missed: NotRequired[
        Annotated[str, "What happens to runs that were due while no sidecar ran.", {"enum": ["once", "skip"]}]
    ]
    missed_within: NotRequired[
        Annotated[
            float | str,
            "Maximum delay of a run: seconds, or a duration such as `1h`.",
            {"exclusiveMinimum": 0, "minLength": 2},
        ]
    ]
    overlap: NotRequired[
        Annotated[
            str, "What happens to a run that is due while the previous one is unfinished.", {"enum": ["skip", "allow"]}
        ]
    ]


class Nothing(TypedDict):
    """A request body without members."""


class ScheduleOrdered(Taken):
    """A run of a schedule that an operator started."""

    schedule: Annotated[str, "Name of the schedule."]


class ToolOrder(TypedDict):
    """A request to disable or enable a tool, or without `tool` the whole server."""

    tool: NotRequired[Annotated[str | None, "Name of the tool."]]
    reason: NotRequired[Annotated[str | None, "Reason, in one line."]]
    until: NotRequired[Annotated[str | None, "Time at which the switch ends automatically."]]


class PrincipalOrder(TypedDict):
    """A request to disable a principal."""

    reason: NotRequired[Annotated[str | None, "Reason, in one line."]]
    until: NotRequired[Annotated[str | None, "Time at which the principal is enabled again."]]
    if_known: NotRequired[Annotated[bool, "Whether to refuse a name that appears in no rule, role, key or setting."]]


class ResetOrder(TypedDict):
    """A request to reset the limits that count one principal alone."""

    principal: Annotated[str, "The principal.", CALLER]
    limit: NotRequired[Annotated[str | None, "Only limits of this name. `*` matches any run of characters.", LIMIT]]
    if_known: NotRequired[Annotated[bool, "Whether to refuse a name that appears in no rule, role, key or setting."]]


class AuthzenEntity(TypedDict):
    """A subject or resource."""

    type: Annotated[str, "A type of `pdp.authzen.types`, or a predefined one."]
    id: Annotated[str, "Id of the subject or resource. A question with an invalid id is denied."]
    properties: NotRequired[Annotated[Mapping[str, Any], "Properties. Conditions read `arguments` of a resource."]]


class AuthzenKind(TypedDict):
    """The type of the subjects or resources to search for. Its `id` is ignored."""

    type: Annotated[str, "Type of the results."]
    properties: NotRequired[Annotated[Mapping[str, Any], "Properties, as in an evaluation."]]


class AuthzenAction(TypedDict):
    """An action."""

    name: Annotated[str, "An action of `pdp.authzen.actions`, or of rules."]
    properties: NotRequired[
        Annotated[Mapping[str, Any], "Properties. They are read if `pdp.authzen.arguments` names them."]
    ]


class AuthzenContext(TypedDict):
    """The context of a question. `charge: true` charges limits, if `pdp.charges` is `ask`."""

    agent: NotRequired[Annotated[str, "Id of the agent that acts for the subject."]]


class AuthzenEvaluation(TypedDict):
    """One question."""

    subject: Annotated[AuthzenEntity, "The subject."]
    action: Annotated[AuthzenAction, "The action."]
    resource: Annotated[AuthzenEntity, "The resource."]
    context: NotRequired[Annotated[AuthzenContext, "The context."]]


class AuthzenOptions(TypedDict):
    """Options of an evaluation."""

    evaluations_semantic: NotRequired[
        Annotated[str, "When the evaluation ends. Default: `execute_all`.", {"enum": list(SEMANTICS)}]
    ]


class AuthzenEvaluations(TypedDict):
    """Several questions. A request without `evaluations`, or with an empty list, is one question."""

    subject: NotRequired[Annotated[Mapping[str, Any], "Default subject of the questions."]]
    action: NotRequired[Annotated[Mapping[str, Any], "Default action of the questions."]]
    resource: NotRequired[Annotated[Mapping[str, Any], "Default resource of the questions."]]
    context: NotRequired[Annotated[Mapping[str, Any], "Default context of the questions."]]
    evaluations: NotRequired[
        Annotated[
            Sequence[Mapping[str, Any]],
            "The questions. A malformed question is denied, in its place.",
            {"maxItems": MAX_EVALUATIONS, "items": {}},
        ]
    ]
    options: NotRequired[Annotated[AuthzenOptions, "Options of the evaluation."]]


class AuthzenPage(TypedDict):
    """The requested page."""

    token: NotRequired[Annotated[str, "`next_token` of the previous page."]]
    limit: NotRequired[Annotated[int, f"Maximum number of results, at most {MAX_RESULTS}.", {"minimum": 0}]]
    properties: NotRequired[Annotated[Mapping[str, Any], "Ignored."]]


class AuthzenSubjectSearch(TypedDict):
    """A search for subjects."""

    subject: Annotated[AuthzenKind, "Type of the subjects."]
    action: Annotated[AuthzenAction, "The action."]
    resource: Annotated[AuthzenEntity, "The resource."]
    context: NotRequired[Annotated[AuthzenContext, "The context."]]
    page: NotRequired[Annotated[AuthzenPage, "The requested page."]]


class AuthzenResourceSearch(TypedDict):
    """A search for resources."""

    subject: Annotated[AuthzenEntity, "The subject."]
    action: Annotated[AuthzenAction, "The action."]
    resource: Annotated[AuthzenKind, "Type of the resources."]
    context: NotRequired[Annotated[AuthzenContext, "The context."]]
    page: NotRequired[Annotated[AuthzenPage, "The requested page."]]


class AuthzenActionSearch(TypedDict):
    """A search for actions."""

    subject: Annotated[AuthzenEntity, "The subject."]
    resource: Annotated[AuthzenEntity, "The resource."]
    context: NotRequired[Annotated[AuthzenContext, "The context."]]
    page: NotRequired[Annotated[AuthzenPage, "The requested page."]]


class AuthzenDecision(TypedDict):
    """The decision on one question."""

    decision: Annotated[bool, "Whether the action is permitted."]
    context: Annotated[
        Mapping[str, Any],
        "Details: `decision_id`, `reason` as far as `answers.disclosure` permits, `obligations` "
        "(the charged limits), and `error` if the question could not be decided.",
    ]


class AuthzenDecisions(TypedDict):
    """The decisions on several questions, or on the only question of the request."""

    evaluations: NotRequired[Annotated[Sequence[AuthzenDecision], "The decisions, in the order of the questions."]]
    decision: NotRequired[Annotated[bool, "Whether the action of the only question is permitted."]]
    context: NotRequired[Annotated[Mapping[str, Any], "Details, as in a single decision."]]


class AuthzenResultPage(TypedDict):
    """The position of a page among all results."""

    next_token: Annotated[str, "Token of the next page. Empty on the last page."]
    count: Annotated[int, "Number of results on this page."]


class AuthzenResultContext(TypedDict):
    """Information on all results."""

    complete: Annotated[bool, "Whether the results of all pages are everything that is permitted."]


class AuthzenResults(TypedDict):
    """The results of a search."""

    page: Annotated[AuthzenResultPage, "Position of this page."]
    context: Annotated[AuthzenResultContext, "Information on all results."]
    results: Annotated[Sequence[Mapping[str, Any]], "Entities with `type` and `id`, or actions with `name`."]


class AuthzenMetadata(TypedDict):
    """The endpoints of the policy decision point."""

    policy_decision_point: Annotated[
        str, "Identifier of the policy decision point: the URL with which the endpoints begin."
    ]
    access_evaluation_endpoint: Annotated[str, "Endpoint for one question."]
    access_evaluations_endpoint: Annotated[str, "Endpoint for several questions."]
    search_subject_endpoint: Annotated[str, "Endpoint for searches for subjects."]
    search_resource_endpoint: Annotated[str, "Endpoint for searches for resources."]
    search_action_endpoint: Annotated[str, "Endpoint for searches for actions."]


class Problem(TypedDict):
    """An error (RFC 9457). For a refused call, it has the members that the caller receives, as far as they are
    known."""

    type: Annotated[str, "`urn:sidecar:refusal:…`, or `about:blank` if the status is sufficient."]
    title: Annotated[str, "Summary of the type, from a fixed set."]
    status: Annotated[int, "HTTP status."]
    error: Annotated[str, "What is wrong, in a sentence."]
    reason: NotRequired[Annotated[str, "Reason of a refusal."]]
    error_code: NotRequired[Annotated[str, "Error code."]]
    decision_id: NotRequired[Annotated[str, "Id of the decision in audit records."]]
    retry_after_s: NotRequired[Annotated[int, "Seconds after which to try again."]]
    limit: NotRequired[Annotated[float, "Amount of the limit that refused the call."]]
    remaining: NotRequired[Annotated[float, "Amount that is left of this limit."]]
    unit: NotRequired[Annotated[str, "Unit of both amounts, unless the limit counts calls."]]
    reset_at: NotRequired[Annotated[str, "Time at which the limit is reset."]]
