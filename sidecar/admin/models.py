"""Request and response models of the admin API, as the OpenAPI document shows them. Times are RFC 3339, in UTC."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, NotRequired, TypedDict

from sidecar.gateway.approvals import ApprovalState
from sidecar.gateway.decisions.authzen_messages import MAX_EVALUATIONS, MAX_RESULTS, SEMANTICS
from sidecar.tasks.api.task_record import TaskState
from sidecar.tasks.programs.run_record import Category, RunState, RunStatus

Bounds = Mapping[str, Any]

PLAIN: Final[Bounds] = {"pattern": r"^[^\u0000-\u001f\u007f-\u009f]*$"}  # one line, no control characters
CONTEXT: Final[Bounds] = {**PLAIN, "maxLength": 256}
WHY: Final[Bounds] = {**PLAIN, "maxLength": 500}
NAME: Final[Bounds] = {**PLAIN, "minLength": 1, "maxLength": 128}
SLUG: Final[Bounds] = {"pattern": "^[a-z0-9]+(-[a-z0-9]+)*$", "maxLength": 64}
PRINCIPAL: Final[Bounds] = {"pattern": r"^(user|nhi):[!#-&(-)+\--{}~]{1,256}$"}
CALLER: Final[Bounds] = {"pattern": r"^(anonymous|(user|nhi):[!#-&(-)+\--{}~]{1,256})$"}
OBJECT: Final[Bounds] = {"pattern": r"^(tool|prompt|resource|nhi):\S{1,1024}$"}
LIMIT: Final[Bounds] = {"minLength": 1, "maxLength": 1024}


class RunError(TypedDict):
    """Why an attempt failed."""

    category: Annotated[Category, "where the failure comes from"]
    message: Annotated[str, "the sidecar's message, or the program's last output"]


class RunUsage(TypedDict):
    """What a run used, all its processes together."""

    cpu_s: Annotated[float, "seconds of CPU"]
    cpu_percent: Annotated[float, "of one CPU"]
    memory_bytes: Annotated[int, "at its end"]
    peak_memory_bytes: Annotated[int, "at its highest"]
    disk_read_bytes: Annotated[int, "read from disks"]
    disk_write_bytes: Annotated[int, "written to disks"]


class RunTry(TypedDict):
    """A failed attempt that was followed by another."""

    status: Annotated[RunStatus, "how it ended"]
    started_at: Annotated[str | None, "when its process was started"]
    ended_at: Annotated[str | None, "when it ended"]
    pid: Annotated[int | None, "of its process"]
    exit_code: Annotated[int | None, "of its process"]
    signal: Annotated[int | None, "that ended its process"]
    error: Annotated[RunError | None, "why it failed"]
    usage: Annotated[RunUsage, "what it used"]


class RunTransition(TypedDict):
    """One change of state."""

    state: Annotated[RunState, "the new state"]
    at: Annotated[str | None, "when"]
    why: Annotated[str | None, "why, unless it is obvious"]


class Run(TypedDict):
    """One run of an agent, without its input and output."""

    id: Annotated[str, "its id, which over A2A is the task's id"]
    agent: Annotated[str, "the agent that ran"]
    caller: Annotated[Sequence[str], "the principals for whom it ran, first to last"]
    context: Annotated[str, "the conversation that it belongs to"]
    schedule: Annotated[str | None, "the schedule that ordered it"]
    state: Annotated[RunState, "`idle` before it starts, and again after it ended"]
    previous_state: Annotated[RunState | None, "the state before"]
    status: Annotated[RunStatus | None, "how it ended; null until then"]
    is_over: Annotated[bool, "whether it has ended"]
    task_state: Annotated[str | None, "the state in A2A's terms"]
    created_at: Annotated[str | None, "when it was ordered"]
    started_at: Annotated[str | None, "when the process of its last attempt was started; null while it waits"]
    ended_at: Annotated[str | None, "when it ended"]
    duration_s: Annotated[float | None, "from that start to its end"]
    retries: Annotated[int, "attempts after the first"]
    max_retries: Annotated[int, "the highest number of retries"]
    timeout_s: Annotated[float, "how long one attempt may take"]
    cancel_requested: Annotated[bool, "whether its cancellation was requested"]
    pid: Annotated[int | None, "of its process"]
    exit_code: Annotated[int | None, "of its process"]
    signal: Annotated[int | None, "that ended its process"]
    error: Annotated[RunError | None, "why it failed"]
    output_bytes: Annotated[int, "the size of its output"]


class RunInFull(Run):
    """One run of an agent, with its texts. Secrets and control sequences are removed from them, and they are
    truncated."""

    input: Annotated[str, "its prompt"]
    output: Annotated[str, "the end of its output"]
    message: Annotated[str | None, "its last message, or the sidecar's: a question, or why it failed"]
    usage: Annotated[RunUsage, "what it used"]
    transitions: Annotated[Sequence[RunTransition], "every change of state, oldest first"]
    tries: Annotated[Sequence[RunTry], "the attempts before the last"]


class Runs(TypedDict):
    """A page of runs."""

    runs: Annotated[Sequence[Run], "newest first"]
    next_offset: Annotated[int | None, "the offset of the next page; null if there is none"]


class Agent(TypedDict):
    """An agent that is a CLI program, and its state here."""

    name: Annotated[str, "its key under `agents`"]
    id: Annotated[str, "its identifier; by default its name"]
    title: Annotated[str, "its display name"]
    enabled: Annotated[bool, "whether it can be called"]
    mode: Annotated[str, "`task` or `interactive`"]
    access_type: Annotated[str, "`read-only` or `read-write`"]
    running: Annotated[int, "runs in progress here"]
    waiting: Annotated[int, "runs that wait here"]
    places: Annotated[int, "how many may run at once"]
    last_run: Annotated[Run | None, "its newest run"]


class AgentInFull(Agent):
    """An agent that is a CLI program, with its definition except for secrets."""

    description: Annotated[str, "its purpose"]
    executable: Annotated[str, "its program"]
    input_pattern: Annotated[str, "how it gets its prompt"]
    output_pattern: Annotated[str, "where its answer is read"]
    working_directory: Annotated[str | None, "null: a new one for each run"]
    environment: Annotated[Sequence[str], "names of its environment variables"]
    options: Annotated[Sequence[str], "options whose values a call may choose"]
    variables: Annotated[Sequence[str], "environment variables whose values a call may choose"]
    working_directories: Annotated[Sequence[str], "folders that a call may choose"]
    timeout_s: Annotated[float, "how long one attempt may take"]
    max_queue: Annotated[int, "how many runs may wait"]
    max_input_bytes: Annotated[int, "the largest prompt"]
    max_output_bytes: Annotated[int, "the largest output"]
    max_retries: Annotated[int, "attempts after the first"]


class Agents(TypedDict):
    """All agents that are CLI programs."""

    agents: Annotated[Sequence[Agent], "by name"]


class OrderedTask(TypedDict):
    """A task of the task API, without its input and its result, which are its caller's."""

    id: Annotated[str, "its id in the task API"]
    agent: Annotated[str, "the agent that it is for"]
    caller: Annotated[Sequence[str], "the principals for whom it runs, first to last"]
    task_type: Annotated[str, "as it was ordered"]
    state: Annotated[TaskState, "its state"]
    agent_state: Annotated[str | None, "the agent's own state, in A2A's terms"]
    created_at: Annotated[str | None, "when it was ordered"]
    started_at: Annotated[str | None, "when its agent began"]
    completed_at: Annotated[str | None, "when it ended"]
    error: Annotated[str | None, "why it failed, without what looks like a secret"]
    run_id: Annotated[str | None, "its run, if its agent is a CLI program"]
    approval: Annotated[str | None, "the request for approval that it waits for"]


