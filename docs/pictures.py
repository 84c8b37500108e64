"""Draws the pictures of the documentation as SVG, from the descriptions in this file.

`python -m docs.make` writes them into docs/pictures/. Each has an opaque background and follows the reader's colour
scheme, so that it is readable on a light and on a dark page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

_STYLE = """\
<style>
.page { fill: #ffffff; stroke: #d0d7de } .text { fill: #1f2328 } .small { fill: #59636e } .line { stroke: #59636e }
.tip { fill: #59636e } .box { fill: #f6f8fa; stroke: #b6bec7 } .main { fill: #e4e9fb; stroke: #3f51b5 }
.no { fill: #fdecea; stroke: #c62828 } .fact { fill: #e8f3ea; stroke: #2e7d32 }
@media (prefers-color-scheme: dark) {
.page { fill: #161b22; stroke: #3d444d } .text { fill: #f0f6fc } .small { fill: #b3bcc6 } .line { stroke: #b3bcc6 }
.tip { fill: #b3bcc6 } .box { fill: #21262d; stroke: #656c76 } .main { fill: #232b52; stroke: #8c9eff }
.no { fill: #3c1618; stroke: #ef9a9a } .fact { fill: #15301b; stroke: #81c784 }
}
text { font-family: system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; font-size: 14px }
.title { font-weight: 600 } .small { font-size: 12px }
</style>"""
_ARROW_HEAD = (
    '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto-start-reverse">'
    '<path class="tip" d="M0 0 8 4 0 8z"/></marker>'
)
_LINE_PX = 17


@dataclass(frozen=True)
class Box:
    """A rectangle with a title and lines below it. `kind` is its CSS class."""

    x: int
    y: int
    width: int
    height: int
    title: str
    lines: tuple[str, ...] = ()
    kind: str = "box"

    def svg(self) -> str:
        centre = self.x + self.width // 2
        top = self.y + (self.height - _LINE_PX * (1 + len(self.lines))) // 2 + 13
        parts = [
            f'<rect class="{self.kind}" x="{self.x}" y="{self.y}" width="{self.width}" height="{self.height}" rx="6"/>',
            f'<text class="text title" x="{centre}" y="{top}" text-anchor="middle">{escape(self.title)}</text>',
        ]
        for number, line in enumerate(self.lines, 1):
            y = top + number * _LINE_PX
            parts.append(f'<text class="small" x="{centre}" y="{y}" text-anchor="middle">{escape(line)}</text>')
        return "\n".join(parts)


@dataclass(frozen=True)
class Arrow:
    """A line with a tip at its end, or at both, and a label above its middle."""

    x1: int
    y1: int
    x2: int
    y2: int
    label: str = ""
    both: bool = False

    def svg(self) -> str:
        start = ' marker-start="url(#tip)"' if self.both else ""
        line = f'<line class="line" x1="{self.x1}" y1="{self.y1}" x2="{self.x2}" y2="{self.y2}"'
        arrow = f'{line} stroke-width="1.5" marker-end="url(#tip)"{start}/>'
        return arrow + (Note((self.x1 + self.x2) // 2, (self.y1 + self.y2) // 2 - 7, self.label).svg())


@dataclass(frozen=True)
class Note:
    """A line of small text, centred."""

    x: int
    y: int
    text: str

    def svg(self) -> str:
        return f'<text class="small" x="{self.x}" y="{self.y}" text-anchor="middle">{escape(self.text)}</text>'


@dataclass(frozen=True)
class Picture:
    width: int
    height: int
    title: str
    parts: Sequence[Box | Arrow | Note]

    def svg(self) -> str:
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" role="img"'
        page = f'<rect class="page" x="0.5" y="0.5" width="{self.width - 1}" height="{self.height - 1}" rx="8"/>'
        inside = "\n".join(part.svg() for part in self.parts)
        return (
            f'{head} width="{self.width}" height="{self.height}">\n<title>{escape(self.title)}</title>\n{_STYLE}\n'
            f"<defs>{_ARROW_HEAD}</defs>\n{page}\n{inside}\n</svg>\n"
        )


OVERVIEW = Picture(
    860,
    330,
    "Agents call MCP servers and other agents through the sidecar, which decides, limits and records each call",
    (
        Box(20, 46, 150, 62, "Agent", ("Claude Code, Cursor,", "your own program")),
        Box(20, 134, 150, 62, "Agent for a user", ("with the user's", "access token")),
        Arrow(170, 77, 268, 100, "MCP"),
        Arrow(170, 165, 268, 142, "A2A"),
        Box(
            270,
            26,
            320,
            190,
            "sidecar",
            (
                "1  Who calls, on whose behalf?",
                "2  May every link of the chain do this?",
                "3  Do the arguments fit the tool's schema?",
                "4  Is a rate, quota or budget left?",
                "5  Is the decision on record?",
                "6  Forward, and filter the result",
            ),
            "main",
        ),
        Arrow(590, 100, 688, 77),
        Arrow(590, 142, 688, 165),
        Box(690, 46, 150, 62, "MCP servers", ("HTTP, HTTP+SSE,", "stdio programs")),
        Box(690, 134, 150, 62, "Agents", ("A2A agents,", "CLI programs")),
        Arrow(330, 250, 330, 218),
        Arrow(430, 216, 430, 248),
        Arrow(530, 216, 530, 248, both=True),
        Box(270, 250, 110, 56, "Policy", ("CSV, YAML, tests",), "fact"),
        Box(385, 250, 95, 56, "Audit log", ("hash chain",), "fact"),
        Box(485, 250, 105, 56, "Limits", ("memory, Redis",), "fact"),
    ),
)

_STAGES = (
    ("Routing", "address, method", "403 404 405"),
    ("Identity", "credential → chain", "401"),
    ("Parse", "one strict reading", "400 413 415"),
    ("Admission", "load, kill switch", "403 429 503"),
    ("Policy", "each link, guardrails", "403"),
    ("Check", "owner, pins, schema", "403 404"),
    ("Limits", "all or none", "429 503"),
    ("Audit", "decision on disk", "503"),
    ("Upstream", "forward, filter", "502 504"),
)


def _request() -> Picture:
    parts: list[Box | Arrow | Note] = []
    for number, (name, what, refusal) in enumerate(_STAGES):
        row, column = divmod(number, 5)
        x, y = 20 + column * 166, 40 + row * 150
        parts.append(Box(x, y, 140, 52, name, (what,), "main"))
        parts.append(Arrow(x + 70, y + 52, x + 70, y + 80))
        parts.append(Box(x + 8, y + 82, 124, 28, refusal, (), "no"))
        if column < 4 and number < len(_STAGES) - 1:
            parts.append(Arrow(x + 140, y + 26, x + 164, y + 26))
    parts.append(Note(430, 24, "Each stage passes the request on, or refuses it with one of the statuses below it"))
    parts.append(Box(684, 190, 140, 52, "Outcome", ("terminal audit record",), "fact"))
    parts.append(Arrow(658, 216, 682, 216))
    return Picture(850, 320, "The stages of a request, in order, with the statuses of their refusals", tuple(parts))


DEPLOYMENTS = Picture(
    860,
    276,
    "A sidecar next to each agent, or one gateway in front of servers",
    (
        Note(210, 28, "Next to an agent: a local listener is the identity"),
        Box(20, 44, 380, 110, "", ()),
        Note(210, 62, "one machine, pod or user"),
        Box(40, 78, 130, 56, "Agent"),
        Arrow(170, 106, 248, 106, "loopback"),
        Box(250, 78, 130, 56, "sidecar", ("nhi:planner",), "main"),
        Arrow(315, 154, 315, 198),
        Box(250, 200, 130, 56, "MCP servers", ("and agents",)),
        Note(650, 28, "In front of servers: tokens, keys or certificates"),
        Box(460, 44, 110, 46, "Agent"),
        Box(460, 104, 110, 46, "Agent"),
        Box(460, 164, 110, 46, "User"),
        Arrow(570, 67, 618, 92),
        Arrow(570, 127, 618, 127),
        Arrow(570, 187, 618, 162),
        Box(620, 82, 100, 90, "sidecar", ("replica", "replica"), "main"),
        Arrow(720, 127, 736, 127),
        Box(738, 82, 110, 90, "MCP servers", ("and agents",)),
        Arrow(670, 172, 670, 208, both=True),
        Box(600, 210, 140, 46, "Redis, Valkey", ("shared limits, tasks",), "fact"),
    ),
)

PICTURES: Mapping[str, Picture] = {"overview.svg": OVERVIEW, "request.svg": _request(), "deployments.svg": DEPLOYMENTS}


def pictures() -> Mapping[str, str]:
    """File name → SVG text."""
    return {name: picture.svg() for name, picture in PICTURES.items()}
