"""What does a week at Acme look like in the evidence?

`examples/acme/traffic/traffic.yaml` says who calls what and how often; here it becomes calls at their times, each
decided by the real engine and written by the real audit writer. The same each time, to the byte.

    write_traffic(folder, out)    the audit file of the week in `out`, under the policy in `folder`
    traffic(source, week)         the calls alone

By hand: `python -m tests.flow.acme_traffic FOLDER OUT`, which writes the key of the digests as OUT.key, too.
"""

import itertools
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from sidecar.audit.digest import AuditKey
from sidecar.policy import Engine, PolicySource
from sidecar.policy_tools.policy_location import configured
from sidecar.vocabulary import Chain, Credential, Principal, Question
from tests.at_once import at_once
from tests.unit.audit.scenes import open_audit
from tests.unit.policy_tools.traffic import write_down

KEY = AuditKey.from_secret(bytes(range(32)))
ISSUER = "https://idp.acme.example/realms/acme"
TRAFFIC = "traffic/traffic.yaml"
HOUR_S, DAY_S, WORKING_DAYS = 3600, 86_400, 5
BY_DAY, BY_NIGHT = (7, 18), (0, 24)  # hours, UTC
SEED = 2026

_USING = {"tool": "tools/call", "prompt": "prompts/get", "resource": "resources/read"}


class Asked(NamedTuple):
    """One call. `at_s` in seconds since the epoch."""

    at_s: float
    chain: Chain
    question: Question


@dataclass
class Clock:
    """Both clocks, set by hand."""

    now_s: float

    def time(self) -> float:
        return self.now_s

    def monotonic(self) -> float:
        return self.now_s


def write_traffic(folder: Path, out: Path, *, key: AuditKey = KEY) -> None:
    """Decide and record the week, in the order of its calls. `folder` holds sidecar.yaml; `out` must not be there."""
    source = configured(folder / "sidecar.yaml", {}).load()
    engine = Engine(source)
    week = yaml.safe_load((folder / TRAFFIC).read_text("utf-8"))
    asked = traffic(source, week)
    clock = Clock(asked[0].at_s)
    numbers = itertools.count(1)
    out.parent.mkdir(parents=True, exist_ok=True)
    audit = open_audit(out, key=key, instance="gateway-1", clock=clock, new_id=lambda: f"{next(numbers):08d}")
    try:
        for one in asked:
            clock.now_s = one.at_s
            decision = engine.decide(one.chain, one.question, one.at_s)
            protocol, credentials = "mcp" if one.question.server else "a2a", _credentials(one.chain)
            write_down(audit, decision, one.chain, one.question, credentials=credentials, protocol=protocol)
    finally:
        at_once(audit.close())


def traffic(source: PolicySource, week: Mapping[str, Any]) -> list[Asked]:
    """Every call of the week, by time."""
    chance = random.Random(SEED)
    monday_s = datetime.combine(week["week"], time(), UTC).timestamp()
    members = {role: sorted(name for name in names if ":" in name) for role, names in source.roles.contents().items()}
    found = [one for entry in week["calls"] for one in _calls(entry, members, monday_s, chance)]
    return sorted(found, key=lambda one: one.at_s)


def _calls(
    entry: Mapping[str, Any], members: Mapping[str, Sequence[str]], monday_s: float, chance: random.Random
) -> Iterator[Asked]:
    """The calls of one entry: members and arguments each in turn, times by chance."""
    arguments = itertools.cycle(entry.get("args") or [{}])
    people = [itertools.cycle(_people(name, members)) for name in entry["as"]]
    first, last = BY_NIGHT if entry.get("night") else BY_DAY
    for _ in range(entry["times"]):
        day = chance.randrange(WORKING_DAYS)
        at_s = monday_s + day * DAY_S + chance.randrange(first * HOUR_S, last * HOUR_S) + chance.randrange(1000) / 1000
        chain = tuple(Principal(next(names), ISSUER) for names in people)
        yield Asked(at_s, chain, _question(entry, next(arguments)))


def _people(name: str, members: Mapping[str, Sequence[str]]) -> Sequence[str]:
    """The people in a role; anybody else stands for themselves."""
    return [member for member in members[name] if member.startswith("user:")] if name.startswith("role:") else [name]


def _question(entry: Mapping[str, Any], arguments: Mapping[str, Any]) -> Question:
    word, _, rest = entry["calls"].partition(":")
    if word not in _USING:
        return Question(entry["calls"], entry["action"], "")
    server, _, name = rest.partition("/")
    return Question(entry["calls"], _USING[word], server, name, arguments)


def _credentials(chain: Chain) -> tuple[Credential, ...]:
    """A person's token, and the socket of the agent that brings it along."""
    token, socket = Credential("jwt", ISSUER, "2026-11"), Credential("local")
    return tuple(token if principal.kind == "user" else socket for principal in dict.fromkeys((chain[0], chain[-1])))


def main(folder: str, out: str) -> None:
    """Write the week, and the key with which `sidecar policy replay` compares hashed arguments."""
    write_traffic(Path(folder), Path(out))
    key = Path(f"{out}.key")
    key.touch(mode=0o600)
    key.write_text(KEY.secret.hex() + "\n", "ascii")


if __name__ == "__main__":
    main(*sys.argv[1:])