class OrderedTasks(TypedDict):
    """A page of tasks."""

    tasks: Annotated[Sequence[OrderedTask], "newest first"]
    total: Annotated[int, "how many there are on all pages"]


class RunAnswer(TypedDict):
    """The answer to a run that waits for input. A call can choose what `per_call` of the agent's definition lets it
    choose, and never a program, its arguments or its environment."""

    prompt: NotRequired[Annotated[str, "the text for the agent"]]
    parameters: NotRequired[Annotated[Mapping[str, str], "options by name, with or without their hyphens"]]
    environment: NotRequired[Annotated[Mapping[str, str], "environment variables by name"]]
    working_directory: NotRequired[Annotated[str, "a folder"]]
    task_type: NotRequired[Annotated[str, "the skill; rules read it as call.tool", NAME]]


class RunOrder(RunAnswer):
    """An order to run an agent; its choices are those of an answer."""

    context: NotRequired[Annotated[str, "the conversation to continue", CONTEXT]]
    principal: NotRequired[Annotated[str, "the caller; over the admin listener only `nhi:operator`", PRINCIPAL]]


class Taken(TypedDict):
    """A task that was accepted."""

    task_id: Annotated[str, "its id in the task API"]
    run_id: Annotated[str | None, "null if its agent has not taken it yet, or is not a CLI program"]
    error: Annotated[str | None, "why it failed, if it has failed already"]
    approval: Annotated[str | None, "the request for approval, if it waits for a person"]


