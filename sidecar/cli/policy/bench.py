"""`sidecar policy bench`: measures decisions of this policy and of generated ones."""

import os
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import click

from sidecar.cli.command import config_option, print_json
from sidecar.cli.terminal import progress
from sidecar.policy_tools.bench import QUESTIONS, SIZES, WILD, climbed, measured, questions_about
from sidecar.policy_tools.policy_location import configured

_HEAD = "engine        rows   wild        p50        p99     load   memory"


@click.command()
@config_option
@click.option(
    "--rows",
    "sizes",
    type=click.IntRange(1, 2_000_000),
    multiple=True,
    help="Numbers of rows; by default 10 to 1,000,000.",
)
@click.option(
    "--wildcards", type=click.FloatRange(0, 1), multiple=True, help="Share of rows with a wildcard; by default 0.01."
)
@click.option(
    "--questions",
    type=click.IntRange(100, 1_000_000),
    default=QUESTIONS,
    show_default=True,
    help="How many calls to decide.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the measurements as JSON.")
def bench(config: Path, sizes: Sequence[int], wildcards: Sequence[float], questions: int, as_json: bool) -> None:
    """Measure decisions of this policy, then of generated policies of growing size.

    Each decision is uncached and has one link. Each size runs in a separate process; `rss_mb` is the memory of that
    process with the policy loaded."""
    is_named = click.get_current_context().get_parameter_source("config") is not click.core.ParameterSource.DEFAULT
    steps = climbed(sizes or SIZES, wild=wildcards or (WILD,), questions=questions)
    if not as_json:
        _print_own(config, questions, is_named=is_named)
        click.echo(f"drawn policies   {_HEAD}")
    done = []
    with progress("sizes measured") as tell:
        for step in steps:
            done.append(step)
            tell(len(done))
            if not as_json:
                click.echo(_line(step))
    if as_json:
        print_json(done)


def _print_own(config: Path, questions: int, *, is_named: bool) -> None:
    """Measures the policy of this folder, if there is one; a folder that was named must have one."""
    if not is_named and not config.exists() and not (config.parent / "policies").is_dir():
        return
    began = time.perf_counter()
    source = configured(config, os.environ).load()
    asked = list(islice(questions_about(source), questions))
    if asked:
        rung = measured(source, asked, time.perf_counter() - began, now_s=time.time())
        click.echo(f"this policy      {_HEAD}")
        click.echo(_line({"wild": None, **rung}))


def _line(step: dict[str, Any]) -> str:
    wild = "" if step["wild"] is None else f"{step['wild']:.0%}"
    head = f"                 {step['engine']:8} {step['rows']:>9,} {wild:>6}"
    if "error" in step:
        return f"{head}   {step['error']}"
    took = (step["p50_us"], step["p99_us"])
    p50, p99 = (f"{us:.1f} µs" if us < 1000 else f"{us / 1000:.1f} ms" for us in took)
    return f"{head} {p50:>10} {p99:>10} {step['load_s']:6.2f} s {step['rss_mb']:5.0f} MB"
