"""Does our engine give pycasbin's answer to any (model, policy, request)?

    python -m tests.unit.policy.judged --triples 1000000 --seed 1 --engine both

Everything is drawn from one random source: a model (matcher, effect, domains, order of columns), rows, roles, sets,
token roles, and requests. Every answer is held against plain pycasbin over the same model and rows with its own role
manager; what it names as the deciding rule must be among ours, and, under the shipped effect, our reason must be what
second runs without clock and without conditions say. Some rows that allow demand an approval, of which pycasbin knows
nothing: they change no answer, and each that matches alone must be among those that the decision waits for. A
difference ends the run with everything needed to repeat it.
"""

import argparse
import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import casbin

from sidecar.errors import Reason
from sidecar.policy import Engine
from sidecar.settings.policy import CasbinSettings
from sidecar.vocabulary import EngineName, Principal, Question
from tests.tables import tables
from tests.unit.policy.plain import (
    CONDITIONS,
    DENY_ONLY,
    SOME_ALLOW,
    USE,
    Context,
    glob,
    globs,
    holds,
    live,
    reason_by,
    who_,
)
from tests.unit.policy.world import AFTER, BEFORE, NOW, source, write

TABLES = tables("policy/judged")

SUBJECT = TABLES["subjects"]
OBJECT = TABLES["objects"]
ACTION = TABLES["actions"]
TOGETHER = (
    "((r.sub == p.sub && r.obj == p.obj) || (glob(r.sub, p.sub) && glob(r.obj, p.obj) && !(r.sub == p.sub)))",
    "(g({g}) || (who(r.sub, p.sub, p.eft) && r.obj == p.obj)) && (glob(r.obj, p.obj) || r.act == p.act)",
)
FOREIGN = ("p.sub <= r.sub", "r.act in p.act", "(p.obj >= r.obj || r.sub == p.sub)")
EFFECTS = (f"{SOME_ALLOW} && {DENY_ONLY}", SOME_ALLOW, "priority(p.eft) || deny")

USERS = ("user:a", "user:b", "user:c", "user:x/a", "user:y/a", "anonymous")
ROLES = ("role:p", "role:q", "role:r")
SUBJECTS = (*USERS, *ROLES, "*", "user:*", "user:x/*", "user:*a*")
OBJECTS = ("tool:s1/t1", "tool:s1/t2", "tool:s2/t2", "prompt:s1/t1", "tool:s1/*", "tool:*/t2", "tool:*", "*")
OBJECTS += ("set:m", "set:n")
ASKED = ("tool:s1/t1", "tool:s1/t2", "tool:s2/t2", "prompt:s1/t1", "tool:s2/t1")
ACTIONS = ("tools/call", "use", "prompts/get|tools/call", "*", "tools/*", "prompts/get")
ARGUMENTS: tuple[Mapping[str, Any], ...] = ({}, {"x": 1}, {"x": 2}, {"x": "1"}, {"flag": True})
DOMAINS = ("-", "x", "y")
COLUMNS = ("sub", "obj", "act", "expires_at", "max_calls_per_hour", "when", "eft")


@dataclass(frozen=True)
class Case:
    """One model and policy. `rows` are in the order of `columns`, those at `asking` demand an approval; `roles` with
    domains where the model has them."""

    conf: str
    effect: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    roles: tuple[tuple[str, ...], ...]
    sets: tuple[tuple[str, str], ...]
    by_domain: bool
    asking: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Request:
    who: Principal
    question: Question


def drawn_case(rng: random.Random) -> Case:
    by_domain, in_rows = rng.random() < 0.25, rng.random() < 0.5
    effect = rng.choice(EFFECTS)
    columns = list(COLUMNS) + (["dom"] if by_domain and in_rows else [])
    if rng.random() < 0.3:
        rng.shuffle(columns)
    rows = dict.fromkeys(
        tuple(_row(rng, effect)[column] for column in columns) for _ in range(rng.randint(1, rng.choice((3, 8, 20))))
    )
    members = [(one, role) for one in (*USERS[:-1], *ROLES) for role in ROLES if one < role or one not in ROLES]
    roles = [(*rng.choice(members), *([rng.choice(DOMAINS)] if by_domain else [])) for _ in range(rng.randint(0, 6))]
    links = [(obj, name) for obj in ASKED for name in ("set:m", "set:n")] + [("set:n", "set:m")]
    sets = [rng.choice(links) for _ in range(rng.randint(0, 4))]
    conf = _conf(rng, effect, columns, by_domain)
    allows = [at for at, row in enumerate(rows) if row[columns.index("eft")] == "allow"]
    return Case(
        conf=conf,
        effect=effect,
        columns=tuple(columns),
        rows=tuple(rows),
        roles=tuple(dict.fromkeys(roles)),
        sets=tuple(dict.fromkeys(sets)),
        by_domain=by_domain,
        asking=frozenset(at for at in allows if rng.random() < 0.3),
    )


