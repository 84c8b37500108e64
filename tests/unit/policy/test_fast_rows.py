"""Does the quick reader read what the thorough one does? Every file is read twice, once without the quick one."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest.mock import patch

from hypothesis import given, settings, strategies as st

from sidecar.errors import PolicyError
from sidecar.policy import load_policy
from sidecar.policy.row_readers import LinkReader, RuleReader
from tests.tables import tables
from tests.unit.policy.world import MODELS, scope, write

TABLES = tables("policy/fast_rows")

SUBJECTS = TABLES["SUBJECTS"]
OBJECTS = TABLES["OBJECTS"]
ACTIONS = ["use", "tools/call", "tools/call|delegate", "delegate | tools/call", "*", "tool/call", "use|use", "|", ""]
ENDS = ["-", "-", "2030-01-01T00:00:00Z", "2030-01-01", "2030-13-01T00:00:00Z"]
LIMITS = ["-", "-", "10", "010", "0", "x"]
WHENS = TABLES["WHENS"]
EFFECTS = ["allow", "allow", "deny", "deny", "Allow", "permit"]
DOMAINS = ["-", "x", "x y"]
BLANKS = ["", " ", "\t", "  ", "\u00a0"]
ENDINGS = ["\n", "\n", "\n", "\r\n", "\r\r\n", "\n\n"]
NOTES = TABLES["NOTES"]
MEMBERS = ["user:a", "nhi:p", "role:r", "role:s", "user:*", "a", '"user:a"', ""]
ELEMENTS = ["tool:s/a", "tool:s/*", "set:x", "set:y", "nhi:q", "user:a"]
COLUMNS = ("sub", "obj", "act", "expires_at", "max_calls_per_hour", "when", "eft")
POOLS = dict(zip((*COLUMNS, "dom"), (SUBJECTS, OBJECTS, ACTIONS, ENDS, LIMITS, WHENS, EFFECTS, DOMAINS), strict=True))
SCOPES = [
    scope("**", ("user:*", "role:*"), ("tool:s/*", "set:x"), ("role:r",)),
    scope("agent_to_tool.csv", ("*",), ("*",), ("*",)),
]


class Setting(NamedTuple):
    """All that a load depends on."""

    models: dict[str, str]
    files: dict[str, str]
    more: dict[str, Any]


@st.composite
def lines(draw: st.DrawFn, columns: tuple[str, ...], by_domain: bool) -> str:
    """A file of rows, most of them as they should be."""
    text = draw(st.sampled_from(["", "", "\ufeff"]))
    for _ in range(draw(st.integers(0, 6))):
        pools = draw(
            st.sampled_from(
                [[POOLS[column] for column in columns]] * 5 + [_links(group, by_domain) for group in ("g", "g2")]
            )
        )
        head = "p" if len(pools) > 3 else "g2" if pools[0] is ELEMENTS else "g"
        tidy = draw(st.booleans())
        fields = [draw(st.sampled_from(pool[:3] if tidy else pool)) for pool in pools]
        fields = [head, *fields][: draw(st.sampled_from([20, 20, 20, 4]))]
        blank = draw(st.sampled_from(BLANKS))
        above = draw(st.sampled_from(NOTES))
        text += (above + "\n" if above else "") + f",{blank}".join(fields) + draw(st.sampled_from(ENDINGS))
    return text


def _links(group: str, by_domain: bool) -> list[list[str]]:
    containers = [["set:x", "set:y", "set:z"]] if group == "g2" else [["role:r", "role:s", "role:t", "roles:r"]]
    return [ELEMENTS if group == "g2" else MEMBERS, *containers, *([DOMAINS] if by_domain and group == "g" else [])]


@st.composite
def settings_of_a_load(draw: st.DrawFn) -> Setting:
    by_domain, effect = (
        draw(st.booleans()),
        draw(st.sampled_from(["", "some(where (p.eft == allow))", "priority(p.eft) || deny"])),
    )
    columns = (*COLUMNS, "dom") if by_domain and draw(st.booleans()) else COLUMNS
    columns = draw(
        st.sampled_from(
            [columns, columns, (columns[1], columns[0], *columns[2:]), (*columns[:2], *reversed(columns[2:]))]
        )
    )
    shipped = (MODELS / "agent_to_tool.conf").read_text()
    own = shipped.replace("p = " + ", ".join(COLUMNS), "p = " + ", ".join(columns))
    if effect:
        own = own.replace("some(where (p.eft == allow)) && !some(where (p.eft == deny))", effect)
    if by_domain:
        own = own.replace("r = sub, obj, act, ctx", "r = sub, dom, obj, act, ctx").replace(
            "g = _, _\n", "g = _, _, _\n"
        )
        own = own.replace("g(r.sub, p.sub)", "g(r.sub, p.sub, r.dom)")
    files = {
        "agent_to_tool.csv": draw(lines(columns, by_domain)),
        "guardrails.csv": draw(lines(COLUMNS, by_domain)),
        "roles.csv": "".join(draw(lines(COLUMNS, by_domain)) for _ in range(2)),
    }
    scopes = draw(st.sampled_from([[], [], SCOPES[:1], SCOPES[1:], SCOPES]))
    names = draw(st.sampled_from([None, frozenset(("s",))]))
    return Setting({"agent_to_tool.conf": own}, files, {"scopes": scopes, "names": names})


def read(setting: Setting, folder: Path) -> object:
    """Everything that can be seen of a policy, or of its faults."""
    try:
        source = load_policy(folder / "models", folder / "policies", **setting.more)
    except PolicyError as error:
        return list(error.faults)
    links = (source.roles, source.sets, source.domains)
    return list(source.rules), source.revision, source.warnings, sorted(source.conditions), links


@settings(max_examples=50)
@given(settings_of_a_load())
def test_what_is_taken_in_bulk_is_what_is_read_row_by_row(setting: Setting) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "models", setting.models)
        write(folder / "policies", setting.files)
        quick = read(setting, folder)
        with patch.object(RuleReader, "take", _never), patch.object(LinkReader, "take", _never):
            thorough = read(setting, folder)
        assert quick == thorough


def _never(*_: object) -> bool:
    return False
