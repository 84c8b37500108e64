"""Writes the figures of the last measurements into README.md and docs/explanation/figures.md.

`python -m bench.figures` fills each block between `<!-- NAME -->` and `<!-- /NAME -->` from the results in this folder:

    bench            results.json
    policy-bench     policy.json, reloads.json
    decisions-bench  decisions.json
    laboratory       exactness.json, kills.json, tamper.json, reloads-1000.json
    summary          results.json, policy.json, exactness.json, kills.json
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DECISIONS = HERE / "decisions.json"
RESULTS, POLICY, RELOADS = HERE / "results.json", HERE / "policy.json", HERE / "reloads.json"
OFTEN = HERE / "reloads-1000.json"
EXACTNESS, KILLS, TAMPER = HERE / "exactness.json", HERE / "kills.json", HERE / "tamper.json"
PAGES = (HERE.parent / "README.md", HERE.parent / "docs" / "explanation" / "figures.md")
UNMEASURED = "Not measured yet: `make bench` measures, and writes this block."
RIVALS = {
    "pycasbin": "pycasbin",
    "fast": "pycasbin's FastEnforcer",
    "cedar": "Cedar (cedarpy)",
    "rego": "Rego (rego-cpp)",
}
NAMES = {
    "direct": "the upstream, directly",
    "passthrough": "a bare aiohttp proxy",
    "passthrough_tuned": "the same, tuned",
    "sidecar_memory": "sidecar, in-process limits",
    "sidecar_valkey": "sidecar, limits in Valkey",
}


ASKED = {
    "evaluation": "AuthZEN evaluation of a tool call with its arguments",
    "charged": "the same, with its limits charged",
    "evaluations": "100 of them in one request",
    "ext_authz": "Envoy's ext_authz over HTTP, with the MCP message",
    "auth_request": "nginx's `auth_request`",
}


def block_from(results: Mapping[str, Any]) -> str:
    """The block's text. Every figure is one of results.json, or its neighbour's ratio."""
    few, many = results["connections"]
    added = results["added_p50_ms_one_connection"]
    rows = [_row(name, results) for name in NAMES]
    memory = max(results[name]["rss_mb"] for name in ("sidecar_memory", "sidecar_valkey"))
    return "\n".join(
        [
            f"`make bench`, {many} connections, medians of {results['rounds']} rounds of {results['seconds']} s; "
            f"{results['cores']} cores, Python {results['python']}, aiohttp {results['aiohttp']}, load by "
            f"{results['load']}, upstream {results['upstream']}, sidecar {results['sidecar']}. "
            "Ratios are to the bare proxy. The second is by CPU time, which other work on the machine affects less.",
            "",
            "| | req/s | ratio | p50 ms | p99 ms | CPU µs per call | ratio | RSS MB |",
            "|---|---|---|---|---|---|---|---|",
            *rows,
            "",
            f"- With {few} connection the sidecar adds {added['sidecar_memory']:.2f} ms to the direct call's p50, with "
            f"Valkey {added['sidecar_valkey']:.2f} ms; the bare proxy adds {added['passthrough']:.2f} ms, "
            f"the tuned one {added['passthrough_tuned']:.2f} ms (`make bench`).",
            f"- Ready after {results['ready_s']:.1f} s, with Valkey {results['ready_s_valkey']:.1f} s; at most "
            f"{memory:.0f} MB of memory (`make bench`).",
            "- A profile: `python -m bench --profile`.",
        ]
    )


def summary_block_from(
    results: Mapping[str, Any],
    steps: Sequence[Mapping[str, Any]],
    exactness: Sequence[Mapping[str, Any]],
    kills: Mapping[str, Any],
) -> str:
    """The README's table: one figure for each promise, with its command."""
    added = results["added_p50_ms_one_connection"]
    sidecar = results["sidecar_memory"]
    few = min(step["wild"] for step in steps if step["engine"] == "sidecar")
    p50 = {step["rows"]: step for step in steps if step["engine"] == "sidecar" and step["wild"] == few}
    small, large = 1_000, max(p50)
    rows = [
        ("latency added to a call", f"{added['sidecar_memory']:.2f} ms at p50, 1 connection", "make bench"),
        (
            f"throughput on {results['cores']} cores",
            f"{sidecar['rps']:,.0f} calls/s; a bare aiohttp proxy: {results['passthrough']['rps']:,.0f}, "
            f"tuned: {results['passthrough_tuned']['rps']:,.0f}",
            "make bench",
        ),
        ("start, memory", f"{results['ready_s']:.1f} s, {sidecar['rss_mb']:.0f} MB", "make bench"),
        (
            "one decision",
            f"{_time(p50[small], 'p50_us')} with {small:,} rules, {_time(p50[large], 'p50_us')} with {large:,}",
            "python -m bench.policy",
        ),
        *(
            (
                f"one limit of {told['limit']:,} shared by {told['processes']} processes",
                f"{told['admitted']:,} of {told['attempts']:,} attempts admitted",
                "python -m bench.exactness",
            )
            for told in exactness[:1]
        ),
        (
            f"killed {kills['kills']:,} times under load",
            f"{kills['answered_without_record']:,} of {kills['answered']:,} answered calls lack an audit record",
            "python -m bench.kills",
        ),
    ]
    lines = [f"| {what} | {figure} | `{command}` |" for what, figure, command in rows]
    return "\n".join(["| measured | figure | command |", "|---|---|---|", *lines])


