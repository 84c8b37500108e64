"""Whatever a file holds: is it refused with places, or else run and told?"""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import orjson
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from sidecar.errors import PolicyError
from sidecar.limits import Budgets
from sidecar.policy import Engine, PolicySource
from sidecar.policy_tools.suites.loading import read_suites
from sidecar.policy_tools.suites.report import data, junit, text
from sidecar.policy_tools.suites.suite import run_suites
from tests.drawn import containers
from tests.unit.policy_tools.suites.rig import NOW, policy, write

_WORDS = [
    *("nhi:a", "user:u", "anonymous", "role:team", "user:*", "tool:x/get_it", "tool:x/put", "nhi:x", "nhi:a"),
    *("prompt:x/p", "resource:x/file:///a", "resource:x/a/../b", "set:s", "tools/call", "ping", "message/send", "use"),
    *("delegate", "roots/list", "allow", "deny", "expired", "rate-limited", "2027-01-01T00:00:00Z", "-", "10s", "x"),
    "tools",
]
_WORD = st.sampled_from(_WORDS) | st.text(max_size=8)
_VALUE: st.SearchStrategy[Any] = st.recursive(
    _WORD | st.integers(0, 5) | st.booleans() | st.none(), containers(_WORD, 3), max_leaves=6
)
_NAME = st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1, max_size=12)
_PRINCIPAL = st.sampled_from(["nhi:a", "user:u", "user:v", "anonymous"])
_SOUND = {
    "as": _PRINCIPAL | st.lists(_PRINCIPAL, min_size=1, max_size=3, unique=True),
    "calls": st.sampled_from(["tool:x/get_it", "tool:x/put", "nhi:a", "nhi:x", "prompt:x/p", "resource:x/file:///a"]),
    "action": st.sampled_from(["tools/call", "ping", "message/send", "delegate", "roots/list", "push/set"]),
    "lists": st.sampled_from(["x", "y"]),
    "args": st.dictionaries(st.sampled_from(["repo", "b"]), _VALUE, max_size=2),
    "now": st.just("2026-12-31T00:00:00Z"),
    "repeat": st.fixed_dictionaries({"times": st.integers(1, 5)}, optional={"every": st.just("10s")}),
    "approved_by": st.sampled_from(["user:u", "user:v", "nhi:a"]),
    "expect": st.sampled_from(
        ["allow", "approval", "deny", ["put"], {"decision": "deny", "at": 2}, {"decision": "allow", "limits": []}]
    ),
}
_TEST = st.fixed_dictionaries(
    {"name": _NAME | st.text(max_size=12), "as": _SOUND["as"], "expect": _SOUND["expect"]},
    optional={key: value | _VALUE for key, value in _SOUND.items() if key not in ("as", "expect")},
) | st.fixed_dictionaries(
    {"name": _NAME, "as": _SOUND["as"], "calls": _SOUND["calls"], "expect": _SOUND["expect"]},
    optional={"action": _SOUND["action"], "args": _SOUND["args"], "repeat": _SOUND["repeat"]},
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Engine, PolicySource]:
    return policy(write(tmp_path_factory.mktemp("world"), {}))


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(tests=st.lists(_TEST, min_size=1, max_size=2), more=st.just({}) | st.dictionaries(_WORD, _VALUE, max_size=1))
def test_it_is_refused_with_places_or_run_and_told(
    tmp_path: Path, world: tuple[Engine, PolicySource], tests: list[Any], more: dict[str, Any]
) -> None:
    path = tmp_path / "s.yaml"
    path.write_bytes(orjson.dumps({"suite": "s", **more, "tests": tests}))
    try:
        suites = read_suites([path])
    except PolicyError as error:
        assert error.faults
        assert all(fault.line == 1 and fault.column >= 1 for fault in error.faults)
        return
    report = run_suites(*world, suites, Budgets(), now_s=NOW, coverage=True)
    assert len(report.results) == len(tests)
    assert list(text(report, 0.0, verbose=True))[-1].endswith(" in 0.00 s")
    orjson.dumps(data(report, "", 0.0))
    names = [case.attrib["name"] for case in ElementTree.fromstring(junit(report, 0.0)).iter("testcase")]
    assert names == [test["name"] for test in tests]
