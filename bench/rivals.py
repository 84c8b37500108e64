"""How do other engines answer the same questions about the same policy, and how fast?

    python -m bench.rivals NAME ROWS WILD QUESTIONS BUDGET_S   measure one, in this process; `measured` starts it

Each engine gets the generated policy in the form that suits it best, parsed and indexed beforehand as far as possible.
What it cannot express is left out; its agreement with our answers is reported beside its times. `fast` (pycasbin's
FastEnforcer) looks rows up by exact subject and object, so it supports neither roles nor wildcards.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sidecar.policy import Engine, load_policy
from sidecar.policy.grammar import USED
from sidecar.policy.patterns import glob, globs, who
from sidecar.policy_tools import bench as ladder
from sidecar.policy_tools.bench import DrawnPolicy, DrawnQuestion, figures, resident_mb
from sidecar.settings.shipped_files import shipped

BUDGET_S = 60.0  # from the moment the rival gets the policy, loading included

Answers = Callable[[DrawnQuestion], bool]
_MODULES = {"pycasbin": "casbin", "fast": "casbin", "cedar": "cedarpy", "rego": "regopy"}
NAMES = tuple(_MODULES)


def is_installed(name: str) -> bool:
    """Whether the rival's package is installed."""
    return importlib.util.find_spec(_MODULES[name]) is not None


def measured(name: str, rows: int, *, wild: float, questions: int, budget_s: float = BUDGET_S) -> dict[str, Any]:
    """Measure one rival in a process of its own; `error` and no figures if it is not installed, fails, or is late."""
    failed = {"engine": name, "wild": wild, "rows": rows}
    if not is_installed(name):
        return {**failed, "error": "not installed"}
    order = [sys.executable, "-m", "bench.rivals", name, str(rows), str(wild), str(questions), str(budget_s)]
    patience_s = budget_s + 10 + rows * 80e-6  # generating and loading the policy precede the rival's clock
    try:
        done = subprocess.run(order, capture_output=True, text=True, timeout=patience_s, check=True)
        return {**failed, **json.loads(done.stdout)}
    except subprocess.TimeoutExpired:
        return {**failed, "error": f"no answer within {budget_s:.0f} s"}
    except (subprocess.CalledProcessError, ValueError) as error:
        said = getattr(error, "stderr", "") or str(error)
        return {**failed, "error": said.strip().rpartition("\n")[2][:200]}


def main() -> None:
    """Answer questions until they or the time run out, and print the figures."""
    name, rows, wild, count, budget_s = sys.argv[1], int(sys.argv[2]), *map(float, sys.argv[3:6])
    policy = ladder.drawn(rows, wild=wild)
    with TemporaryDirectory() as folder:
        ladder.write(policy, Path(folder))
        source = load_policy(shipped("models"), Path(folder))
    ours, asked = Engine(source), list(islice(ladder.questions_about(source), int(count)))
    began = time.perf_counter()
    allows = rival(name, policy, asked)
    load_s = time.perf_counter() - began
    took_ns, agreed = list[int](), 0
    for one in asked:
        start = time.perf_counter_ns()
        answer = allows(one)
        took_ns.append(time.perf_counter_ns() - start)
        agreed += answer is ours.decide(one.chain, one.question, time.time()).allowed
        if time.perf_counter() - began > budget_s * 0.9:
            break
    told = figures(took_ns, load_s, resident_mb()) | {
        "questions": len(took_ns),
        "agrees": round(agreed / len(took_ns), 3),
    }
    sys.stdout.write(json.dumps(told) + "\n")


def rival(name: str, policy: DrawnPolicy, asked: list[DrawnQuestion]) -> Answers:
    """Return the rival with the policy loaded. `asked` provides the names that it has to know."""
    makers: Mapping[str, Callable[[DrawnPolicy, list[DrawnQuestion]], Answers]] = {
        "pycasbin": _pycasbin,
        "fast": _fast,
        "cedar": _cedar,
        "rego": _rego,
    }
    return makers[name](policy, asked)


def _actions(actions: str) -> list[str]:
    return list(USED) if actions == "use" else actions.split("|")


# --- pycasbin -------------------------------------------------------------------------------------------------------


def _pycasbin(policy: DrawnPolicy, asked: list[DrawnQuestion]) -> Answers:
    from casbin import Enforcer

    return _enforcers(policy, lambda model: Enforcer(model))


def _fast(policy: DrawnPolicy, asked: list[DrawnQuestion]) -> Answers:
    from casbin import FastEnforcer

    return _enforcers(policy, lambda model: FastEnforcer(model, cache_key_order=[0, 1]))


def _enforcers(policy: DrawnPolicy, make: Callable[[str], Any]) -> Answers:
    from casbin.rbac.default_role_manager import RoleManager

    made: dict[str, Any] = {}
    for kind in ("agent_to_tool", "user_to_nhi", "nhi_to_nhi"):
        enforcer = made[kind] = make(str(shipped("models") / f"{kind}.conf"))
        rows = [
            [row.subject, row.object, "|".join(_actions(row.actions)), "-", "-", "-", row.effect]
            for row in policy.rows
            if row.kind == kind
        ]
        for row in rows:
            enforcer.model["p"]["p"].policy.append(row)
        if "g2" not in enforcer.model["g"]:  # FastModel reads only the first definition of a section
            enforcer.model.add_def("g", "g2", "_, _")
        for group, links in (("g", policy.roles), ("g2", policy.sets)):
            manager = enforcer.model["g"][group].rm = RoleManager(10)
            for member, container in links:
                manager.add_link(member, container)
        functions = {"who": who, "glob": glob, "globs": globs, "live": lambda *_: True, "holds": lambda *_: True}
        for name, function in functions.items():
            enforcer.add_function(name, function)
    empty = {kind for kind, enforcer in made.items() if not len(enforcer.model["p"]["p"].policy)}

    def allows(one: DrawnQuestion) -> bool:
        if one.kind in empty:
            return False
        return bool(made[one.kind].enforce(one.subject, one.object, one.action, "-"))

    return allows