def drawn_request(rng: random.Random) -> Request:
    token = frozenset(rng.sample(ROLES, k=rng.choice((0, 0, 0, 1))))
    obj = rng.choice(ASKED)
    server, _, name = obj.partition(":")[2].partition("/")
    action = rng.choice(("tools/call", "tools/call", "prompts/get", "resources/read"))
    return Request(
        Principal(rng.choice(USERS), roles=token), Question(obj, action, server, name, rng.choice(ARGUMENTS))
    )


def _row(rng: random.Random, effect: str) -> dict[str, str]:
    return {
        "sub": rng.choice(SUBJECTS),
        "obj": rng.choice(OBJECTS),
        "act": rng.choice(ACTIONS),
        "expires_at": rng.choice(("-", "-", "-", BEFORE, AFTER)),
        "max_calls_per_hour": "-",
        "when": rng.choice(("-", "-", *CONDITIONS)),
        "eft": rng.choice(("allow",) if "deny" not in effect else ("allow", "allow", "deny")),
        "dom": rng.choice(DOMAINS),
    }


def _conf(rng: random.Random, effect: str, columns: Sequence[str], by_domain: bool) -> str:
    linked = "r.sub, p.sub" + (", r.dom" if by_domain else "")
    if "dom" in columns and rng.random() < 0.3:
        linked = "r.sub, p.sub, p.dom"
    if rng.random() < 0.2:
        parts = [rng.choice(TOGETHER), rng.choice(ACTION)]
    else:
        parts = [rng.choice(SUBJECT), rng.choice(OBJECT), rng.choice(ACTION)]
    if "dom" in columns:
        parts.append("r.dom == p.dom")
    if rng.random() < 0.1:
        parts.append(rng.choice(FOREIGN))
    parts += ["live(p.expires_at, r.ctx)", "holds(p.when, p.eft, r.ctx)"]
    rng.shuffle(parts)
    request = ["sub", "obj", "act", "ctx"] + (["dom"] if by_domain else [])
    if rng.random() < 0.3:
        rng.shuffle(request)
    groups = "g = _, _, _\n" if by_domain else "g = _, _\n"
    return (
        f"[request_definition]\nr = {', '.join(request)}\n[policy_definition]\np = {', '.join(columns)}\n"
        f"[role_definition]\n{groups}g2 = _, _\n[policy_effect]\ne = {effect}\n"
        f"[matchers]\nm = {' && '.join(parts).format(g=linked)}\n"
    )


# --- the two that answer --------------------------------------------------------------------------------------------


def ours(case: Case, folder: Path, engine: EngineName) -> Engine:
    quoted = [", ".join(f'"{cell}"' if "," in cell else cell for cell in row) for row in case.rows]
    notes = [f"#: id=r{at} approval=role:p\n" if at in case.asking else "" for at in range(len(quoted))]
    rows = "".join(f"{note}p, {row}\n" for note, row in zip(notes, quoted, strict=True))
    links = [f"g, {', '.join(link)}\n" for link in case.roles] + [f"g2, {', '.join(link)}\n" for link in case.sets]
    models = write(
        folder / "models", {f"{kind}.conf": case.conf for kind in ("agent_to_tool", "user_to_nhi", "nhi_to_nhi")}
    )
    files = {"agent_to_tool.csv": rows, "roles.csv": "".join(links)}
    return Engine(source(folder / "policies", files, models=models, casbin=CasbinSettings(engine=engine)))


