"""What was measured, in numbers that can be compared?

Medians over the rounds. A ratio is the median of the rounds' own ratios: both sides of each met the same machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.load import Heard

FEW, MANY = 1, 16
"""Connections: one caller who waits for each answer, and as many as keep the process busy."""
YARDSTICK = "passthrough"
WORTH_A_LINE = 0.01


@dataclass(frozen=True, slots=True)
class Turn:
    """One burst of load on one subject, and what it cost the subject's process."""

    heard: Heard
    cpu_us: float
    rss_mb: float


Turns = Mapping[int, Sequence[Turn]]
"""Connections → the turns of all rounds, in order."""


def results_from(
    measured: Mapping[str, Turns], ready_s: Mapping[str, float], about: Mapping[str, Any]
) -> dict[str, Any]:
    """What goes into results.json. Times in ms, CPU in µs per request, memory in MB (10^6 bytes)."""
    others = [name for name in measured if name != YARDSTICK]
    return {
        **{name: {**_numbers(turns[MANY]), "c1": _numbers(turns[FEW])} for name, turns in measured.items()},
        "ratios": {name: _ratio(measured, name, MANY) for name in others},
        "cpu_ratios": {name: _cpu_ratio(measured, name) for name in others},
        "ratios_one_connection": {name: _ratio(measured, name, FEW) for name in others},
        "added_p50_ms_one_connection": {name: _added_ms(measured, name) for name in measured if name != "direct"},
        "ready_s": ready_s.get("sidecar_memory"),
        "ready_s_valkey": ready_s.get("sidecar_valkey"),
        **about,
    }


def table_from(results: Mapping[str, Any], names: Sequence[str]) -> str:
    """The same for a person."""
    head = f"{'':20}{'req/s':>9}{'p50 ms':>9}{'p99 ms':>9}{'CPU µs':>9}{'RSS MB':>9}{'ratio':>8}"
    lines = []
    for connections, ratios in ((MANY, "ratios"), (FEW, "ratios_one_connection")):
        lines += [f"{connections} connection{'s' if connections > 1 else ''}", head]
        for name in names:
            numbers = results[name] if connections == MANY else results[name]["c1"]
            ratio = 1.0 if name == YARDSTICK else results[ratios][name]
            lines.append(_line(name, numbers, ratio))
        lines.append("")
    busy = [f"{name} {value:.2f}" for name, value in results["cpu_ratios"].items()]
    lines.append(f"ratio by CPU time, free of what else this machine does: {', '.join(busy)}")
    added = [f"{name} {value:+.3f} ms" for name, value in results["added_p50_ms_one_connection"].items()]
    lines.append(f"added to the direct call's p50, one connection: {', '.join(added)}")
    idle = results["idle_mb"]
    lines.append(
        f"ready after {results['ready_s']:.2f} s with {idle['sidecar_memory']:.0f} MB, "
        f"with Valkey {results['ready_s_valkey']:.2f} s and {idle['sidecar_valkey']:.0f} MB"
    )
    return "\n".join(lines)


def profile_from(sampled: Mapping[str, Any], cpu_us: float) -> str:
    """Functions with all they call, then lines alone: share of the samples, and of the CPU time of one call in µs."""
    count = sampled["samples"]
    lines = [f"{count} samples", "", "with all that is called"]
    lines += [_share(name, hits, count, cpu_us) for name, hits in sampled["functions"] if hits / count >= WORTH_A_LINE]
    lines += ["", "by itself"]
    lines += [_share(name, hits, count, cpu_us) for name, hits in sampled["lines"]]
    return "\n".join(lines)


GREW, GREW_US = 1.15, 2.0
"""A stage grew if it costs so much more than at the last landing, as a share of the bare proxy, and so many µs more."""


def ladder_from(stages: Mapping[str, int], cpu_us: float, bare_us: float) -> dict[str, dict[str, float]]:
    """Each stage's CPU time of one call in µs, and as a share of the bare proxy's whole call; the dearest first."""
    count = sum(stages.values())
    costs = {stage: hits / count * cpu_us for stage, hits in sorted(stages.items(), key=lambda one: -one[1])}
    costs["all"] = cpu_us
    return {stage: {"us": round(us, 1), "of_bare": round(us / bare_us, 3)} for stage, us in costs.items()}


def ladder_table(ladder: Mapping[str, Mapping[str, float]], last: Mapping[str, Mapping[str, float]]) -> str:
    """The ladder for a person, with what grew since the last one."""
    lines = [f"{'stage':14}{'CPU µs':>9}{'of bare':>9}{'last':>9}"]
    for stage, now in ladder.items():
        before = last.get(stage, {}).get("of_bare")
        more_us = 0.0 if before is None or not now["of_bare"] else now["us"] * (1 - before / now["of_bare"])
        grew = before is not None and now["of_bare"] > GREW * before and more_us > GREW_US
        told = f"{before:9.3f}" if before is not None else f"{'-':>9}"
        lines.append(f"{stage:14}{now['us']:>9.1f}{now['of_bare']:>9.3f}{told}{'  grew' if grew else ''}")
    return "\n".join(lines)


def _share(name: str, hits: int, count: int, cpu_us: float) -> str:
    return f"{hits / count:7.1%}{hits / count * cpu_us:8.1f} µs  {name}"


def _line(name: str, n: Mapping[str, float], ratio: float) -> str:
    return (
        f"{name:20}{n['rps']:>9.0f}{n['p50_ms']:>9.2f}{n['p99_ms']:>9.2f}"
        f"{n['cpu_us_per_request']:>9.0f}{n['rss_mb']:>9.1f}{ratio:>8.2f}"
    )


def _numbers(turns: Sequence[Turn]) -> dict[str, float]:
    return {
        "rps": round(median(turn.heard.rps for turn in turns), 1),
        "p50_ms": round(median(turn.heard.p50_ms for turn in turns), 3),
        "p99_ms": round(median(turn.heard.p99_ms for turn in turns), 3),
        "cpu_us_per_request": round(median(turn.cpu_us for turn in turns), 1),
        "rss_mb": round(max(turn.rss_mb for turn in turns), 1),
    }


def _ratio(measured: Mapping[str, Turns], name: str, connections: int) -> float:
    pairs = zip(measured[name][connections], measured[YARDSTICK][connections], strict=True)
    return round(median(ours.heard.rps / theirs.heard.rps for ours, theirs in pairs), 3)


def _cpu_ratio(measured: Mapping[str, Turns], name: str) -> float:
    """What the ratio would be on a machine that has nothing else to do: the yardstick's CPU time to the subject's."""
    pairs = zip(measured[name][MANY], measured[YARDSTICK][MANY], strict=True)
    return round(median(theirs.cpu_us / ours.cpu_us for ours, theirs in pairs), 3)


def _added_ms(measured: Mapping[str, Turns], name: str) -> float:
    pairs = zip(measured[name][FEW], measured["direct"][FEW], strict=True)
    return round(median(ours.heard.p50_ms - theirs.heard.p50_ms for ours, theirs in pairs), 3)