class RunOrdered(Taken):
    """A run that was ordered."""

    agent: Annotated[str, "the agent that runs"]
    principal: Annotated[str, "the caller"]


class CancelOrder(TypedDict):
    """An order to cancel a run."""

    reason: NotRequired[Annotated[str, "why, for the audit log", WHY]]


class ApprovalVerdict(TypedDict):
    """One person's answer to a request for approval."""

    principal: Annotated[str, "the person"]
    by: Annotated[str, "the credential, as the audit names it"]
    roles: Annotated[Sequence[str], "the demanded roles that the person answered for"]
    at: Annotated[str | None, "when"]
    reason: Annotated[str | None, "why, in the person's words"]


class ApprovalRequest(TypedDict):
    """A call that waits, or waited, for a person's approval."""

    id: Annotated[str, "its id, which callers and the audit know too"]
    state: Annotated[ApprovalState, "`waiting` until it is answered; an approval is `used` once, unless it lasts"]
    caller: Annotated[Sequence[str], "the principals of the call, first to last"]
    protocol: Annotated[str, "how the call came"]
    upstream: Annotated[str, "the server or agent called"]
    object: Annotated[str, "what is called"]
    action: Annotated[str, "what is done"]
    args_hash: Annotated[str, "the keyed hash of the arguments, as in the audit"]
    rules: Annotated[Sequence[str], "the rules that demand the approval"]
    roles: Annotated[Sequence[str], "the roles that they demand"]
    open_roles: Annotated[Sequence[str], "those for which no one has answered yet"]
    needs_reason: Annotated[bool, "whether an answer must give a reason"]
    asked_at: Annotated[str | None, "when it was asked for"]
    answer_before: Annotated[str | None, "when it expires unanswered"]
    valid_s: Annotated[float | None, "how long an approval may be used, in seconds; null: once"]
    usable_until: Annotated[str | None, "when an approval expires unused; null until it is given"]
    decision_id: Annotated[str, "the decision that asked for it"]
    used_by: Annotated[str | None, "the decision that used it"]
    policy_revision: Annotated[str, "the policy that demanded it"]
    answers: Annotated[Sequence[ApprovalVerdict], "who answered, first to last"]
    seen_by: Annotated[Sequence[str], "the people to whom its arguments were shown"]


class ApprovalQuestion(TypedDict):
    """One object and action of a call, with its arguments."""

    object: Annotated[str, "what is called"]
    action: Annotated[str, "what is done"]
    arguments: Annotated[Mapping[str, Any], "as they are"]


class ApprovalInFull(ApprovalRequest):
    """A request for approval, with the arguments of the call for a person who may answer it."""

    objection: Annotated[str | None, "why you may not answer, and do not see the arguments; null if you may"]
    questions: Annotated[Sequence[ApprovalQuestion] | None, "the call's objects and arguments"]


