"""What would plain pycasbin answer? The judge of the engine's tests.

One enforcer per kind over all rows, the shipped models as they stand, Casbin's own role manager, no memory, and the
five functions written a second time: patterns through regular expressions, expiry through datetime, conditions as
Python beside their CEL text.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import casbin

from sidecar.errors import Reason
from sidecar.vocabulary import Chain, Principal, Question
from tests.unit.policy.world import MODELS

USE = (
    "tools/call|prompts/get|resources/read|message/send|message/stream|tasks/get|tasks/list|tasks/cancel|"
    "tasks/resubscribe|delegate"
)
DENY_ONLY, SOME_ALLOW = "!some(where (p.eft == deny))", "some(where (p.eft == allow))"

# CEL text → the same in Python; a KeyError or TypeError is CEL's error.
Predicate = Callable[[Mapping[str, Any], Principal, Principal, Question], Any]
CONDITIONS: Mapping[str, Predicate] = {
    "args.x == 1": lambda args, who, origin, asked: args["x"] == 1,
    "has(args.x) && args.x == 2": lambda args, who, origin, asked: "x" in args and args["x"] == 2,
    "!has(args.x)": lambda args, who, origin, asked: "x" not in args,
    "args.x > 1": lambda args, who, origin, asked: args["x"] > 1,
    "args.flag": lambda args, who, origin, asked: args["flag"],
    "origin.id == 'a'": lambda args, who, origin, asked: origin.name.partition(":")[2] == "a",
    "principal.kind == 'user'": lambda args, who, origin, asked: who.name.startswith("user:"),
    "call.server == 's1'": lambda args, who, origin, asked: asked.server == "s1",
    "has(call.meta.m)": lambda args, who, origin, asked: "m" in asked.meta,
}


@dataclass(frozen=True)
class Policy:
    """Rows as in the files, without their type: kind → rows of seven columns."""

    rows: Mapping[str, Sequence[Sequence[str]]]
    roles: Sequence[tuple[str, str]] = ()
    sets: Sequence[tuple[str, str]] = ()

    def files(self, order: Callable[[list[str]], list[str]] = list) -> dict[str, str]:
        files = {f"{kind}.csv": [", ".join(("p", *row)) for row in rows] for kind, rows in self.rows.items()}
        files["roles.csv"] = [f"g, {a}, {b}" for a, b in self.roles] + [f"g2, {a}, {b}" for a, b in self.sets]
        return {name: "".join(f"{row}\n" for row in order(rows)) for name, rows in files.items()}


@dataclass(frozen=True)
class Context:
    args: Mapping[str, Any]
    who: Principal
    origin: Principal
    asked: Question
    now_s: float
    force_live: bool = False
    force_holds: bool = False


@dataclass
class Plain:
    """Pure pycasbin over a policy."""

    policy: Policy
    enforcers: dict[tuple[str, frozenset[str], str], casbin.Enforcer] = field(default_factory=dict)

    def decide(self, chain: Chain, asked: Question, now_s: float) -> tuple[bool, Reason | None]:
        """The answer and, by second runs with expiry or conditions switched off, the reason."""
        reasons = set()
        last = len(chain) - 1
        for place, who in enumerate(chain):
            origin = chain[0]
            if place < last:
                obj, act, args = chain[place + 1].name, "delegate", {}
                kind = "nhi_to_nhi" if who.name.startswith("nhi:") else "user_to_nhi"
            else:
                obj, act, args, kind = asked.object, asked.action, asked.arguments, "agent_to_tool"
            reasons.add(self._reason(kind, who, obj, act, Context(args, who, origin, asked, now_s)))
            reasons |= self._guardrails(chain, place, asked, now_s)
        order = (Reason.DENIED_BY_RULE, Reason.EXPIRED, Reason.CONDITION_FALSE, Reason.NO_MATCHING_RULE)
        reason = next((reason for reason in order if reason in reasons), None)
        return reason is None, reason

    def _guardrails(self, chain: Chain, place: int, asked: Question, now_s: float) -> set[Reason]:
        if not self.policy.rows.get("guardrails"):
            return set()
        who = chain[place]
        questions = [(later.name, "delegate", {}) for later in chain[place + 1 :]]
        questions.append((asked.object, asked.action, asked.arguments))
        denied = any(
            not self._enforce("guardrails", DENY_ONLY, who, obj, act, Context(args, who, chain[0], asked, now_s))
            for obj, act, args in questions
        )
        return {Reason.DENIED_BY_RULE} if denied else set()

    def _reason(self, kind: str, who: Principal, obj: str, act: str, context: Context) -> Reason | None:
        if not self.policy.rows.get(kind):
            return Reason.NO_MATCHING_RULE

        def asks(effect: str = "", *, live: bool = False, holds: bool = False) -> bool:
            what = Context(context.args, context.who, context.origin, context.asked, context.now_s, live, holds)
            return self._enforce(kind, effect, who, obj, act, what)

        return reason_by(asks)

    def _enforce(self, kind: str, effect: str, who: Principal, obj: str, act: str, context: Context) -> bool:
        key = (who.name, who.roles, f"{kind}/{effect}")
        enforcer = self.enforcers.get(key)
        if enforcer is None:
            enforcer = self.enforcers[key] = self._enforcer(kind, effect, who)
        return bool(enforcer.enforce(who.name, obj, act, context))

    def _enforcer(self, kind: str, effect: str, who: Principal) -> casbin.Enforcer:
        conf = (MODELS / f"{'agent_to_tool' if kind == 'guardrails' else kind}.conf").read_text()
        if effect:
            conf = re.sub(r"(?m)^e = .*$", f"e = {effect}", conf)
        model = casbin.Model()
        model.load_model_from_text(conf)
        enforcer = casbin.Enforcer(model)
        enforcer.enable_auto_save(False)
        for row in self.policy.rows[kind]:
            sub, obj, act, *rest = row
            acts = "|".join(USE if word == "use" else word for word in act.split("|"))
            enforcer.add_policy(sub, obj, acts, *rest)
        granted = [(who.name, role) for role in who.roles]
        for member, role in dict.fromkeys([*self.policy.roles, *granted]):
            enforcer.add_named_grouping_policy("g", member, role)
        for element, container in self.policy.sets:
            enforcer.add_named_grouping_policy("g2", element, container)
        for name, function in {"who": who_, "glob": glob, "globs": globs, "live": live, "holds": holds}.items():
            enforcer.add_function(name, function)
        return enforcer


def reason_by(asks: Callable[..., bool]) -> Reason | None:
    """By second runs with expiry or conditions switched off."""
    if asks():
        return None
    if not asks(DENY_ONLY):
        return Reason.DENIED_BY_RULE
    if asks(SOME_ALLOW, live=True):
        return Reason.EXPIRED
    if asks(SOME_ALLOW, holds=True):
        return Reason.CONDITION_FALSE
    return Reason.EXPIRED if asks(SOME_ALLOW, live=True, holds=True) else Reason.NO_MATCHING_RULE


def glob(text: str, pattern: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL) is not None


def globs(text: str, patterns: str) -> bool:
    return any(glob(text, pattern) for pattern in patterns.split("|"))


def who_(subject: str, pattern: str, effect: str) -> bool:
    if subject == "anonymous" and effect == "allow":
        return pattern == "anonymous"
    return glob(subject, pattern)


def live(end: str, context: Context) -> bool:
    return context.force_live or end == "-" or context.now_s < datetime.fromisoformat(end).timestamp()


def holds(when: str, effect: str, context: Context) -> bool:
    if when == "-":
        return True
    if context.force_holds:
        return effect == "allow"
    try:
        value = CONDITIONS[when](context.args, context.who, context.origin, context.asked)
    except (KeyError, TypeError):
        return effect == "deny"
    return value if isinstance(value, bool) else effect == "deny"
