"""Measures decisions over a million rows of Casbin policies, and what their index takes.

python -m tests.unit.policy.stock.million [ROWS]     each shape; its rows are built in another process
"""

import pickle
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import quantiles

from sidecar.policy.stock.model import StockModel, model_of
from sidecar.policy.stock.row_index import CompactRows, Row
from sidecar.policy.stock.rules import Rules, index_of_rules
from tests.unit.policy.stock.judge import entries_of
from tests.unit.policy.stock.setups import conf

USERS, REQUESTS, PIECE = 20_000, 20_000, 5_000
_WILD: Mapping[str, str] = {"keyMatch": "*", "globMatch": "*", "regexMatch": "[a-z0-9]+", "keyMatch2": ":id", "": "x"}


@dataclass(frozen=True)
class Shape:
    """A model, `roles` for each user of so many, and rows whose n-th one has this subject and this object."""

    subject: str
    object: str
    roles: int = 0
    all_roles: int = 1
    function: str = ""
    by_role: bool = True
    also: str = ""

    @property
    def model(self) -> StockModel:
        of_subject = "g(r.sub, p.sub)" if self.by_role else "r.sub == p.sub"
        of_object = f"{self.function}(r.obj, p.obj)" if self.function else "r.obj == p.obj"
        of_object = f'({of_object} || p.obj == "{self.also}")' if self.also else of_object
        return model_of(entries_of(conf(f"{of_subject} && {of_object} && r.act == p.act", roles={"g": "_, _"})))

    def rows(self, count: int) -> Iterator[Row]:
        wild = _WILD.get(self.function, "{id}")
        for at in range(count):
            values = {"user": at % USERS, "role": at % self.all_roles, "at": at, "group": at // 7, "few": at % 997}
            yield self.subject.format(**values), self.object.format(**values) + wild, "GET"

    def links(self) -> dict[str, list[Row]]:
        count = range(self.roles)
        return {"g": [(f"u{user}", f"r{(user + 7 * at) % self.all_roles}") for user in range(USERS) for at in count]}


_FUNCTIONS = ("keyMatch", "keyMatch2", "keyMatch3", "keyMatch4", "keyMatch5", "globMatch", "regexMatch")
SHAPES: Mapping[str, Shape] = {
    "exact": Shape("u{user}", "/data/{group}/", by_role=False),
    **{name: Shape("u{user}", "/data/{group}/", function=name) for name in _FUNCTIONS},
    "five roles, keyMatch": Shape("r{role}", "/data/{at}/", 1, 5, "keyMatch"),
    "40 roles of 1,000, keyMatch": Shape("r{role}", "/data/{few}/", 40, 1_000, "keyMatch"),
    "40 roles of 1,000, exact": Shape("r{role}", "/data/{few}/", 40, 1_000),
    "five roles, exact or *": Shape("r{role}", "/data/{at}/", 1, 5, also="*"),
    "one object": Shape("u{user}", "/data/", function="keyMatch2"),
}


def build(name: str, count: int) -> None:
    """Write the rows and the index of a shape to the output, as small pickles."""
    shape, out, begun = SHAPES[name], sys.stdout.buffer, time.perf_counter()
    rows = CompactRows.of(shape.rows(count), 3)
    index = index_of_rules(shape.model, rows)
    pickle.dump(time.perf_counter() - begun, out)
    for at in range(0, len(rows.texts), PIECE):
        pickle.dump(rows.texts[at : at + PIECE], out)
    for thing in ([], rows.columns, index):
        pickle.dump(thing, out)


def measure(name: str, count: int) -> str:
    shape, before_mb, texts = SHAPES[name], _memory_mb(), list[str]()
    command = [sys.executable, "-m", __spec__.name, str(count), name, "build"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as builder:
        assert builder.stdout is not None
        built_s = pickle.load(builder.stdout)
        while piece := pickle.load(builder.stdout):
            texts += piece
        rows, index = CompactRows(texts, pickle.load(builder.stdout)), pickle.load(builder.stdout)
    index_mb, begun = _memory_mb() - before_mb, time.perf_counter()
    rules = Rules(shape.model, rows, shape.links(), {}, index)
    made_s, drawn, took_us, allowed = time.perf_counter() - begun, Random(1), list[float](), 0
    for _ in range(REQUESTS):
        subject, obj, act = rows[drawn.randrange(count)]
        user = f"u{drawn.randrange(USERS)}" if shape.roles else subject
        request = user, obj.removesuffix(_WILD.get(shape.function, "{id}")) + "x", act
        at = time.perf_counter()
        decision = rules.decide(request)
        took_us.append((time.perf_counter() - at) * 1e6)
        allowed += decision.allowed
    cuts = quantiles(took_us, n=100)
    return (
        f"{name}: p50 {cuts[49]:.1f} us, p99 {cuts[98]:.1f} us, most {max(took_us) / 1000:.1f} ms, {allowed} allowed; "
        f"rows and index {index_mb:.0f} MB, built in {built_s:.1f} s; rules made in {made_s * 1000:.0f} ms"
    )


def _memory_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    if len(sys.argv) > 3:
        build(sys.argv[2], count)
    elif len(sys.argv) > 2:
        print(measure(sys.argv[2], count), flush=True)
    else:
        for name in SHAPES:  # each in a process of its own, so that its memory is its own
            subprocess.run([sys.executable, "-m", __spec__.name, str(count), name], check=True)


if __name__ == "__main__":
    main()