class ApprovalRequests(TypedDict):
    """A page of requests for approval."""

    approvals: Annotated[Sequence[ApprovalRequest], "newest first"]
    next_offset: Annotated[int | None, "the offset of the next page; null if there is none"]


class ApprovalAnswer(TypedDict):
    """A person's answer."""

    reason: NotRequired[Annotated[str, "why; some rules demand it", WHY]]
    principal: NotRequired[Annotated[str, "the person, over the control socket only", PRINCIPAL]]


class Schedule(TypedDict):
    name: Annotated[str, "its key under `schedules`, or the name under which it was added"]
    source: Annotated[str, "`configured` in sidecar.yaml, or `added` over this API and stored"]
    added_by: Annotated[str | None, "who added it"]
    added_at: Annotated[str | None, "when"]
    id: Annotated[str, "its identifier; by default its name"]
    title: Annotated[str, "its display name"]
    agent: Annotated[str, "the agent that it calls"]
    principal: Annotated[str, "the caller"]
    cron: Annotated[str, "when it runs"]
    timezone: Annotated[str, "of `cron`"]
    enabled: Annotated[bool, "whether it runs at all"]
    state: Annotated[
        str,
        "`created` while it is not enabled, `active`, `executing`, `waiting` for a person's approval, `paused` by an "
        "operator, or `unreadable`: its state was damaged or written by another version, and it does not run",
    ]
    paused_by: Annotated[str | None, "who paused it"]
    paused_at: Annotated[str | None, "when"]
    next_due: Annotated[str | None, "when it is due next"]
    last_due: Annotated[str | None, "when it was due last"]
    last_task: Annotated[str | None, "the task that it ordered last, in the task API"]
    last_result: Annotated[str | None, "the result of that task"]
    last_why: Annotated[str | None, "why, unless it is obvious"]
    last_success_at: Annotated[str | None, "when one of its runs last succeeded"]
    running: Annotated[Sequence[str], "its tasks in progress"]


class Schedules(TypedDict):
    """All schedules."""

    schedules: Annotated[Sequence[Schedule], "by name"]


class NewSchedule(TypedDict):
    """A schedule to be stored. Each member but `name` and `title` is what the key of its name is under
    `schedules` in sidecar.yaml, and has the same default."""

    name: Annotated[str, "its name, which no other schedule has", SLUG]
    title: NotRequired[Annotated[str, "its display name", {"minLength": 1, "maxLength": 200}]]
    agent: Annotated[str, "the agent that it calls", SLUG]
    cron: Annotated[str, "when it runs", {"minLength": 1, "maxLength": 256}]
    timezone: NotRequired[Annotated[str, "of `cron`"]]
    enabled: NotRequired[Annotated[bool, "whether it runs at all"]]
    principal: NotRequired[
        Annotated[
            str,
            "the caller; over the admin listener `nhi:<name>`, which is the default, or `nhi:operator`",
            {"pattern": "^nhi:"},
        ]
    ]
    input_parameters: NotRequired[Annotated[Mapping[str, Any], "the agent's input"]]
    task_type: NotRequired[Annotated[str, "the type of its tasks", NAME]]
    missed: NotRequired[
        Annotated[str, "what happens to runs that were due while no sidecar ran", {"enum": ["once", "skip"]}]
    ]
    missed_within: NotRequired[
        Annotated[
            float | str,
            "how late a run may begin: seconds, or text such as 1h",
            {"exclusiveMinimum": 0, "minLength": 2},
        ]
    ]
    overlap: NotRequired[
        Annotated[
            str, "what happens to a run that is due while the previous one is running", {"enum": ["skip", "allow"]}
        ]
    ]


class Nothing(TypedDict):
    """An order without members."""


class ScheduleOrdered(Taken):
    """A run of a schedule, ordered by an operator."""

    schedule: Annotated[str, "its name"]


