"""Settings of CLI-program agents: AgentConfiguration of the original data models. No request defines a program."""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args

from pydantic import AfterValidator, Field

from sidecar.settings.agent_endpoints import AgentOffer, offer_faults
from sidecar.settings.field_types import (
    Argument,
    Bytes,
    Command,
    Count,
    Many,
    PathField,
    Seconds,
    Section,
    VariableName,
)
from sidecar.settings.programs import variables_in_file
from sidecar.settings.upstreams import BreakerSettings, ProbeSettings
from sidecar.settings.validation_errors import Finding, reject

Mode = Literal["task", "interactive"]
Input = Literal["stdin", "file", "args", "json-rpc"]
Output = Literal["stdout", "file", "json-rpc"]
Access = Literal["read-only", "read-write"]
Newlines = Literal["refuse", "space", "json"]
Method = Literal["message/send", "message/stream", "tasks/get", "tasks/list", "tasks/cancel", "tasks/resubscribe"]
METHODS: Final[tuple[Method, ...]] = get_args(Method)
# The patterns of each `agent_type` of the original data models.
TYPES: Final[Mapping[str, tuple[Input, Output]]] = {
    "stdin-stdout": ("stdin", "stdout"),
    "stdin-file": ("stdin", "file"),
    "file-input": ("file", "stdout"),
    "file-file": ("file", "file"),
    "args-stdout": ("args", "stdout"),
    "args-file": ("args", "file"),
    "json-rpc": ("json-rpc", "json-rpc"),
}
INPUT_FILE: Final = "{input_file}"
OUTPUT_FILE: Final = "{output_file}"
PROMPT: Final = "{prompt}"
# The placeholder in `args`, the pattern it belongs to, and whether it is input or output.
_PLACES: Final[tuple[tuple[str, str, str], ...]] = (
    (INPUT_FILE, "file", "input"),
    (PROMPT, "args", "input"),
    (OUTPUT_FILE, "file", "output"),
)
_OPTION: Final = re.compile(r"-{1,2}[^-=\s][^=\s]*")
_MAX_PATTERN_BYTES: Final = 2**20  # size of the compiled expression
MAX_READ_ONLY: Final = 4  # the default: programs cost far more than requests
MAX_BACKOFF_S: Final = 60.0  # the longest rest between two tries of a run


def _template(text: str) -> str:
    if not text or "/" in text or "\0" in text or text in (".", ".."):
        reject("a file template must be a name, not a path", hint="write, for example, input-{execution_id}.md")
    left = text.replace("{execution_id}", "")
    if "{" in left or "}" in left:
        reject(
            "the only placeholder of a file template is {execution_id}",
            hint="write, for example, input-{execution_id}.md",
        )
    return text


FileTemplate = Annotated[str, Field(max_length=200), AfterValidator(_template)]


def _pattern(text: str) -> str:
    try:
        re.compile(text)  # compiled alone first, so that it cannot close the group around it
    except re.error as error:
        reject(f"this is not a regular expression: {error}")
    try:
        _matcher(text)
    except ValueError:
        hint = "remove look-arounds and back-references"
        reject("this regular expression is too large, or cannot be matched in linear time", hint=hint)
    return text


@lru_cache(maxsize=256)
def _matcher(pattern: str) -> Any:
    """Compiles a matcher that matches whole values in linear time. Raises ValueError."""
    import jsonschema_rs  # only if an agent has a pattern

    schema = {"type": "string", "pattern": f"^(?:{pattern})$"}  # as in JSON Schema, $ is the very end
    options = jsonschema_rs.RegexOptions(size_limit=_MAX_PATTERN_BYTES)
    return jsonschema_rs.Draft202012Validator(schema, pattern_options=options)


Pattern = Annotated[str, Field(max_length=512), AfterValidator(_pattern)]


class Allowed(Section):
    """The values that a call may choose: those in `values`, or those that `matches` matches as a whole."""

    values: Many[Argument] = ()
    """Allowed values, exactly as written. An option whose only value is "" is passed without a value."""
    matches: Pattern | None = None
    """Regular expression that must match the whole value, of at most 256 characters. Look-around and back-references
    are not supported."""

    def _faults(self) -> Iterator[Finding]:
        if bool(self.values) == (self.matches is not None):
            yield Finding("write either values or matches", "S170", on_key=True)

    @property
    def is_flag(self) -> bool:
        return self.values == ("",)

    def admits(self, value: str) -> bool:
        if self.matches is None:
            return value in self.values
        return len(value) <= 256 and "\0" not in value and bool(_matcher(self.matches).is_valid(value))


