"""No command ends in a traceback, whatever its arguments are and whatever stands in the files that it reads.

Each command is run in this process with one hostile value at a time. The order is drawn from a fixed seed and the
number of runs is bounded; SIDECAR_FUZZ_RUNS=0 runs them all.
"""

import asyncio
import os
import random
import shutil
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from sidecar.cli import main
from sidecar.http.signing_keys import generate
from tests.flow.world import world
from tests.tables import tables
from tests.unit.policy_tools.traffic import Sent, engine_of, record, write_policy

TABLES = tables("cli/every_command")

SHIPPED = Path(__file__).parents[3]

RUNS = int(os.environ.get("SIDECAR_FUZZ_RUNS", "120"))
# They serve, or measure for a minute; what they read, `check` reads too.
NOT_RUN = {("serve",), ("demo",), ("policy", "bench")}
ENDLESS = {"--follow", "--watch"}
TEXTS = ("", " ", "-", "é", "\udcff", "\x1b[2J", "a" * 5000, "9" * 5000, "{", "[" * 3000, "=", "a=b", "%s", "..", "*")
SAID = ("nhi:planner", "user:alice", "tool:example/a", "2027-99-99T00:00:00Z", "0001-01-01", "1e400")
PATHS = (
    "missing", ".", "policies", "sidecar.yaml", "sidecar.yaml/below", "empty", "noise", "nul", "deep.json", "deep.yaml",
    "list.yaml", "audit.jsonl", "\udcff", "n" * 300, "gone", "keys.yaml", "/dev/null", "huge.yaml", ".mcp.json",
)  # fmt: skip
NUMBERS = ("-1", "0", "1", "9" * 30, "1e400", "nan", "x")
MOMENT = "2026-01-01T00:00:00Z"
PLAUSIBLE = {"Path": "sidecar.yaml", "Duration": "1h", "IntRange": "1", "FloatRange": "1", "Moment": MOMENT}
SETTINGS = TABLES["settings"]


