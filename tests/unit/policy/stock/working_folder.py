"""Writes ordinary Casbin setups as working folders whose names reach every request that a setup draws."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import orjson
from click.testing import CliRunner

from sidecar.cli import main
from sidecar.policy import Engine
from sidecar.policy.grammar import NONE
from sidecar.policy.stock.expression import Text, text_fields
from sidecar.policy_tools.audit_records import question_of
from sidecar.policy_tools.policy_location import configured
from sidecar.vocabulary import Principal, Question
from tests.unit.policy.stock.judge import entries_of
from tests.unit.policy.stock.setups import Setup

_SIDES = {"sub": "principal", "subject": "principal", "obj": "object", "object": "object"}
Drawn = tuple[int, ...]


class Refused(Exception):
    """`init` refuses a setup; the message is what it printed."""


@dataclass(frozen=True)
class ServedSetup:
    """A setup in a working folder. A request is the positions of its values."""

    setup: Setup
    folder: Path
    engine: Engine

    @cached_property
    def questions(self) -> dict[Drawn, tuple[Principal, Question]]:
        """Those that were asked before."""
        return {}

    @cached_property
    def fields(self) -> list[str]:
        return fields_of(self.setup)

    def allows(self, drawn: Drawn) -> bool:
        if drawn not in self.questions:
            self.questions[drawn] = self.asked(drawn)
        subject, question = self.questions[drawn]
        return self.engine.decide((subject,), question, 1.8e9).allowed

    def asked(self, drawn: Drawn) -> tuple[Principal, Question]:
        values = dict(zip(self.fields, zip(drawn, self.setup.values, strict=True), strict=True))
        return Principal(_name("principal", values)), question_of(_name("object", values), "tools/call")


def fields_of(setup: Setup) -> list[str]:
    return [name.strip() for name in entries_of(setup.model)[f"r{setup.suffix}"].split(",")]


def values_of(setup: Setup) -> list[list[int]]:
    """The positions of the values that can be named: no name of ours stands for an empty text."""
    return [[at for at, value in enumerate(values) if value != ""] for values in setup.values]


def write_program(setup: Setup, folder: Path) -> tuple[Path, Path]:
    folder.mkdir(parents=True)
    model, policy = folder / "program.conf", folder / "rows.csv"
    model.write_text(setup.model)
    policy.write_text(setup.policy)
    return model, policy


def served(setup: Setup, folder: Path) -> ServedSetup:
    """Run `init --casbin --map` with a name for each value, and load what it wrote."""
    model, policy = write_program(setup, folder)
    said, attributes = _map(setup)
    (folder / "map.yaml").write_bytes(orjson.dumps(said))
    made = folder / "made"
    arguments = ["init", "--casbin", str(model), str(policy), "--map", str(folder / "map.yaml"), str(made)]
    result = CliRunner().invoke(main, arguments)
    if result.exit_code:
        raise Refused(result.output)
    (made / "policies" / "attributes.yaml").write_bytes(orjson.dumps({"version": 1, "attributes": attributes}))
    return ServedSetup(setup, made, Engine(configured(made / "sidecar.yaml", {}).load()))


def _map(setup: Setup) -> tuple[dict[str, Any], dict[str, Any]]:
    subjects: dict[str, Any] = {}
    objects: dict[str, Any] = {}
    attributes: dict[str, dict[str, Any]] = {}
    fields = fields_of(setup)
    for drawn in _every(setup):
        values = dict(zip(fields, zip(drawn, setup.values, strict=True), strict=True))
        person, thing = _name("principal", values), _name("object", values)
        subjects[person] = _text(values, "sub")
        objects[thing] = {"obj": _text(values, "obj"), "act": _text(values, "act")}
        for name, side in ((person, "principal"), (thing, "object")):
            for field, (at, known) in values.items():
                value, (head, _, attribute) = known[at], field.partition("_")
                if _SIDES.get(head) == side:
                    found = {attribute: value} if attribute else getattr(value, "attributes", {})
                    attributes.setdefault(name, {}).update(found)
    said = {"names": {"subjects": subjects, "objects": objects}, "roles": setup.options}
    return said | ({"use": int(setup.suffix)} if setup.suffix else {}), {k: v for k, v in attributes.items() if v}


def _every(setup: Setup) -> Iterator[Drawn]:
    return product(*values_of(setup))


def _text(values: dict[str, tuple[int, Sequence[Any]]], text: Text) -> str:
    fields = text_fields(tuple(values))
    return next((str(known[at]) for field, (at, known) in values.items() if fields.get(field) == text), NONE)


def _name(side: str, values: dict[str, tuple[int, Sequence[Any]]]) -> str:
    """`user:d1/x3-0` or `tool:x/1-2`, of the positions of what belongs to that side."""
    own = [at for field, (at, _) in values.items() if _SIDES.get(field.partition("_")[0]) == side]
    if side == "principal":
        domain = _text(values, "dom")
        return f"user:{'' if domain == NONE else domain + '/'}x{'-'.join(map(str, own))}"
    own += [at for field, (at, _) in values.items() if text_fields(tuple(values)).get(field) == "act"]
    return f"tool:x/{'-'.join(map(str, own))}"
