"""Compares the serving policy with another one, in a separate process, so that calls are not delayed.

The other policy is one that served before, one in a folder, or one in a folder with one file replaced. It can also
explain its answer to a question.
"""

from __future__ import annotations

import pickle
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import orjson

from sidecar.errors import ConfigError, Fault, PolicyError, fault_in
from sidecar.limits import Budgets
from sidecar.policy import Engine, PolicySource
from sidecar.policy.worker_process import give_way, pack, process_aside, unpack
from sidecar.policy_tools.diff import ComparedPolicy, difference
from sidecar.policy_tools.diff.formats import as_data, sections, summary_line
from sidecar.policy_tools.explain import explain
from sidecar.policy_tools.explanation import as_data as explanation_data
from sidecar.policy_tools.policy_location import PolicyLocation
from sidecar.vocabulary import Chain, Question

DEADLINE_S: Final = 30.0
MAX_ROWS: Final = 50_000
"""The limit for both policies together. `sidecar policy diff` compares larger ones."""
MAX_FOLDER_BYTES: Final = 16 * 2**20
MAX_RESULT_BYTES: Final = 8 * 2**20
MOST: Final = 100
"""The maximum number of reported entries in each list."""


class ReplacedFile(NamedTuple):
    """A file of the policy folder, by its relative path, with another text."""

    name: str
    text: str


class ComparisonOrder(NamedTuple):
    """What to compare. `label` names the other policy. Without a `place`, that policy is sent, and `budgets` are those
    of the serving and of the other one. `file` replaces a file of the policy at `place`, in the folder `copy`. `asked`
    is a question with its chain and time, to be explained."""

    label: str
    place: PolicyLocation | None
    file: ReplacedFile | None
    budgets: tuple[Budgets, Budgets | None]
    asked: tuple[Chain, Question, float] | None
    copy: Path | None = None


class ComparisonFailed(Exception):
    """The process returned no result before the deadline."""


def compare_aside(
    order: ComparisonOrder, serving: PolicySource, other: PolicySource | None = None
) -> Mapping[str, Any]:
    """Returns the differences in the form of `policy diff`, and the explanation by the other policy. Blocks: call it in
    a thread. Raises PolicyError for faults of the other policy, and if the two are too large; ComparisonFailed if the
    process fails or takes longer than DEADLINE_S."""
    # The folder is made and removed here, because the process may be killed.
    with tempfile.TemporaryDirectory(prefix="sidecar-policy-") if order.file else nullcontext() as made:
        return _found(order._replace(copy=None if made is None else Path(made) / "policies"), serving, other)


def _found(order: ComparisonOrder, serving: PolicySource, other: PolicySource | None) -> Mapping[str, Any]:
    try:
        with process_aside(__name__, DEADLINE_S) as (orders, results):
            pickle.dump(order, orders)
            for source in (serving, other):
                if source is not None:
                    pack(source, orders)
            orders.flush()
            content = results.read(MAX_RESULT_BYTES)
        found: Mapping[str, Any] = orjson.loads(content)
    except (OSError, orjson.JSONDecodeError):
        raise ComparisonFailed(f"the comparison failed, or took longer than {DEADLINE_S:.0f} s") from None
    if "faults" in found:
        raise PolicyError([Fault(**fault) for fault in found["faults"]])
    return found


def serve_order(orders: IO[bytes], out: IO[bytes]) -> None:
    """Carries out one order in the separate process."""
    order: ComparisonOrder = pickle.load(orders)
    serving = unpack(orders)
    other = unpack(orders) if order.place is None else None
    give_way(orders)
    try:
        found = _compared(order, serving, other)
    except ConfigError as error:
        found = {"faults": error.faults[:MOST]}
    out.write(orjson.dumps(found, default=str))
    out.flush()


def _compared(order: ComparisonOrder, serving: PolicySource, other: PolicySource | None) -> Mapping[str, Any]:
    budgets, others = order.budgets
    place, shown = order.place, Path()
    if place is not None:
        if order.file is not None and order.copy is not None:
            _replace(place.policies, order.copy, order.file)
            place = replace(place, policies=order.copy)
        shown = place.policies
        try:
            other, others = place.load(), place.budgets()
        except ConfigError as error:
            raise PolicyError([replace(one, file=_within(shown, one.file)) for one in error.faults]) from None
    assert other is not None
    assert others is not None
    before = ComparedPolicy("the policy that serves", serving, tuple(serving.own_rules), budgets)
    rules = tuple(rule._replace(file=_within(shown, rule.file)) for rule in other.own_rules)
    after = ComparedPolicy(order.label, other, rules, others, lambda file: _within(shown, file))
    if len(before.rules) + len(rules) > MAX_ROWS:
        told = f"the two policies have more than {MAX_ROWS} rows: compare them with sidecar policy diff"
        raise PolicyError([fault_in(shown, told, code="P008")])
    diff = difference(before, after)
    data = as_data(diff)
    explained = None if order.asked is None else explanation_data(explain(Engine(other), others, *order.asked))
    return {
        "label": order.label,
        "revision": other.revision,
        "is_same": not diff.anything,
        "summary": summary_line(diff),
        "counts": data["summary"],
        "regions": data["regions"][:MOST],
        "more_regions": max(0, len(data["regions"]) - MOST),
        "notes": list(diff.notes),
        "sections": [
            {"title": title, "entries": [*entries][:MOST], "more": max(0, len(entries) - MOST)}
            for title, entries in sections(diff)
        ],
        "explanation": _located(explained, shown),
    }


def _replace(policies: Path, into: Path, file: ReplacedFile, most: int = MAX_FOLDER_BYTES) -> None:
    """Copies a policy folder, with one file replaced or added. Raises PolicyError if the folder has more than `most`
    bytes, or the file is outside of it."""
    size = sum(path.stat().st_size for path in policies.rglob("*") if path.is_file())
    if size > most:
        told = f"more than {most >> 20} MiB: compare it with sidecar policy diff"
        raise PolicyError([fault_in(policies, told, code="P008")])
    shutil.copytree(policies, into, ignore=shutil.ignore_patterns(".*"))
    target = into / file.name
    if not target.resolve().is_relative_to(into.resolve()):
        raise PolicyError([fault_in(Path(file.name), "this file is outside of the policy folder", code="P001")])
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(file.text, "utf-8")


def _located(data: Any, folder: Path) -> Any:
    """Returns the data with each `file` relative to the policy folder."""
    if isinstance(data, dict):
        return {
            name: _within(folder, value) if name == "file" and isinstance(value, str) else _located(value, folder)
            for name, value in data.items()
        }
    return [_located(one, folder) for one in data] if isinstance(data, list | tuple) else data


def _within(folder: Path, file: str) -> str:
    """Returns the path of a file in the policy folder as `policies/…`; any other path unchanged."""
    path = Path(file)
    return f"policies/{path.relative_to(folder)}" if folder != Path() and path.is_relative_to(folder) else file