class PerCall(Section):
    """What a call may choose in addition to its prompt. By default, nothing."""

    cli_args: dict[Argument, Allowed] = Field(default_factory=dict)
    """Options, by name as in `cli_args`, and the allowed values of each."""
    envs: dict[VariableName, Allowed] = Field(default_factory=dict)
    """Environment variables, and the allowed values of each."""
    working_directories: Many[PathField] = ()
    """Folders that a call may choose as the working folder."""


class Resources(Section):
    """Limits of one process of the agent (`setrlimit`). The operating system ends a process that exceeds one, or
    refuses the request."""

    cpu_s: Count | None = None
    """CPU time in seconds."""
    memory: Bytes | None = None
    """Address space. An interpreter with many threads reserves far more than it uses."""
    open_files: Count | None = None
    """Number of open files."""
    processes: Count | None = None
    """Number of processes of the agent's operating system user, counted over all programs of that user."""
    file_size: Bytes | None = None
    """Size of the largest file that the process may write."""


class Retries(Section):
    """Retries of failed runs. Only temporary failures are retried."""

    max: Annotated[int, Field(ge=0, le=20)] = 0
    """Maximum number of retries."""
    backoff_s: Seconds = 1.0
    """Delay before the first retry. It doubles with each further retry, up to 60 seconds, and varies by up to 20%."""
    exit_codes: Many[Annotated[int, Field(ge=1, le=255)]] = ()
    """Exit codes that mean a temporary failure, such as 75 (EX_TEMPFAIL)."""
    retry_read_write: bool = False
    """Whether to retry a read-write agent too. A retry can repeat what the failed run already did."""


class Skill(Section):
    """A skill of the agent in its card. A call names the skill in its metadata, and rules read it as `call.tool`."""

    id: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_.\-/]+$")]
    """Name of the skill in calls."""
    name: Annotated[str, Field(min_length=1, max_length=200)]
    """Display name."""
    description: Annotated[str, Field(max_length=4_000)] = ""
    """Description of the skill."""
    tags: Many[Annotated[str, Field(min_length=1, max_length=64)]] = ()
    """Keywords by which the skill can be found."""
    examples: Many[Annotated[str, Field(min_length=1, max_length=1_000)]] = ()
    """Example prompts."""


class Capabilities(Section):
    """Capabilities that the card names and the sidecar enforces."""

    supported_methods: Many[Method] = METHODS
    """Methods that callers can use. Every other method is refused as unsupported."""
    max_input_size: Bytes = 1024 * 1024
    """Maximum size of a prompt."""
    max_output_size: Bytes = 1024 * 1024
    """Maximum size of the output of a run. The run of a program that exceeds it is ended and fails."""
    streaming_support: bool = True
    """Whether the output is streamed."""
    concurrent_execution: bool | None = None
    """Whether several runs can execute at once. It follows from `max_concurrent_executions`; if you set it, it must
    agree."""
    supported_content_types: Many[Annotated[str, Field(pattern=r"^[a-z]+/[A-Za-z0-9.+\-*]+$", max_length=128)]] = (
        "text/plain",
        "application/json",
    )
    """Media types of message parts that the agent accepts. A data part that only sets options of the call is always
    accepted."""


class Endpoint(AgentOffer):
    """How the agent is offered over A2A."""

    capabilities: Capabilities = Field(default_factory=Capabilities)
    version: Annotated[str, Field(min_length=1, max_length=64)] = "1.0.0"
    """Version of the agent in its card."""
    skills: Many[Skill] = ()
    """Skills of the agent. Default: one skill with the name of the agent."""


class TextPatterns(NamedTuple):
    """How the program receives its input, and how it answers."""

    input: Input
    output: Output