def _row(name: str, results: Mapping[str, Any]) -> str:
    numbers, ratio = results[name], results["ratios"].get(name, 1.0)
    by_cpu = results["cpu_ratios"].get(name, 1.0)
    return (
        f"| {NAMES[name]} | {numbers['rps']:,.0f} | {ratio:.2f} | {numbers['p50_ms']:.2f} | {numbers['p99_ms']:.2f} "
        f"| {numbers['cpu_us_per_request']:.0f} | {by_cpu:.2f} | {numbers['rss_mb']:.0f} |"
    )


def policy_block_from(steps: Sequence[Mapping[str, Any]], reloads: Mapping[str, Any]) -> str:
    """The ladder as a table: ours, then the others' medians; and what a reload does to the calls."""
    sizes = sorted({step["rows"] for step in steps})
    ours = {(step["wild"], step["rows"]): step for step in steps if step["engine"] == "sidecar"}
    few, many = sorted({wild for wild, _ in ours})
    lines = [
        "| rules | " + " | ".join(f"{rows:,}" for rows in sizes) + " |",
        "|---|" + "---|" * len(sizes),
        _ladder(f"sidecar, {few:.0%} wildcards: p50", [_time(ours.get((few, rows)), "p50_us") for rows in sizes]),
        _ladder("p99", [_time(ours.get((few, rows)), "p99_us") for rows in sizes]),
        _ladder("time to load", [_seconds(ours[few, rows]["load_s"]) for rows in sizes]),
        _ladder("memory, all in all", [f"{ours[few, rows]['rss_mb']:.0f} MB" for rows in sizes]),
        _ladder(f"sidecar, {many:.0%} wildcards: p50", [_time(ours.get((many, rows)), "p50_us") for rows in sizes]),
    ]
    for engine, name in RIVALS.items():
        found = {step["rows"]: step for step in steps if step["engine"] == engine}
        lines.append(_ladder(f"{name}: p50", [_time(found.get(rows), "p50_us") for rows in sizes]))
    return "\n".join([*lines, "", _reloads(reloads)])


