"""Measures decisions under this policy, and under generated policies of given sizes.

All policies and questions are drawn from random sources with fixed seeds, so that every run and every engine gets the
same ones. A policy of n rows has n / 10 identities, each with up to three roles, some of them nested, and servers with
tools, some of them in sets. Four rows in five are about agents and tools, the others about users and agents, and agents
and agents. A given share of the rows has a wildcard, one in twenty denies, one in four names a role; of those about
tools, one in fifty names a set.

Each size is measured in a separate process, so that its memory is separate too. Decisions are uncached: after a
warm-up, each question is asked once, and the engine's caches are cleared before it. The times are those of
`Engine.decide` as the server calls it, from the question to the decision with links and rules.
"""

import gc
import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from sidecar.policy import Engine, PolicySource
from sidecar.policy.worker_process import load_policy_aside
from sidecar.policy_tools.audit_records import question_of
from sidecar.policy_tools.casbin_calls import RowCall, RowCalls, is_asked
from sidecar.settings.shipped_files import shipped
from sidecar.vocabulary import PermissionKind, Principal, Question

SIZES = (10, 1_000, 100_000, 1_000_000)
WILD = 0.01  # share of all rows
DENIES, BY_ROLE, BY_SET = 0.05, 0.25, 0.02
_KINDS = (("agent_to_tool", 0.8), ("user_to_nhi", 0.1), ("nhi_to_nhi", 0.1))
_SHARES = {PermissionKind(kind): share for kind, share in _KINDS}
OURS = "sidecar"
QUESTIONS = 20_000
WARM_UP = 500
STEP_S = 310.0  # deadline of one measurement, in addition to 40 us for each row


class DrawnRow(NamedTuple):
    kind: str
    subject: str
    object: str
    actions: str
    effect: str


class DrawnPolicy(NamedTuple):
    """A generated policy. `roles` and `sets` are (member, container) pairs."""

    rows: Sequence[DrawnRow]
    roles: Sequence[tuple[str, str]]
    sets: Sequence[tuple[str, str]]


class DrawnQuestion(NamedTuple):
    kind: str
    subject: str
    object: str
    action: str

    @property
    def chain(self) -> tuple[Principal, ...]:
        return (Principal(self.subject),)

    @property
    def question(self) -> Question:
        return question_of(self.object, self.action)


def drawn(rows: int, *, wild: float = WILD, seed: int = 1) -> DrawnPolicy:
    """Returns a generated policy with this number of distinct rows. `wild` is the share of rows with a wildcard."""
    world = _World(rows, random.Random(f"{seed}/{rows}/{wild}"))
    found: dict[tuple[str, str, str, str], DrawnRow] = {}
    while len(found) < rows:
        row = world.row(wild)
        found.setdefault(row[:4], row)
    return DrawnPolicy(tuple(found.values()), tuple(world.roles()), tuple(world.sets()))


def questions_about(source: PolicySource, *, seed: int = 2) -> Iterator[DrawnQuestion]:
    """Yields an endless series of questions about a policy's rows; none without rows. Half of them match one row, the
    others take the subject and action of one and the object of another."""
    rng = random.Random(seed)
    shares = {
        kind: share for kind, share in _SHARES.items() if len(source.tables.get(kind, ())) or is_asked(source, kind)
    }
    stock = {kind: RowCalls(source.stock[kind], source.casbin.names) for kind in shares if kind in source.stock}
    members = {role: member for member, roles in source.roles.parents.items() for role in roles}
    elements = {name: element for element, names in source.sets.parents.items() for name in names}
    while shares:
        (kind,) = rng.choices([*shares], [*shares.values()])
        if kind in stock:
            yield _casbin_question(stock[kind], rng)
            continue
        table = source.tables[kind]
        row = table.rule(rng.randrange(len(table)))
        subject, obj = row.subject, (row if rng.random() < 0.5 else table.rule(rng.randrange(len(table)))).object
        while subject in members:
            subject = members[subject]
        while obj in elements:
            obj = elements[obj]
        if subject == "*" or subject.startswith("role:"):
            subject = "user:x" if kind is PermissionKind.USER_TO_NHI else "nhi:x"
        if obj == "*" or obj.startswith("set:"):
            obj = "tool:x/x" if kind is PermissionKind.AGENT_TO_TOOL else "nhi:x"
        action = next(iter(row.actions))
        yield DrawnQuestion(kind.value, *(name.replace("*", "x") for name in (subject, obj, action)))