class Judge:
    """Plain pycasbin over a case. Roles of a token are rows of their own, so there is an enforcer for each set."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._enforcers: dict[tuple[str, frozenset[str], str], casbin.Enforcer] = {}

    def answer(self, asked: Request) -> tuple[bool, list[str]]:
        """Whether it is allowed, and the row that Casbin names."""
        return self._enforcer(asked.who, "").enforce_ex(*self._values(asked))

    def reason(self, asked: Request) -> Reason | None:
        def asks(effect: str = "", **forced: bool) -> bool:
            return bool(self._enforcer(asked.who, effect).enforce(*self._values(asked, **forced)))

        return reason_by(asks)

    def _values(self, asked: Request, *, live: bool = False, holds: bool = False) -> list[object]:
        question, who = asked.question, asked.who
        context = Context(question.arguments, who, who, question, NOW, live, holds)
        asked_of = {"obj": question.object, "act": question.action}
        values = {"sub": who.name, **asked_of, "ctx": context, "dom": domain_of(who)}
        request = self._case.conf.partition("r = ")[2].partition("\n")[0].split(", ")
        return [values[name] for name in request]

    def _enforcer(self, who: Principal, effect: str) -> casbin.Enforcer:
        key = (who.name if who.roles else "", who.roles, effect)
        if key not in self._enforcers:
            self._enforcers[key] = self._made(who, effect)
        return self._enforcers[key]

    def _made(self, who: Principal, effect: str) -> casbin.Enforcer:
        case, model = self._case, casbin.Model()
        conf = case.conf.replace(f"e = {case.effect}", f"e = {effect}") if effect else case.conf
        model.load_model_from_text(conf)
        enforcer = casbin.Enforcer(model)
        model["p"]["p"].policy = casbin_rows(case)
        granted = [(who.name, role, *([domain_of(who)] if case.by_domain else [])) for role in who.roles]
        for link in dict.fromkeys([*case.roles, *granted]):
            enforcer.add_named_grouping_policy("g", *link)
        for link in case.sets:
            enforcer.add_named_grouping_policy("g2", *link)
        for name, function in {"who": who_, "glob": glob, "globs": globs, "live": live, "holds": holds}.items():
            enforcer.add_function(name, function)
        return enforcer


def casbin_rows(case: Case) -> list[list[str]]:
    act = case.columns.index("act")
    return [[expanded(cell) if at == act else cell for at, cell in enumerate(row)] for row in case.rows]


def expanded(actions: str) -> str:
    words = [word for action in actions.split("|") for word in (USE.split("|") if action == "use" else [action])]
    return "|".join(dict.fromkeys(words))


def domain_of(who: Principal) -> str:
    space, slash, _ = who.name.partition(":")[2].partition("/")
    return space if slash else "-"


# --- the run --------------------------------------------------------------------------------------------------------


def difference(case: Case, engine: Engine, judge: Judge, asked: Request, *, reasons: bool) -> str:
    """What is not the same; "" if everything is."""
    decision = engine.decide((asked.who,), asked.question, NOW)
    for _ in range(2):  # an answer is kept when it is asked for again
        if (again := engine.decide((asked.who,), asked.question, NOW)) != decision:
            return f"first {decision}, then {again}"
    allowed, named = judge.answer(asked)
    if decision.allowed is not allowed:
        return f"ours {decision.allowed}, pycasbin {allowed}"
    mine = {(rule.subject, rule.object, "|".join(rule.actions), rule.effect) for rule in decision.links[0].rules}
    said = dict(zip(case.columns, named, strict=False))
    if named and (said["sub"], said["obj"], said["act"], said["eft"]) not in mine:
        return f"pycasbin names {named}, ours are {mine}"
    waiting = {int(rule.id.removeprefix("r")) for rule in decision.approvals}
    if waiting != (demanded(case, asked, named) if allowed and (reasons or waiting) else set()):
        return f"it waits by rows {waiting}"
    if reasons and case.effect == EFFECTS[0] and decision.reason != (told := judge.reason(asked)):
        return f"ours says {decision.reason}, second runs say {told}"
    return ""


def demanded(case: Case, asked: Request, named: Sequence[str]) -> set[int]:
    """The rows whose demand counts in an allowed call: those that allow it alone, or the one that decides."""
    if case.effect == EFFECTS[2]:
        return {casbin_rows(case).index(list(named))} & case.asking
    return {at for at in case.asking if Judge(replace(case, rows=(case.rows[at],))).answer(asked)[0]}


def judged(rng: random.Random, requests: int, *, reasons: bool, by: EngineName = "compiled") -> int:
    """Draw one case, ask it some times, and return how often; raises AssertionError at the first difference."""
    case = drawn_case(rng)
    with tempfile.TemporaryDirectory() as folder:
        engine = ours(case, Path(folder), by)
    judge = Judge(case)
    for number in range(requests):
        asked = drawn_request(rng)
        found = difference(case, engine, judge, asked, reasons=reasons and number % 8 == 0)
        assert not found, f"{found}\n{asked}\n{case.conf}\n" + "\n".join(
            map(str, (*case.rows, *case.roles, *case.sets))
        )
    assert not engine.differences.counts
    return requests


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--triples", type=int, default=1_000_000)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--engine", choices=get_args(EngineName), default="compiled")
    options.add_argument("--requests", type=int, default=40, help="for each model and policy")
    chosen = options.parse_args()
    done, cases, began = 0, 0, time.monotonic()
    while done < chosen.triples:
        done += judged(random.Random(f"{chosen.seed}/{cases}"), chosen.requests, reasons=True, by=chosen.engine)
        cases += 1
        if cases % 1000 == 0:
            print(f"{done:,} triples of {cases:,} cases, {time.monotonic() - began:.0f} s", flush=True)
    print(f"{done:,} triples of {cases:,} cases agree with pycasbin, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