def decisions_block_from(measured: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """What each question costs beside a bare handler."""
    one, many = measured["1"], measured["16"]
    lines = [
        "| question | decisions/s | p50 added, 1 connection | 16 connections | CPU | the bare handler's |",
        "|---|---|---|---|---|---|",
    ]
    for name, told in ASKED.items():
        n = many[name]
        added = f"{one[name]['added_p50_ms']:.2f} ms | {n['added_p50_ms']:.1f} ms"
        costs = f"{n['cpu_us']:.0f} µs a decision | {n['bare_cpu_us']:.0f} µs a request"
        lines.append(f"| {told} | {n['decisions_s']:,.0f} | {added} | {costs} |")
    return "\n".join(lines)


def _seconds(spent_s: float) -> str:
    return f"{spent_s:.1f} s" if spent_s >= 0.1 else f"{spent_s * 1000:.0f} ms"


def _ladder(name: str, cells: Sequence[str]) -> str:
    return f"| {name} | " + " | ".join(cells) + " |"


def _time(step: Mapping[str, Any] | None, name: str) -> str:
    if step is None or name not in step:
        error: str = (step or {}).get("error", "–")
        return error.replace("no answer within 60 s", "over 60 s")
    took_us = step[name]
    told = f"{took_us:.1f} µs" if took_us < 1_000 else f"{took_us / 1_000:.1f} ms"
    return told if step.get("agrees", 1) > 0.999 else f"{told} ({step['agrees']:.0%} right)"


def _reloads(told: Mapping[str, Any]) -> str:
    return (
        f"`python -m bench.reloads`: {told['rows']:,} rules reloaded {told['reloads']:,} times under {told['calls']:,} "
        f"calls: {told['calls_failed']} failed, none of {told['decisions']:,} decisions mixed two revisions, the event "
        f"loop never blocked for longer than {told['stall_ms_max']:.0f} ms (without reloads "
        f"{told['stall_ms_max_without_reloads']:.0f} ms)."
    )


def laboratory_block_from(
    exactness: Sequence[Mapping[str, Any]],
    kills: Mapping[str, Any],
    tamper: Mapping[str, Any],
    reloads: Mapping[str, Any],
) -> str:
    """What the failure laboratory found, a line for each way to fail."""
    lines = (*map(_exact, exactness), _killed(kills), _reloaded(reloads), _tampered(tamper))
    return "\n".join(lines)


def _exact(told: Mapping[str, Any]) -> str:
    over_http = told["over"] == "http"
    who = f"through {told['processes']} whole sidecars" if over_http else f"of {told['processes']} processes"
    reached = f" ({told['reached']:,} reached the server)" if over_http else ""
    busy = f"; {told['other']:,} received 503, as the store was busy for longer than 80 ms" if told["other"] else ""
    return (
        f"- **{told['attempts']:,} attempts** {who} on a limit of {told['limit']:,}: {told['admitted']:,} admitted"
        f"{reached}, and refused calls moved {told['partial'] or 'no'} counter{busy} "
        f"(`python -m bench.exactness{' --over-http' if over_http else ''}`)."
    )


def _killed(told: Mapping[str, Any]) -> str:
    return (
        f"- **Killed {told['kills']:,} times under load** (`python -m bench.kills`): of {told['answered']:,} answered "
        f"calls, {told['answered_without_record']:,} have no terminal record and {told['answered_with_two_records']:,} "
        f"have two. {told['executed_without_decision']:,} calls reached an upstream without a decision on record, and "
        f"{told['records']:,} records are one chain that verifies. Of "
        f"{told['message_tasks'] + told['ordered_tasks']:,} tasks, {told['sent_to_the_agent_twice']:,} were sent "
        "twice, and "
        f"{sum(told['tasks_and_sessions_inconsistent'].values()):,} were lost, shown to another caller, or reported in "
        f"a state that the agent does not have. {told['unknown_whether_sent']:,} were being sent at a kill and are "
        f"reported as unknown. Slots were free again within {told['slots_back_s']:.0f} s (a lease is 60 s)."
    )


def _reloaded(told: Mapping[str, Any]) -> str:
    command = f"python -m bench.reloads --rows {told['rows']} --reloads {told['reloads']}"
    lost = told["streams_lost"] + told["streams_lost_early"]
    return (
        f"- **{told['reloads']:,} reloads under load** (`{command}`): {told['calls_failed']:,} of {told['calls']:,} "
        f"calls failed, {told['calls_late']:,} took longer than 2 s, and no decision mixed two revisions. {lost:,} "
        f"streams with an unchanged permission ended; each of {told['streams_revoked']:,} without one ended within "
        f"{told['streams_revoked_within_s']:.1f} s."
    )


def _tampered(told: Mapping[str, Any]) -> str:
    return (
        f"- **Tampered with everywhere** (`python -m bench.tamper`): each of {told['lines']:,} lines was changed, "
        f"sealed again, removed, swapped, doubled and cut off, and so was every byte of the anchor. `audit verify` "
        f"found {told['found']:,} of {told['attempts']:,} attempts, {told['placed']:,} with their position. It also "
        f"read the whole log for {told['verified_whole_too']:,} of them; {len(told['differ']):,} results differed."
    )


def written_anew(page: str) -> str:
    """The page with its blocks current."""
    for name, text in blocks().items():
        before, begin, rest = page.partition(f"<!-- {name} -->")
        if begin:
            page = f"{before}{begin}\n{text}\n<!-- /{name} -->{rest.partition(f'<!-- /{name} -->')[2]}"
    return page


def blocks() -> Mapping[str, str]:
    """What each block says, if it is current."""
    found = dict.fromkeys(("bench", "policy-bench", "decisions-bench", "laboratory", "summary"), UNMEASURED)
    if RESULTS.exists():
        found["bench"] = block_from(_read(RESULTS))
    if POLICY.exists() and RELOADS.exists():
        found["policy-bench"] = policy_block_from(_read(POLICY), _read(RELOADS))
    if DECISIONS.exists():
        found["decisions-bench"] = decisions_block_from(_read(DECISIONS))
    if all(path.exists() for path in (EXACTNESS, KILLS, TAMPER, OFTEN)):
        found["laboratory"] = laboratory_block_from(_read(EXACTNESS), _read(KILLS), _read(TAMPER), _read(OFTEN))
    if all(path.exists() for path in (RESULTS, POLICY, EXACTNESS, KILLS)):
        found["summary"] = summary_block_from(_read(RESULTS), _read(POLICY), _read(EXACTNESS), _read(KILLS))
    return found


def _read(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


def stale_blocks(page: str) -> list[str]:
    """Names of the page's blocks that are neither unmeasured nor current."""
    told = re.findall(r"^<!-- ([a-z-]+) -->\n(.*?)\n<!-- /\1 -->$", page, re.DOTALL | re.MULTILINE)
    return [name for name, text in told if text not in (UNMEASURED, blocks()[name])]


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(written_anew(path.read_text("utf-8")), "utf-8")
