"""Is the documentation of this very program, and does every part of it hold together?

What the pages say to type is run by tests/flow/test_docs.py; the convention of their blocks is in tests/pages.py.
"""

import importlib.util
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType

import click
import pytest
import yaml

from bench import figures
from sidecar.cli import main
from sidecar.cli.init import starting_files, write_files
from sidecar.errors import ANSWERS, ConfigError
from sidecar.limits import load_budgets
from sidecar.observability.metrics import Metrics
from sidecar.policy import load_policy
from sidecar.settings.load import load_settings
from tests.pages import NAMES, OTHERS, ROOT, Block, blocks_of, prose_of

LANGUAGES = {"sh", "console", "text", "yaml", "csv", "json", "ini", "nginx", "python"}
TEXTS = {name: (ROOT / name).read_text("utf-8") for name in NAMES}
BLOCKS = [(name, block) for name in NAMES for block in blocks_of(TEXTS[name])]
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)


def cases(wanted: str, *, whole: bool) -> list[object]:
    """The blocks of one language, whole files or the others, each with a name."""
    found = [(name, block) for name, block in BLOCKS if block.language == wanted and bool(block.file) is whole]
    return [pytest.param(block, id=f"{name}:{block.line}") for name, block in found]


@pytest.fixture(scope="module")
def make() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_make", ROOT / "docs" / "make.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- generated parts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_every_generated_block_is_current(name: str, make: ModuleType) -> None:
    assert make.written_anew(TEXTS[name]) == TEXTS[name], "run: python -m docs.make"


def test_the_openapi_document_is_current(make: ModuleType) -> None:
    assert make.OPENAPI.read_text("utf-8") == make.openapi(), "run: python -m docs.make"


def test_the_pictures_are_current(make: ModuleType) -> None:
    for name, svg in make.pictures().items():
        assert (make.PICTURES / name).read_text("utf-8") == svg, "run: python -m docs.make"


def test_every_block_that_can_be_generated_stands_somewhere(make: ModuleType) -> None:
    there = [found for text in TEXTS.values() for found in re.findall(r"<!-- generated: ([a-z-]+) -->", text)]
    assert sorted(there) == sorted(make.BLOCKS)


@pytest.mark.parametrize("page", figures.PAGES, ids=lambda page: page.name)
def test_the_figures_of_a_page_are_those_of_the_last_measurement(page: Path) -> None:
    assert figures.stale_blocks(page.read_text("utf-8")) == [], "run: python -m bench.figures"


def test_every_block_of_figures_is_on_one_page() -> None:
    there = [name for page in figures.PAGES for name in re.findall(r"^<!-- /([a-z-]+) -->$", page.read_text(), re.M)]
    assert sorted(there) == sorted(figures.blocks())


def test_every_figure_stands_with_its_unit_and_its_command() -> None:
    one = {"rps": 1234.5, "p50_ms": 1.5, "p99_ms": 9.25, "cpu_us_per_request": 101.0, "rss_mb": 42.0}
    results = {
        **dict.fromkeys(figures.NAMES, one),
        "ratios": {"direct": 5.0, "sidecar_memory": 0.8, "sidecar_valkey": 0.7},
        "cpu_ratios": {"direct": 9.0, "sidecar_memory": 0.6, "sidecar_valkey": 0.5},
        "added_p50_ms_one_connection": {
            "passthrough": 0.13, "passthrough_tuned": 0.12, "sidecar_memory": 0.21, "sidecar_valkey": 0.33,
        },
        "connections": [1, 16], "rounds": 5, "seconds": 3, "cores": 2, "ready_s": 1.2, "ready_s_valkey": 1.4,
        "load": "wrk", "upstream": "nginx", "python": "3.11", "aiohttp": "3.14", "sidecar": "0.1.0",
    }  # fmt: skip
    block = figures.block_from(results)
    assert "| sidecar, in-process limits | 1,234 | 0.80 | 1.50 | 9.25 | 101 | 0.60 | 42 |" in block
    assert "adds 0.21 ms" in block and "0.33 ms" in block and "1.2 s" in block and "at most 42 MB" in block
    assert block.count("`make bench`") == 3


def test_a_reason_is_called_reserved_only_while_nothing_gives_it(make: ModuleType) -> None:
    listing = {"errors.py", "openapi.py"}  # they name every reason, and give none
    sources = [path for path in (ROOT / "sidecar").rglob("*.py") if path.name not in listing]
    told = {match for path in sources for match in re.findall(r"Reason\.([A-Z_]+)", path.read_text("utf-8"))}
    assert {reason for reason in ANSWERS if reason.name not in told} == set()


# --- links, names -----------------------------------------------------------------------------------------------------


def anchors(text: str) -> set[str]:
    """What the site calls the headings of a page: without what looks like a tag."""
    plain = (re.sub(r"<[^>]*>|[^\w\s<>-]", "", heading.lower()) for heading in _HEADING.findall(prose_of(text)))
    return {re.sub(r"[-\s]+", "-", heading.strip()) for heading in plain}


@pytest.mark.parametrize("name", NAMES)
def test_every_link_inside_leads_somewhere(name: str) -> None:
    for target in _LINK.findall(prose_of(TEXTS[name])):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        page = (ROOT / name).parent / path if path else ROOT / name
        assert page.is_file(), f"{name}: {target}"
        if anchor and page.suffix == ".md":
            assert anchor in anchors(page.read_text("utf-8")), f"{name}: {target}"


