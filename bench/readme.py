"""What does the README say of the last measurement?

`python -m bench.readme` writes the block between `<!-- bench -->` and `<!-- /bench -->` from results.json; a test holds
the two together.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results.json"
README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- bench -->", "<!-- /bench -->"
UNMEASURED = "Not measured yet: `make bench` measures, and writes this block."
NAMES = {
    "direct": "the upstream, directly",
    "passthrough": "a bare aiohttp proxy",
    "passthrough_tuned": "the same, tuned",
    "sidecar_memory": "sidecar, in-process limits",
    "sidecar_valkey": "sidecar, limits in Valkey",
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
            "Ratios are to the bare proxy; the second, by CPU time, is free of what else the machine did.",
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
            "- Where the time goes: `python -m bench --profile`.",
        ]
    )


def _row(name: str, results: Mapping[str, Any]) -> str:
    numbers, ratio = results[name], results["ratios"].get(name, 1.0)
    by_cpu = results["cpu_ratios"].get(name, 1.0)
    return (
        f"| {NAMES[name]} | {numbers['rps']:,.0f} | {ratio:.2f} | {numbers['p50_ms']:.2f} | {numbers['p99_ms']:.2f} "
        f"| {numbers['cpu_us_per_request']:.0f} | {by_cpu:.2f} | {numbers['rss_mb']:.0f} |"
    )


def expected() -> str:
    """What the block says, if it is current."""
    return block_from(json.loads(RESULTS.read_text("utf-8"))) if RESULTS.exists() else UNMEASURED


def block_of(page: str) -> str:
    """What the page says now. Raises ValueError where it has no block."""
    begin = page.index(BEGIN) + len(BEGIN) + 1
    return page[begin : page.index(END, begin) - 1]


def written_anew(page: str) -> str:
    """The page with its block current."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{expected()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    README.write_text(written_anew(README.read_text("utf-8")), "utf-8")