FILES = {
    "sidecar.yaml": SETTINGS.encode(), "keys.yaml": b"version: 1\nkeys:\n", "empty": b"", "noise": bytes(range(256)),
    "nul": bytes(64), "deep.json": b"[" * 50_000, "deep.yaml": b"a: " + b"[" * 5_000, "list.yaml": b"- 1\n- {a: b}\n",
    "audit.jsonl": b'{"v":1}\nnull\n[]\n{"event":"decision","links":5,"timestamp":7}\n\xff\n',
    "huge.yaml": b"version: " + b"9" * 5000 + b"\n", ".mcp.json": b'{"mcpServers":{"a":{"command":5},"b":null}}',
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as `init` writes it, in a folder of its own, and this process in it."""
    made = tmp_path / "operator"
    made.mkdir()
    monkeypatch.chdir(made)
    assert CliRunner().invoke(main, ["init", "."]).exit_code == 0
    (made / "gone").symlink_to("nowhere")
    write(made, FILES)
    return made


def write(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        if not (folder / name).is_file() or (folder / name).read_bytes() != content:
            (folder / name).write_bytes(content)


def leaves(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from leaves(command, (*path, name))
        else:
            yield (*path, name), command


def values_of(param: click.Parameter) -> tuple[str, ...]:
    kind = type(param.type).__name__
    if kind == "Path":
        return PATHS
    if isinstance(param.type, click.Choice):
        return (*map(str, param.type.choices), "x")
    return NUMBERS if kind in ("IntRange", "FloatRange", "FloatParamType") else (*TEXTS, *SAID)


def spoken(param: click.Parameter, value: str) -> list[str]:
    if isinstance(param, click.Argument):
        return [value]
    return [param.opts[-1]] if param.is_flag else [f"{max(param.opts, key=len)}={value}"]


def plausible(param: click.Parameter) -> str:
    if isinstance(param.type, click.Choice):
        return str(param.type.choices[0])
    return PLAUSIBLE.get(type(param.type).__name__, "nhi:planner")


def tries() -> list[list[str]]:
    """Each command with each value of each parameter, the required ones beside it plausible."""
    found = []
    for path, command in leaves(main):
        if path in NOT_RUN:
            continue
        params = [param for param in command.params if not ENDLESS & {*param.opts}]
        needed = {param: spoken(param, plausible(param)) for param in params if param.required}
        found.append([*path])
        for param in params:
            for value in values_of(param):
                words = {**needed, param: spoken(param, value)}
                options = [word for one, said in words.items() if isinstance(one, click.Option) for word in said]
                arguments = [words[one][0] for one in params if isinstance(one, click.Argument) and one in words]
                found.append([*path, *options, "--", *arguments])
    return found


def ran(words: list[str]) -> Result:
    return CliRunner().invoke(main, words, input=b"\xff\n{")


def ended_well(words: list[str], result: Result) -> None:
    wrong = result.exception
    if wrong is not None and not isinstance(wrong, SystemExit):
        raise AssertionError(f"{words}:\n{''.join(traceback.format_exception(wrong))}") from None
    assert result.exit_code in range(7), (words, result.exit_code)


def test_no_argument_ends_in_a_traceback(folder: Path) -> None:
    every = tries()
    random.Random(15).shuffle(every)
    for words in every[: RUNS or None]:
        ended_well(words, ran(words))
        write(folder, FILES)  # some of them write


async def test_no_argument_ends_in_a_traceback_where_a_sidecar_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents = 'agents: {echo: {executable: "true"}}\nschedules: {nightly: {agent: echo, cron: "0 2 * * *"}}\n'
    asking = {"status", "reload", "principal", "limits", "mcp", "agent", "schedule", "healthcheck", "decide"}
    async with world(tmp_path, settings=f"{agents}pdp: {{}}\n"):
        monkeypatch.chdir(tmp_path)
        every = [words for words in tries() if words[0] in asking and not {"-f", "--config"} & {*words}]
        random.Random(15).shuffle(every)
        for words in every[: RUNS // 2 or None]:
            ended_well(words, await asyncio.to_thread(ran, words))


# --- what stands in the files -----------------------------------------------------------------------------------------

READ = {
    **TABLES["read"],
    "audit.jsonl": (
        ["audit", "verify", "audit.jsonl"],
        ["audit", "show", "audit.jsonl"],
        ["policy", "suggest", "audit.jsonl"],
        ["policy", "replay", "audit.jsonl", "--policy=."],
        ["policy", "explain", "--record=audit.jsonl", "--decision=id-000002"],
        ["audit", "prove", "audit.jsonl", "--decision=id-000002", "--args={}", "--key=audit.key"],
    ),
}
RULES = (
    "#: id=reads owner=a@b.example\n"
    "p, nhi:*, tool:example/a*, use, 2030-01-01T00:00:00Z, 120, args.repo.startsWith('acme/'), allow\n"
    '#: id=never reason="Runbook 12"\n'
    "p, *, tool:*/delete_*, tools/call, -, -, -, deny\n"
)
WHOLE = {
    **{name: content for name, content in FILES.items() if name in ("sidecar.yaml", "keys.yaml")},
    "policies/agent_to_tool.csv": RULES.encode(),
    "policies/more.yaml": b"version: 1\nrules:\n  - {id: r1, kind: agent_to_tool, subject: nhi:planner,"
    b" object: [set:reads], actions: [use], max_calls_per_hour: 9, when: args.a == 1}\n"
    b"sets: {set:reads: [tool:example/b]}\n",
    "policies/guardrails.csv": b"p, user:mallory, tool:*, *, -, -, -, deny\n",
    "policies/roles.csv": b"g, user:alice, role:oncall\ng2, tool:example/c, set:reads\n",
    "policies/budgets.yaml": b'version: 1\ntools: {"tool:a/*": {requests_per_second: 10, burst: 20, timeout: 30s}}\n'
    b"principals: {role:x: {per_hour: 5, shared: true}}\ncosts:\n  - {object: tool:a/b, unit: usd, per_call: 0.002}\n"
    b'budgets:\n  - {principal: "nhi:*", unit: usd, per_day: 5.00}\n',
    "policies/disabled.yaml": b"version: 1\ndisabled:\n  - {principal: nhi:x, until: 2030-01-01T00:00:00Z}\n",
    "policies/pins.yaml": b"version: 1\nservers: {}\n",
    "policies/tests/a.yaml": b"suite: a\nnow: 2026-11-27T12:00:00Z\ntests:\n  - {name: one,"
    b" as: [user:alice, nhi:planner], roles: {user:alice: [role:x]}, calls: tool:example/a,"
    b" action: tools/call, args: {repo: x}, expect: deny}\n",
    "models/agent_to_tool.conf": (SHIPPED / "models" / "agent_to_tool.conf").read_bytes(),
    ".mcp.json": b'{"mcpServers": {"a": {"command": "npx", "args": ["-y"], "env": {"T": "${T}"}}, // c\n'
    b' "b": {"type": "http", "url": "http://127.0.0.1:9/mcp", "headers": {"X": "${X:-y}"}}}}\n',
    "signing-key.pem": generate("ES256").pem().encode(),
}
TOKENS = (
    b"null", b"[]", b"{}", b"-", b"\xff", b"\0", b"\xed\xa0\x80", b'"', b"'", b"1e400", b"9" * 400,
    b"!!python/object:a.B {}",
    b"&a [*a]", b"*", b"true", b"|", b",", b"\r", b"\n", b"#:", b"2027-13-01", b"\xe2\x80\xae", b"{" * 200,
    b"a.b.c(", b"@",
)  # fmt: skip


def damaged(content: bytes, dice: random.Random) -> bytes:
    """The content with one to three changes: a piece removed, repeated, or replaced by something that hurts."""
    for _ in range(dice.randint(1, 3)):
        start = dice.randrange(len(content) + 1)
        end = min(len(content), start + dice.choice((0, 1, 3, 8, 20)))
        piece = content[start:end]
        content = content[:start] + dice.choice((b"", piece * 2, *dice.sample(TOKENS, 4))) + content[end:]
    return content


def a_log(folder: Path) -> bytes:
    """A log as a sidecar writes it."""
    write_policy(folder, {"agent_to_tool": RULES, "user_to_nhi": "p, user:*, nhi:*, delegate, -, -, -, allow\n"})
    calls = [Sent(("user:alice", "nhi:planner"), "tool:example/a", args={"repo": name}) for name in ("acme/x", "b")]
    record(folder / "whole.jsonl", engine_of(folder), calls)
    return (folder / "whole.jsonl").read_bytes()


def test_no_file_ends_in_a_traceback(folder: Path) -> None:
    dice, whole = random.Random(15), {"audit.jsonl": a_log(folder), **WHOLE}
    (folder / "audit.key").write_bytes(bytes(range(32)).hex().encode())
    (folder / "audit.key").chmod(0o600)
    for name, content in whole.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    assert ran(["check"]).exit_code == 0
    for _ in range(RUNS or 20_000):
        name = dice.choice([*READ])
        (folder / name).write_bytes(damaged(whole[name], dice))
        words = dice.choice(READ[name])
        ended_well([*words, name], ran(words))
        for made in ("out", "casbin", "fresh"):
            shutil.rmtree(folder / made, ignore_errors=True)
        write(folder, whole)


# --- what is said instead -----------------------------------------------------------------------------------------


def test_a_command_that_cannot_run_says_why(folder: Path) -> None:
    for typed, said in (
        ("polcy check", "there is no command 'polcy'; did you mean \"policy\"?"),
        ("policy chek", "there is no command 'chek'; did you mean \"check\"?"),
        ("token revok", 'did you mean "revoke"?'),
        ("principal dsable nhi:a", 'did you mean "disable"?'),
        ("schedule zzz", "known here: add, list, next, pause, remove, resume, run"),
        ("token revoke --keys=noise abc", "noise: error[S315]: cannot be read: 'utf-8' codec"),
        ("agent run \udcff", "the argument '\\udcff' is not UTF-8"),
        ("policy check " + "n" * 300, "File name too long"),
    ):
        result = ran(typed.split(" "))
        assert result.exit_code in (1, 2, 3) and said in result.output, result.output