class CliAgent(Section):
    """A CLI agent."""

    id: Annotated[str | None, Field(min_length=1, max_length=128)] = None
    """Identifier. Default: the key of this entry."""
    name: Annotated[str | None, Field(min_length=1, max_length=200)] = None
    """Display name. It must be unique. Default: the key of this entry."""
    description: Annotated[str, Field(max_length=4_000)] = ""
    """Description of the agent in its card."""
    agent_type: (
        Literal["stdin-stdout", "stdin-file", "file-input", "file-file", "args-stdout", "args-file", "json-rpc"] | None
    ) = None
    """Input pattern and output pattern in one value."""
    executable: Command
    """Program of the agent: a name on `PATH`, or a path, absolute or relative to the folder of `sidecar.yaml`. It is
    started without a shell."""
    args: Many[Argument] = ()
    """Arguments of the program. `{input_file}`, `{output_file}` and `{prompt}` are replaced if they are whole
    arguments. Otherwise, the prompt is the last argument, after `--`. A prompt that begins with `-` is refused unless
    `--` precedes it."""
    cli_args: dict[Argument, Argument] = Field(default_factory=dict)
    """Options and their values, `--name: value`, which precede `args`. Set the value "" for an option without one."""
    working_directory: PathField | None = None
    """Working folder of the program. Default: an empty folder for each run, which is removed with it."""
    envs: dict[VariableName, Argument] = Field(default_factory=dict)
    """Environment variables of the program, in addition to the sidecar's `PATH`, `HOME`, `LANG` and `TMPDIR`."""
    env_path: PathField | None = None
    """File with secret environment variables, one `NAME=value` per line. Their values are removed from the output.
    `envs` takes precedence."""
    mode: Mode = "task"
    """`task` starts a process for each run, `interactive` one for each conversation of a caller."""
    input_pattern: Input | None = None
    """How the program receives its input. Default: standard input."""
    output_pattern: Output | None = None
    """Where the program writes its answer. Default: standard output."""
    input_file_template: FileTemplate = "input-{execution_id}.txt"
    """Name of the file with the prompt. Its path replaces `{input_file}` in `args`, or is the last argument."""
    output_file_template: FileTemplate = "output-{execution_id}.txt"
    """Name of the file that the program writes. Its path replaces `{output_file}` in `args`, or is the last
    argument."""
    access_type: Access = "read-only"
    """A read-write agent executes one run at a time, across all replicas."""
    max_concurrent_executions: Count | None = None
    """Maximum number of concurrent runs in this process: 1 for a read-write agent, 4 by default for a read-only one."""
    max_queue: Count = 100
    """Maximum number of waiting runs, at most half of them of one caller. Further runs are refused."""
    queue_timeout: Seconds = 600.0
    """Maximum time that a run waits. After that, the run ends as `timeout`."""
    timeout: Seconds = 300.0
    """Maximum duration of one try of a run, or of one turn of a conversation."""
    session_timeout: Seconds = 3600.0
    """Maximum lifetime of the process of a conversation."""
    idle_timeout: Seconds = 300.0
    """Time without a message after which the process of a conversation ends."""
    keep_alive: bool = True
    """Whether the process of a conversation stays alive between turns. Otherwise, each turn starts a new process."""
    max_sessions: Count = 16
    """Maximum number of conversations with a process. Beyond it, the longest idle process of the caller with the most
    processes ends."""
    turn_end: Annotated[str, Field(min_length=1, max_length=64)] = "\n"
    """Text that ends an answer on standard output in a conversation. Default: the end of a line."""
    newlines: Newlines = "refuse"
    """How to handle a prompt of several lines if a line is a turn: `refuse` it, join its lines with a `space`, or write
    each prompt as a `json` string."""
    greets: bool = False
    """Whether the program first shows a prompt of its own. Output up to the first `turn_end` is then not an answer."""
    strip_control: bool = True
    """Whether to remove terminal control sequences from the output of the program."""
    per_call: PerCall = Field(default_factory=PerCall)
    resources: Resources = Field(default_factory=Resources)
    retries: Retries = Field(default_factory=Retries)
    keep_runs: Count = 1_000
    """Maximum number of stored finished runs. Beyond it, the oldest run of the caller with the most runs is deleted."""
    enabled: bool = True
    """Whether the agent can be called. A disabled agent is not an upstream."""
    anonymous: bool = False
    """Whether callers without a credential can call it as `anonymous`. Rules must still allow `anonymous`."""
    a2a: Endpoint = Field(default_factory=Endpoint)
    breaker: BreakerSettings = Field(default_factory=BreakerSettings)
    probe: ProbeSettings = Field(default_factory=ProbeSettings)

    @property
    def patterns(self) -> TextPatterns:
        told, answers = TYPES.get(self.agent_type or "", (None, None))
        spoken = self.input_pattern or told or ("json-rpc" if self.output_pattern == "json-rpc" else "stdin")
        said = self.output_pattern or answers or ("json-rpc" if spoken == "json-rpc" else "stdout")
        return TextPatterns(spoken, said)

    @property
    def places(self) -> int:
        """How many runs one sidecar process may have at once."""
        return self.max_concurrent_executions or (1 if self.writes else MAX_READ_ONLY)

    def all_env(self) -> dict[str, str]:
        """The variables of `envs` and `env_path`. Raises SettingsError."""
        return self.envs if self.env_path is None else variables_in_file(self.env_path) | self.envs

    @property
    def writes(self) -> bool:
        """Whether two runs of it must never overlap."""
        return self.access_type == "read-write"

    @property
    def keeps_processes(self) -> bool:
        """Whether the process of a conversation is kept between its turns."""
        return self.mode == "interactive" and self.keep_alive

    @property
    def tries(self) -> int:
        """The number of tries of a run, including the first."""
        return 1 if self.writes and not self.retries.retry_read_write else 1 + self.retries.max

    @property
    def longest_s(self) -> float:
        """The longest time of a call in seconds, including its waiting and all tries."""
        retries = self.retries
        rests = sum(min(retries.backoff_s * 2.0**n, MAX_BACKOFF_S) for n in range(self.tries - 1))
        return self.queue_timeout + self.tries * (self.timeout + 10.0) + 1.2 * rests

    def _faults(self) -> Iterator[Finding]:
        yield from self._faults_of_patterns()
        yield from self._faults_of_conversation()
        yield from self._faults_of_places()
        yield from self._faults_of_access()
        ids = [skill.id for skill in self.a2a.skills]
        for index, name in enumerate(ids):
            if name in ids[:index]:  # rules refer to it by this name
                yield Finding(f"another skill has the id {name}", "S174", "rename one", ("a2a", "skills", index, "id"))
        for name in self.per_call.cli_args:
            if not _OPTION.fullmatch(name):
                hint = "write an option such as --language; a call cannot add arguments"
                yield Finding(f"{name} is not an option", "S170", hint, ("per_call", "cli_args", name), on_key=True)

    def _faults_of_patterns(self) -> Iterator[Finding]:
        told, said = TYPES.get(self.agent_type or "", (None, None))
        for key, chosen, typed in (
            ("input_pattern", self.input_pattern, told),
            ("output_pattern", self.output_pattern, said),
        ):
            if chosen is not None and typed is not None and chosen != typed:
                what = f"agent_type: {self.agent_type} means {key}: {typed}"
                yield Finding(what, "S172", "remove one of them", (key,))
        patterns = self.patterns
        if patterns.input == "json-rpc" and patterns.output == "stdout":
            hint = "write output_pattern: json-rpc, or file"
            yield Finding("JSON-RPC uses the standard output", "S172", hint, ("output_pattern",))
        if patterns.output == "json-rpc" and patterns.input != "json-rpc":
            yield Finding("JSON-RPC uses the standard input", "S172", "write input_pattern: json-rpc", on_key=True)

    def _faults_of_conversation(self) -> Iterator[Finding]:
        patterns = self.patterns
        if self.mode == "interactive" and patterns.input in ("args", "file") and self.keep_alive:
            hint = "write input_pattern: stdin or json-rpc, or keep_alive: false"
            at = ("input_pattern",) if self.input_pattern is not None else ()
            yield Finding(
                "a process that serves several turns cannot read input from arguments or files", "S172", hint, at
            )
        if not (self.keeps_processes and patterns.input == "stdin"):
            for key in ("turn_end", "newlines", "greets"):
                if key in self.model_fields_set:
                    what = f"{key} applies only to conversations on standard input"
                    yield Finding(what, "S172", "remove it", (key,), on_key=True)

    def _faults_of_places(self) -> Iterator[Finding]:
        patterns = self.patterns
        if patterns == ("file", "file") and self.input_file_template == self.output_file_template:
            # Without output in the file, its prompt would be returned as the response.
            at = ("output_file_template",)
            yield Finding("both files have the same name", "S172", "give each file its own name", at, on_key=True)
        for word, pattern, key in _PLACES:
            for index, argument in enumerate(self.args):
                if word in argument and (argument != word or getattr(patterns, key) != pattern):
                    why = "must be a whole argument" if argument != word else f"is for {key}_pattern: {pattern}"
                    yield Finding(f"{word} {why}", "S172", at=("args", index))

    def _faults_of_access(self) -> Iterator[Finding]:
        many = self.max_concurrent_executions
        if self.writes and many not in (None, 1):
            hint = "write 1, or access_type: read-only"
            yield Finding("a read-write agent executes one run at a time", "S173", hint, ("max_concurrent_executions",))
        says = self.a2a.capabilities.concurrent_execution
        if says is not None and says is not (self.places > 1):
            what = f"a maximum of {self.places} runs contradicts concurrent_execution: {str(says).lower()}"
            yield Finding(what, "S173", "remove it", ("a2a", "capabilities", "concurrent_execution"))
        if self.keeps_processes and self.max_sessions < self.places:
            what = f"{self.places} conversations may run at once, but max_sessions is {self.max_sessions}"
            yield Finding(what, "S173", f"write at least {self.places}", ("max_sessions",))
        if self.retries.retry_read_write and not self.writes:
            at = ("retries", "retry_read_write")
            yield Finding("this has no effect, because the agent is read-only", "S173", "remove it", at, on_key=True)
        yield from offer_faults(self.a2a, anonymous=self.anonymous)
