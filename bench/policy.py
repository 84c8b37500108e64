"""How long does a decision take, from ten rows to a million, and next to other engines?

    python -m bench.policy            measure everything (a quarter of an hour), keep the figures, draw the picture
    python -m bench.policy --ours     measure ours anew beside what was measured of the others
    python -m bench.policy --draw     only draw it again

Ours is measured by `sidecar policy bench`, the others by `bench.rivals`; this keeps the figures in
`bench/policy.json` and draws `docs/pictures/policy-bench.svg`.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.rivals import NAMES, measured
from sidecar.policy_tools.bench import OURS, QUESTIONS, SIZES, WILD, climbed

HERE = Path(__file__).parent
FIGURES, PICTURE = HERE / "policy.json", HERE.parent / "docs" / "pictures" / "policy-bench.svg"
MORE_WILD = 0.2

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 460, 70, 190, 50, 50
DECADES_US = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000)
COLOURS = {"sidecar": "#0b7a53", "pycasbin": "#b3402a", "fast": "#d08a2e", "cedar": "#5b53b0", "rego": "#4d7a93"}
_LABELS = {"fast": "pycasbin FastEnforcer", "cedar": "Cedar (cedarpy)", "rego": "Rego (rego-cpp)"}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--draw", action="store_true")
    options.add_argument("--ours", action="store_true")
    chosen = options.parse_args()
    if chosen.ours:
        others = [step for step in json.loads(FIGURES.read_text()) if step["engine"] != OURS]
        _keep([*_told(climbed(SIZES, wild=(WILD, MORE_WILD))), *others])
    elif not chosen.draw:
        _keep(list(_told(_measured())))
    PICTURE.write_text(picture(json.loads(FIGURES.read_text())))
    print(f"{PICTURE} drawn")


def _keep(figures: Sequence[dict[str, Any]]) -> None:
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n")


def _measured() -> Iterable[dict[str, Any]]:
    for rows in SIZES:
        yield from climbed((rows,), wild=(WILD,))
        yield from (measured(name, rows, wild=WILD, questions=QUESTIONS) for name in NAMES)
    yield from climbed(SIZES, wild=(MORE_WILD,))


def _told(steps: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    for step in steps:
        print(step, flush=True)
        yield step


# --- the picture ----------------------------------------------------------------------------------------------------


def picture(figures: Sequence[dict[str, Any]]) -> str:
    """Medians over sizes, both as powers of ten."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"',
        ' font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="#fff"/>',
        f'<text x="{LEFT}" y="24" font-size="13">One decision, median, by the number of rules</text>',
        *_grid(),
    ]
    lines = sorted(_lines(figures).items(), key=lambda line: line[1][-1][1])
    for (engine, wild), points in lines:
        parts += _line(engine, wild, points)
    return "\n".join([*parts, *_labels(lines), "</svg>"]) + "\n"


def _lines(figures: Sequence[dict[str, Any]]) -> dict[tuple[str, float], list[tuple[int, float]]]:
    found: dict[tuple[str, float], list[tuple[int, float]]] = {}
    for step in figures:
        if "p50_us" in step:
            found.setdefault((step["engine"], step["wild"]), []).append((step["rows"], step["p50_us"]))
    return found


def _grid() -> Iterable[str]:
    for decade in DECADES_US:
        y = _y(decade)
        name = f"{decade} µs" if decade < 1_000 else f"{decade // 1_000} ms"
        name = name if decade < 1_000_000 else f"{decade // 1_000_000} s"
        yield f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{name}</text>'
    for exponent in range(1, 7):
        x = _x(10**exponent)
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#eee"/>'
        yield f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{10**exponent:,}</text>'


def _line(engine: str, wild: float, points: Sequence[tuple[int, float]]) -> Iterable[str]:
    path = " ".join(f"{_x(rows):.1f},{_y(p50_us):.1f}" for rows, p50_us in points)
    dashes = ' stroke-dasharray="5 4"' if wild > WILD else ""
    yield f'<polyline points="{path}" fill="none" stroke="{COLOURS[engine]}" stroke-width="2"{dashes}/>'
    for rows, p50_us in points:
        yield f'<circle cx="{_x(rows):.1f}" cy="{_y(p50_us):.1f}" r="3" fill="{COLOURS[engine]}"/>'


def _labels(lines: Sequence[tuple[tuple[str, float], Sequence[tuple[int, float]]]]) -> Iterable[str]:
    """At the right, in the order of the lines' ends, none on top of another."""
    floor = float(HEIGHT)
    for (engine, wild), points in lines:
        y = min(_y(points[-1][1]) + 4, floor - 15)
        floor = y
        name = _LABELS.get(engine, engine) + (f", {wild:.0%} wildcards" if wild > WILD else "")
        stop = "" if points[-1][0] == SIZES[-1] else f" (to {points[-1][0]:,})"
        yield f'<text x="{WIDTH - RIGHT + 10}" y="{y:.1f}" fill="{COLOURS[engine]}">{name}{stop}</text>'


def _x(rows: float) -> float:
    return LEFT + (math.log10(rows) - 1) / 5 * (WIDTH - LEFT - RIGHT)


def _y(took_us: float) -> float:
    share = math.log10(max(took_us, DECADES_US[0])) / math.log10(DECADES_US[-1])
    return HEIGHT - BOTTOM - min(share, 1.0) * (HEIGHT - TOP - BOTTOM)


if __name__ == "__main__":
    main()