class ToolOrder(TypedDict):
    """An order to switch a tool, or without `tool` the whole server, off or on."""

    tool: NotRequired[Annotated[str | None, "a tool of the server"]]
    reason: NotRequired[Annotated[str | None, "why, in one line"]]
    until: NotRequired[Annotated[str | None, "when the switch ends automatically"]]


class PrincipalOrder(TypedDict):
    """An order to disable a principal."""

    reason: NotRequired[Annotated[str | None, "why, in one line"]]
    until: NotRequired[Annotated[str | None, "when it ends automatically"]]
    if_known: NotRequired[Annotated[bool, "whether to refuse a name that no rule, role, key or setting has"]]


class ResetOrder(TypedDict):
    """An order to reset the limits that count one principal alone."""

    principal: Annotated[str, "whose limits", CALLER]
    limit: NotRequired[Annotated[str | None, "only limits of this name; `*` matches any run of characters", LIMIT]]
    if_known: NotRequired[Annotated[bool, "whether to refuse a name that no rule, role, key or setting has"]]


class AuthzenEntity(TypedDict):
    """A subject or resource of AuthZEN."""

    type: Annotated[str, "a type of `pdp.authzen.types`, or one that is known without an entry"]
    id: Annotated[str, "which one; what can be no name is denied"]
    properties: NotRequired[Annotated[Mapping[str, Any], "`arguments` of a resource are those that conditions read"]]


class AuthzenKind(TypedDict):
    """A subject or resource that is searched. Its id is ignored."""

    type: Annotated[str, "the type of the results"]
    properties: NotRequired[Annotated[Mapping[str, Any], "as in an evaluation"]]


class AuthzenAction(TypedDict):
    """An action of AuthZEN."""

    name: Annotated[str, "an action of `pdp.authzen.actions`, or of rules"]
    properties: NotRequired[Annotated[Mapping[str, Any], "read where `pdp.authzen.arguments` names them"]]


class AuthzenContext(TypedDict):
    """The context of AuthZEN. `charge: true` asks that limits be charged, where `pdp.charges` is `ask`."""

    agent: NotRequired[Annotated[str, "the agent that acts for the subject, by its id"]]


class AuthzenEvaluation(TypedDict):
    """One question."""

    subject: Annotated[AuthzenEntity, "who asks"]
    action: Annotated[AuthzenAction, "for what"]
    resource: Annotated[AuthzenEntity, "on what"]
    context: NotRequired[Annotated[AuthzenContext, "under which circumstances"]]


class AuthzenOptions(TypedDict):
    """How questions are evaluated."""

    evaluations_semantic: NotRequired[Annotated[str, "when evaluation ends", {"enum": list(SEMANTICS)}]]


class AuthzenEvaluations(TypedDict):
    """Several questions. Without `evaluations`, or with none, the request is one question."""

    subject: NotRequired[Annotated[Mapping[str, Any], "that of questions without one of their own"]]
    action: NotRequired[Annotated[Mapping[str, Any], "the same for actions"]]
    resource: NotRequired[Annotated[Mapping[str, Any], "the same for resources"]]
    context: NotRequired[Annotated[Mapping[str, Any], "the same for contexts"]]
    evaluations: NotRequired[
        Annotated[
            Sequence[Mapping[str, Any]],
            "the questions; a malformed one is denied in its place",
            {"maxItems": MAX_EVALUATIONS, "items": {}},
        ]
    ]
    options: NotRequired[Annotated[AuthzenOptions, "how they are evaluated"]]


class AuthzenPage(TypedDict):
    """The page that is wanted."""

    token: NotRequired[Annotated[str, "the `next_token` of the page before"]]
    limit: NotRequired[Annotated[int, f"how many results at most; {MAX_RESULTS} at most", {"minimum": 0}]]
    properties: NotRequired[Annotated[Mapping[str, Any], "ignored"]]