@pytest.mark.parametrize("name", NAMES)
def test_a_page_knows_nothing_of_the_machine_it_was_written_on(name: str) -> None:
    assert not re.search(r"/(?:work|root|home|tmp)/", TEXTS[name])


def commands_in(text: str) -> Iterator[list[str]]:
    """What stands in code as a command of ours: its words, up to the first that is no bare word."""
    typed = [block.text for block in blocks_of(text) if block.language != "text"]
    code = "\n".join([*re.findall(r"`(sidecar [^`]+)`", text), *typed])
    for line in re.findall(r"(?:^|[|;&(] *|\$ )sidecar ([a-z][^\n|;&#]*)", code, re.MULTILINE):
        yield line.split()


@pytest.mark.parametrize("name", NAMES)
def test_every_command_that_a_page_names_exists(name: str) -> None:
    for words in commands_in(TEXTS[name]):
        command: click.Command | None = main
        for word in words:
            if not isinstance(command, click.Group) or not re.fullmatch(r"[a-z][a-z-]*", word):
                break
            command = command.get_command(click.Context(command), word)
            assert command is not None, f"{name}: sidecar {' '.join(words)}"
        options = {option for parameter in command.params for option in parameter.opts} if command else set()
        for word in words:
            if word.startswith("-") and word not in ("-", "-h", "--help"):
                assert word in options, f"{name}: sidecar {' '.join(words)}"


@pytest.mark.parametrize("name", NAMES)
def test_every_series_that_a_page_names_exists(name: str) -> None:
    _, rendered = Metrics(upstreams=("example",), limits=("example",)).render("")
    for series in set(re.findall(r"\bsidecar_[a-z_]+\b", TEXTS[name])) - {"sidecar_memory", "sidecar_valkey"}:
        assert f"# HELP {series} ".encode() in rendered, f"{name}: {series}"


# --- blocks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_every_block_says_what_it_holds(name: str) -> None:
    for block in blocks_of(TEXTS[name]):
        assert block.language in LANGUAGES, f"{name}:{block.line}: {block.language}"
        runs = block.runs and re.search(r"\b(docker|kubectl|systemctl|make)\b", block.text)
        assert not runs, f"{name}:{block.line}"


def valid(folder: Path, block: Block) -> None:
    """Write the file into a fresh working folder. Raises ConfigError if the whole is not valid."""
    write_files(folder, starting_files())
    path = folder / block.file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block.text, "utf-8")
    load_settings(folder / "sidecar.yaml", {}, check_files=False)  # that the files named exist is the flow's part
    load_policy(folder / "models", folder / "policies")
    load_budgets(folder / "policies" / "budgets.yaml")


@pytest.mark.parametrize("block", [*cases("yaml", whole=True), *cases("csv", whole=True)])
def test_every_whole_file_is_valid_unless_it_is_shown_for_its_fault(block: Block, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) if block.wrong else nullcontext():
        valid(tmp_path, block)


@pytest.mark.parametrize("block", cases("yaml", whole=False))
def test_every_part_of_a_configuration_is_valid_beside_the_version(block: Block, tmp_path: Path) -> None:
    if block.info in OTHERS:
        assert yaml.safe_load(block.text)
        return
    assert not block.info, "a file that was mistyped"
    path = tmp_path / "sidecar.yaml"
    path.write_text("version: 1\n" + block.text.removeprefix("version: 1\n"), "utf-8")
    load_settings(path, {"NOTES_HOST": "notes"}, check_files=False)


@pytest.mark.skipif(shutil.which("nginx") is None, reason="no nginx")
def test_nginx_takes_what_is_said_to_be_for_it(tmp_path: Path) -> None:
    parts = [block.text for _, block in BLOCKS if block.language == "nginx" and "http {" not in block.text]
    location = "\n".join(parts)  # whole configurations are run by tests/peers/test_nginx.py
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = " ".join(f"{kind}_temp_path {tmp_path}/{kind};" for kind in kinds)
    http = f"access_log off; {places} server {{ {location} }}"
    conf = f"error_log stderr; pid {tmp_path}/pid; events {{}} http {{ {http} }}"
    (tmp_path / "nginx.conf").write_text(conf, "utf-8")
    command = ["nginx", "-t", "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf")]
    told = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert told.returncode == 0, told.stderr


def test_the_versions_of_the_sdk_are_those_of_the_locks() -> None:
    for lock in ("requirements.lock", "tests/peers/mcp1.lock"):
        found = re.search(r"^mcp==(\d+\.\d+)\.", (ROOT / lock).read_text("utf-8"), re.MULTILINE)
        assert found is not None and f"`mcp` {found[1]}" in TEXTS["README.md"], lock


def test_rows_are_always_a_file_and_json_blocks_are_json() -> None:
    assert not cases("csv", whole=False)
    for _, block in BLOCKS:
        if block.language == "json" and not block.file:
            json.loads(block.text)


def test_a_wrong_file_would_be_found(tmp_path: Path) -> None:
    row = "p, nhi:planner, tool:a/b, tool/call, -, -, -, allow"
    (block,) = blocks_of(f"```csv policies/agent_to_tool.csv\n{row}\n```\n")
    with pytest.raises(ConfigError, match="P104"):
        valid(tmp_path, block)
