"""Where may we connect to, and who says so?

Nothing that a caller, a token or an upstream says names a place that we connect to, with two exceptions: the endpoint
of an HTTP+SSE server lies at the origin that the operator wrote, and callbacks leave by `egress/guarded.py`, which asks
the operator's lists (BL-051). What may stand in a configuration is judged by its scheme (BL-020).
"""

import ast
import re
from pathlib import Path

import pytest

import sidecar
from sidecar.errors import SettingsError
from sidecar.settings.load import load_settings
from tests.tables import tables

TABLES = tables("http/client/who_goes_out")

SOURCES = Path(sidecar.__file__).parent
OPENS = {
    *("HttpClient", "GuardedClient", "SystemResolver", "fetch", "fetch_newer", "open_connection"),
    *("create_connection", "sock_connect", "urlopen", "ClientSession"),
}
REACHED = OPENS - {"fetch", "fetch_newer"} | {"Redis", "from_url"}  # as members
MAY_OPEN = re.compile(rf"\bfrom (?:redis|aiohttp|urllib|sidecar\.http\.client)\b|\.(?:{'|'.join(REACHED)})\b")
WHOSE_WORD = TABLES["whose_word"]


def opened_in(source: str) -> set[str]:
    """What of it can open a connection."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in ("redis", "aiohttp", "urllib"):
            found |= {name.name for name in node.names} & {*OPENS, "Redis", "request"}
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sidecar.http.client"):
            found |= {name.name for name in node.names} & OPENS
        if isinstance(node, ast.Attribute) and node.attr in REACHED:
            found.add(node.attr)
    return found


def test_whoever_opens_a_connection_has_its_address_from_the_operator() -> None:
    """BL-051: who is not in the table opens none; whoever comes into it says whose word the address is."""
    ours = {str(path.relative_to(SOURCES)): path.read_text("utf-8") for path in SOURCES.rglob("*.py")}
    named = {name: source for name, source in ours.items() if MAY_OPEN.search(source)}
    opening = {name for name, source in named.items() if opened_in(source) and not name.startswith("http/client/")}
    assert opening <= {*WHOSE_WORD}, opening - {*WHOSE_WORD}


NO_PLACES = ["file:///etc/passwd", "htp://idp.example/", "keys.json", "//idp.example/keys", "data:application/json,{}"]
NO_PLACES += ["ftp://idp.example/", "javascript:alert(1)", "http:/one/slash", "unix:/run/x.sock", "https://", ""]
SECTIONS = TABLES["sections"]


@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.parametrize("address", NO_PLACES)
def test_an_address_of_another_scheme_is_refused_where_it_stands(tmp_path: Path, section: str, address: str) -> None:
    """BL-020."""
    good, path = "https://idp.example/place", tmp_path / "sidecar.yaml"
    path.write_text("version: 1\n" + SECTIONS[section].format(good))
    load_settings(path, {}, check_files=False)
    path.write_text("version: 1\n" + SECTIONS[section].format(address))
    with pytest.raises(SettingsError) as refused:
        load_settings(path, {}, check_files=False)
    assert any("url" in str(fault) for fault in refused.value.faults)