def _casbin_question(calls: RowCalls, rng: random.Random) -> DrawnQuestion:
    """Draws a question about rows of a Casbin model; about names that no row has, if no call applies to the row."""
    count = max(1, len(calls.table))
    row, other = rng.randrange(count), rng.randrange(count)
    found = calls.of(row, None if rng.random() < 0.5 else other) if len(calls.table) else None
    return DrawnQuestion(calls.table.kind.value, *(found or RowCall("user:x", "tool:x/x", "tools/call")))


def write(policy: DrawnPolicy, folder: Path) -> None:
    """Writes a generated policy as CSV files."""
    files: dict[str, list[str]] = {f"{kind}.csv": [] for kind, _ in _KINDS}
    for row in policy.rows:
        files[f"{row.kind}.csv"].append(f"p, {row.subject}, {row.object}, {row.actions}, -, -, -, {row.effect}\n")
    links = [f"g, {member}, {role}\n" for member, role in policy.roles]
    files["roles.csv"] = links + [f"g2, {element}, {container}\n" for element, container in policy.sets]
    for name, lines in files.items():
        (folder / name).write_text("".join(lines))


class _World:
    def __init__(self, rows: int, rng: random.Random) -> None:
        self._rng = rng
        self._agents = max(3, rows // 20)
        self._users = max(3, rows // 20)
        self._roles = max(2, rows // 200)
        self._servers = max(2, min(2_000, rows // 50))
        self._tools = max(5, min(50, rows // 4))
        self._sets = max(1, rows // 1_000)

    def row(self, wild: float) -> DrawnRow:
        rng = self._rng
        kind = rng.choices([kind for kind, _ in _KINDS], [share for _, share in _KINDS])[0]
        subject, obj = self._subject(kind), self._object(kind)
        if rng.random() < wild:
            subject, obj = self._widened(kind, subject)
        elif rng.random() < BY_SET and kind == "agent_to_tool":
            obj = f"set:s{rng.randrange(self._sets)}"
        effect = "deny" if rng.random() < DENIES or subject == "*" else "allow"
        actions = ("tools/call", "tools/call|prompts/get") if kind == "agent_to_tool" else ("message/send",)
        return DrawnRow(kind, subject, obj, rng.choice(("use", *actions)), effect)

    def roles(self) -> Iterator[tuple[str, str]]:
        rng = self._rng
        for word, count, prefix in (("nhi:a", self._agents, "role:a"), ("user:u", self._users, "role:u")):
            names = [f"{prefix}{number}" for number in range(self._roles)]
            for number, name in enumerate(names):
                if number % 4 == 3:
                    yield name, names[rng.randrange(number)]
            for member in range(count):
                for role in sorted(rng.sample(names, k=min(len(names), rng.choice((1, 2, 3))))):
                    yield f"{word}{member}", role

    def sets(self) -> Iterator[tuple[str, str]]:
        for number in range(self._sets):
            for obj in sorted({self._object("agent_to_tool") for _ in range(10)}):
                yield obj, f"set:s{number}"

    def _subject(self, kind: str) -> str:
        rng = self._rng
        if rng.random() < BY_ROLE:
            return f"role:{'u' if kind == 'user_to_nhi' else 'a'}{rng.randrange(self._roles)}"
        return f"user:u{rng.randrange(self._users)}" if kind == "user_to_nhi" else f"nhi:a{rng.randrange(self._agents)}"

    def _object(self, kind: str) -> str:
        rng = self._rng
        if kind == "agent_to_tool":
            return f"tool:s{rng.randrange(self._servers)}/get_{rng.randrange(self._tools)}"
        return f"nhi:a{rng.randrange(self._agents)}"

    def _widened(self, kind: str, subject: str) -> tuple[str, str]:
        rng = self._rng
        if kind != "agent_to_tool":
            return subject, f"nhi:a{rng.randrange(self._agents)}*"
        server, tool = f"s{rng.randrange(self._servers)}", rng.randrange(self._tools)
        names = (f"{server}/*", f"{server}/get_{tool}*", f"*/delete_{tool}*", f"*/list_{tool}*_x")
        obj = f"tool:{rng.choice(names)}"
        return rng.choices((subject, f"nhi:a{rng.randrange(self._agents)}*", "*"), (90, 8, 2))[0], obj


def measured(source: PolicySource, asked: Iterable[DrawnQuestion], load_s: float, *, now_s: float) -> dict[str, Any]:
    """Measures an engine, one question after the other. Returns `figures`, the number of rows, and the share of
    questions that are allowed. `load_s` is the time that reading the policy took; `asked` must not be empty."""
    began = time.perf_counter()
    engine = Engine(source)
    load_s += time.perf_counter() - began
    memory_mb = resident_mb()
    asking = [(one.chain, one.question) for one in asked]
    took_ns, allowed = list[int](), 0
    gc.collect()
    gc.freeze()  # like the server after its start
    for chain, question in asking[:WARM_UP]:
        engine.decide(chain, question, now_s)
    for chain, question in asking:
        engine.forget()
        start = time.perf_counter_ns()
        decision = engine.decide(chain, question, now_s)
        took_ns.append(time.perf_counter_ns() - start)
        allowed += decision.allowed
    told = figures(took_ns, load_s, memory_mb)
    stock = {id(table.source): len(table) for table in source.stock.values()}
    rows = sum(map(len, source.tables.values())) + sum(stock.values())
    return {"engine": OURS, "rows": rows, **told, "allowed": round(allowed / len(took_ns), 3)}


def figures(took_ns: list[int], load_s: float, memory_mb: float) -> dict[str, Any]:
    """Returns the percentiles `p50_us` and `p99_us` of the decision times, `load_s`, and the memory of the process in
    MiB, `rss_mb`. Sorts `took_ns`."""
    took_ns.sort()
    p50, p99 = (took_ns[len(took_ns) * share // 100] / 1000 for share in (50, 99))
    return {"p50_us": p50, "p99_us": p99, "load_s": round(load_s, 3), "rss_mb": round(memory_mb, 1)}


def resident_mb() -> float:
    """Returns the memory of this process in MiB; its peak on systems without /proc."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize() / 2**20
    except (OSError, ValueError, IndexError):
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most / (2**20 if sys.platform == "darwin" else 2**10)


def climbed(
    sizes: Sequence[int] = SIZES, *, wild: Sequence[float] = (WILD,), questions: int = QUESTIONS
) -> Iterator[dict[str, Any]]:
    """Yields the measurement of each size and share of wildcards; one that failed has an `error` and no figures. Blocks
    for the time of each measurement."""
    for share, rows in product(wild, sizes):
        with TemporaryDirectory() as folder:
            write(drawn(rows, wild=share), Path(folder))
            order = [sys.executable, "-m", "sidecar.policy_tools.bench", folder, str(questions)]
            told: dict[str, Any] = {"engine": OURS, "wild": share, "rows": rows}
            try:
                done = subprocess.run(order, capture_output=True, text=True, check=True, timeout=STEP_S + rows * 40e-6)
                told |= json.loads(done.stdout)
            except subprocess.TimeoutExpired as late:
                told["error"] = f"no answer within {late.timeout:.0f} s"
            except (subprocess.CalledProcessError, ValueError) as error:
                said = getattr(error, "stderr", "") or str(error)
                told["error"] = said.strip().rpartition("\n")[2][:200]
            yield told


def main(folder: Path, count: int) -> None:
    """Measures a generated policy in this process, which does nothing else, and writes the figures to standard
    output."""
    began = time.perf_counter()
    source = load_policy_aside(shipped("models"), folder)
    load_s = time.perf_counter() - began
    asked = list(islice(questions_about(source), count))
    sys.stdout.write(json.dumps(measured(source, asked, load_s, now_s=time.time())))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