# --- Cedar ----------------------------------------------------------------------------------------------------------


def _cedar(policy: DrawnPolicy, asked: list[DrawnQuestion]) -> Answers:
    from cedarpy import Entities, PolicySet, is_authorized

    rows = PolicySet.from_str("\n".join(_cedar_policy(row) for row in policy.rows))
    entities = Entities.from_json_str(json.dumps(_cedar_entities(policy, asked)))

    def allows(one: DrawnQuestion) -> bool:
        request = {
            "principal": {"type": "Who", "id": one.subject},
            "action": {"type": "Action", "id": f"{one.kind} {one.action}"},
            "resource": {"type": "What", "id": one.object},
        }
        return bool(is_authorized(request, rows, entities).allowed)

    return allows


def _cedar_policy(row: Any) -> str:
    word = "permit" if row.effect == "allow" else "forbid"
    actions = ", ".join(f'Action::"{row.kind} {action}"' for action in _actions(row.actions))
    conditions = []
    sides = []
    for variable, text in (("principal", row.subject), ("resource", row.object)):
        entity = "Who" if variable == "principal" else "What"
        if "*" in text:
            sides.append(variable)
            conditions.append(f'{variable}.name like "{text}"')
        else:
            sides.append(f'{variable} in {entity}::"{text}"')  # the entity itself, or its members
    when = f" when {{ {' && '.join(conditions)} }}" if conditions else ""
    return f"{word} ({sides[0]}, action in [{actions}], {sides[1]}){when};"


def _cedar_entities(policy: DrawnPolicy, asked: list[DrawnQuestion]) -> list[dict[str, Any]]:
    parents: dict[tuple[str, str], list[dict[str, str]]] = {}
    for kind, links in (("Who", policy.roles), ("What", policy.sets)):
        for member, container in links:
            parents.setdefault((kind, member), []).append({"type": kind, "id": container})
            parents.setdefault((kind, container), [])
    for one in asked:
        parents.setdefault(("Who", one.subject), [])
        parents.setdefault(("What", one.object), [])
    return [
        {"uid": {"type": kind, "id": name}, "attrs": {"name": name}, "parents": above}
        for (kind, name), above in parents.items()
    ]


# --- Rego -----------------------------------------------------------------------------------------------------------

_REGO = """
package policy
import rego.v1

subjects contains input.sub
subjects contains role if some role in data.roles[input.sub]
subjects contains pattern if { some pattern, regexp in data.subjects; regex.match(regexp, input.sub) }

objects contains input.obj
objects contains name if some name in data.sets[input.obj]
objects contains pattern if { some pattern, regexp in data.objects; regex.match(regexp, input.obj) }

matched contains effect if {
    some sub in subjects
    some obj in objects
    some row in data.rows[input.kind][sub][obj]
    input.act in row.acts
    effect := row.eft
}

default allow := false
allow if { "allow" in matched; not "deny" in matched }
"""


def _rego(policy: DrawnPolicy, asked: list[DrawnQuestion]) -> Answers:
    from regopy import Interpreter

    interpreter = Interpreter()
    interpreter.add_module("policy", _REGO)
    interpreter.add_data_json(json.dumps(_rego_data(policy)))

    def allows(one: DrawnQuestion) -> bool:
        interpreter.set_input({"kind": one.kind, "sub": one.subject, "obj": one.object, "act": one.action})
        output = interpreter.query("x := data.policy.allow")  # kept alive: its values are in its own memory
        return bool(output.binding("x").value)

    return allows


def _rego_data(policy: DrawnPolicy) -> dict[str, Any]:
    rows: dict[str, dict[str, dict[str, list[Any]]]] = {"agent_to_tool": {}, "user_to_nhi": {}, "nhi_to_nhi": {}}
    for row in policy.rows:
        said = {"acts": _actions(row.actions), "eft": row.effect}
        rows[row.kind].setdefault(row.subject, {}).setdefault(row.object, []).append(said)
    return {
        "rows": rows,
        "roles": _closures(policy.roles),
        "sets": _closures(policy.sets),
        "subjects": {row.subject: _regexp(row.subject) for row in policy.rows if "*" in row.subject},
        "objects": {row.object: _regexp(row.object) for row in policy.rows if "*" in row.object},
    }


def _closures(links: Any) -> dict[str, list[str]]:
    from sidecar.policy.roles import RoleLinks

    known = RoleLinks.of(links)
    return {name: sorted(known.closure((name,))) for name in known.parents}


def _regexp(pattern: str) -> str:
    return "^" + ".*".join(piece.replace(".", "[.]") for piece in pattern.split("*")) + "$"


if __name__ == "__main__":
    main()