class AuthzenSubjectSearch(TypedDict):
    """A search of subjects."""

    subject: Annotated[AuthzenKind, "the type of the subjects"]
    action: Annotated[AuthzenAction, "what they may do"]
    resource: Annotated[AuthzenEntity, "on what"]
    context: NotRequired[Annotated[AuthzenContext, "under which circumstances"]]
    page: NotRequired[Annotated[AuthzenPage, "which results"]]


class AuthzenResourceSearch(TypedDict):
    """A search of resources."""

    subject: Annotated[AuthzenEntity, "who may"]
    action: Annotated[AuthzenAction, "do what"]
    resource: Annotated[AuthzenKind, "the type of the resources"]
    context: NotRequired[Annotated[AuthzenContext, "under which circumstances"]]
    page: NotRequired[Annotated[AuthzenPage, "which results"]]


class AuthzenActionSearch(TypedDict):
    """A search of actions."""

    subject: Annotated[AuthzenEntity, "who may"]
    resource: Annotated[AuthzenEntity, "on what"]
    context: NotRequired[Annotated[AuthzenContext, "under which circumstances"]]
    page: NotRequired[Annotated[AuthzenPage, "which results"]]


class AuthzenDecision(TypedDict):
    """The decision on one question. Its context has `decision_id`, and `reason` as far as `answers.disclosure` lets it;
    `obligations` are the limits that were charged, `error` says why a question could not be decided."""

    decision: Annotated[bool, "whether it is permitted"]
    context: Annotated[Mapping[str, Any], "its id, and why it is denied"]


class AuthzenDecisions(TypedDict):
    """The decisions on several questions, or on the one that the request is."""

    evaluations: NotRequired[Annotated[Sequence[AuthzenDecision], "in the order of the questions"]]
    decision: NotRequired[Annotated[bool, "whether the one question is permitted"]]
    context: NotRequired[Annotated[Mapping[str, Any], "as in a decision"]]


class AuthzenResultPage(TypedDict):
    """The place of a page among all results."""

    next_token: Annotated[str, "the token of the next page, empty at the last one"]
    count: Annotated[int, "how many results there are on this one"]


class AuthzenResultContext(TypedDict):
    """What is known of the results as a whole."""

    complete: Annotated[bool, "whether the results of all pages are all that is permitted"]


class AuthzenResults(TypedDict):
    """What a search found."""

    page: Annotated[AuthzenResultPage, "the place of this page"]
    context: Annotated[AuthzenResultContext, "what is known of them"]
    results: Annotated[Sequence[Mapping[str, Any]], "entities with `type` and `id`, or actions with `name`"]


class AuthzenMetadata(TypedDict):
    """The endpoints of the policy decision point."""

    policy_decision_point: Annotated[str, "its identifier: the URL that the others begin with"]
    access_evaluation_endpoint: Annotated[str, "of one question"]
    access_evaluations_endpoint: Annotated[str, "of several questions"]
    search_subject_endpoint: Annotated[str, "of searches of subjects"]
    search_resource_endpoint: Annotated[str, "of searches of resources"]
    search_action_endpoint: Annotated[str, "of searches of actions"]


class Problem(TypedDict):
    """A refusal (RFC 9457). Members that callers see are here too, as far as they are known."""

    type: Annotated[str, "`urn:sidecar:refusal:…`, or `about:blank` if the status says it all"]
    title: Annotated[str, "the type in words, from a closed set"]
    status: Annotated[int, "the HTTP status"]
    error: Annotated[str, "what is wrong, in a sentence"]
    reason: NotRequired[Annotated[str, "why it was refused, from a closed set"]]
    error_code: NotRequired[Annotated[str, "the error code"]]
    decision_id: NotRequired[Annotated[str, "the id of the decision in the audit"]]
    retry_after_s: NotRequired[Annotated[int, "when to try again, in seconds"]]
    limit: NotRequired[Annotated[float, "the amount of the limit that refused"]]
    remaining: NotRequired[Annotated[float, "what is left of it"]]
    unit: NotRequired[Annotated[str, "of both, unless calls are counted"]]
    reset_at: NotRequired[Annotated[str, "when the limit is reset"]]
