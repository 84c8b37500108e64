"""Reads policy test files.

Every file under a folder is a test file or a fault, so that a mistyped file name does not silently skip a test. Names
that begin with `.` are skipped (such as Kubernetes' `..data`), and a link that leads out of the folder is a fault.

    T001   cannot be read, or is not there     T002   no test file has this name     T003   too much
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from sidecar.errors import Fault, PolicyError, fault_in
from sidecar.policy import grammar
from sidecar.policy_tools.suites.suite_schema import Expect, Member, Repeat, SuiteFile, WrittenTest
from sidecar.settings.yaml_document import Document, in_file_order, leading_out, read_document
from sidecar.settings.yaml_nodes import Loc, YamlSpan
from sidecar.vocabulary import Chain, Principal, Question

MAX_FILES = 4096
MAX_TESTS = 100_000
MAX_CALLS = 1_000_000  # of all tests together, with repeats and entries of lists: about ten seconds of work
SUFFIXES = (".yaml", ".yml")


class SuitePlace(NamedTuple):
    span: YamlSpan
    source: str


class ListExpectation(NamedTuple):
    """A list to test. `names` are all possible entries; None if the file has no catalogue of the server."""

    server: str
    member: Member
    names: tuple[str, ...] | None


class PolicyTest(NamedTuple):
    """One test, ready to run. It has a `question` or a `listing`; `now_s` is in seconds since the epoch, None for the
    time of the run; `skip` is the reason why it is not run, "" for none."""

    suite: str
    name: str
    place: SuitePlace
    expects_at: SuitePlace
    chain: Chain
    expect: Expect
    question: Question | None = None
    session: bool = False
    listing: ListExpectation | None = None
    now_s: float | None = None
    repeat: Repeat | None = None
    skip: str = ""
    approvers: tuple[Principal, ...] = ()

    @property
    def times(self) -> int:
        """The number of its questions; 1 for a list whose entries the file does not define."""
        if self.listing is not None and self.listing.names is not None:
            return len(self.listing.names)
        return self.repeat.times if self.repeat else 1


class PolicySuite(NamedTuple):
    """The tests of one file. `named` are the objects that the tests call or expect in a list."""

    name: str
    file: str
    tests: tuple[PolicyTest, ...]
    named: frozenset[str]


def read_suites(paths: Sequence[Path], *, inside: Path | None = None) -> list[PolicySuite]:
    """Reads the suites in files and folders. Links must not lead out of a folder, and the paths not out of `inside`.
    Raises PolicyError with every fault."""
    suites: list[PolicySuite] = []
    faults = [fault for path in paths if inside is not None and (fault := leading_out(path, inside)) is not None]
    for file in _files([] if faults else paths, faults):
        try:
            document = read_document(file, error=PolicyError)
            suite = document.validate(SuiteFile)
            tests = tuple(_compiled(document, suite, index) for index in range(len(suite.tests)))
            suites.append(PolicySuite(suite.suite, str(file), tests, frozenset(_named(suite))))
        except PolicyError as error:
            faults += error.faults
    faults += _faults_of_size(suites)
    if faults:
        raise PolicyError(in_file_order(faults))
    return suites


def _files(paths: Sequence[Path], faults: list[Fault]) -> list[Path]:
    found: dict[Path, Path] = {}
    for path in paths:
        for file in _walk(path, faults) if path.is_dir() else (path,):
            if _is_test_file(file, faults):
                found.setdefault(file.resolve(), file)
            if len(found) > MAX_FILES:
                faults.append(fault_in(path, f"more than {MAX_FILES} files of tests", code="T003"))
                return []
    return list(found.values())


def _walk(folder: Path, faults: list[Fault]) -> Iterator[Path]:
    """Yields the files under a folder, ordered by name. A folder that was visited before, by a link, is skipped."""
    entered: set[tuple[int, int]] = set()
    todo = [folder]
    while todo:
        current = todo.pop()
        try:
            info = current.stat()
            paths = sorted(path for path in current.iterdir() if not path.name.startswith("."))
        except OSError as error:
            faults.append(fault_in(current, f"cannot be read: {error.strerror}", code="T001"))
            continue
        if (info.st_dev, info.st_ino) not in entered:
            entered.add((info.st_dev, info.st_ino))
            out = [fault for path in paths if path.is_symlink() and (fault := leading_out(path, folder)) is not None]
            faults += out
            paths = [path for path in paths if str(path) not in {fault.file for fault in out}]
            yield from (path for path in paths if not path.is_dir())
            todo += reversed([path for path in paths if path.is_dir()])


def _is_test_file(path: Path, faults: list[Fault]) -> bool:
    if path.suffix not in SUFFIXES or not path.name.isprintable():
        faults.append(fault_in(path, "no file of policy tests has this name", code="T002", hint="name it *.yaml"))
        return False
    if not path.is_file():  # pipes and devices are never opened: they can block
        faults.append(fault_in(path, "cannot be read: this is not a regular file", code="T001"))
    return path.is_file()


def _faults_of_size(suites: Sequence[PolicySuite]) -> Iterator[Fault]:
    tests = calls = 0
    for suite in suites:
        tests += len(suite.tests)
        calls += sum(test.times for test in suite.tests)
        if tests > MAX_TESTS or calls > MAX_CALLS:
            counted = f"{MAX_CALLS} calls, repeats and entries of lists counted"
            much = f"{MAX_TESTS} tests" if tests > MAX_TESTS else counted
            yield fault_in(
                suite.file, f"the suites before this one already have {much}", code="T003", hint="run fewer files"
            )
            return


def _compiled(document: Document, file: SuiteFile, index: int) -> PolicyTest:
    test = file.tests[index]
    now = test.now or file.now
    return PolicyTest(
        suite=file.suite,
        name=test.name,
        place=_place(document, ("tests", index, "name")),
        expects_at=_place(document, ("tests", index, "expect")),
        chain=tuple(
            Principal(name, "test", frozenset(test.roles.get(name, ())), frozenset(test.scopes.get(name, ())))
            for name in test.chain
        ),
        expect=test.expect,
        question=test.asked() if test.calls is not None else None,
        session=test.session,
        listing=_listing(test, file),
        now_s=grammar.expires_at(now) if now else None,
        repeat=test.repeat,
        skip=test.skip or "",
        approvers=tuple(Principal(name, "test", frozenset(test.roles.get(name, ()))) for name in test.approved_by),
    )


def _place(document: Document, loc: Loc) -> SuitePlace:
    span = document.span_of(loc)
    return SuitePlace(span, document.source_line(span.line))


def _listing(test: WrittenTest, file: SuiteFile) -> ListExpectation | None:
    if test.lists is None:
        return None
    member, known = test.of or "tools", file.catalogue.get(test.lists)
    return ListExpectation(test.lists, member, known.names(member) if known else None)


def _named(file: SuiteFile) -> Iterator[str]:
    for test in file.tests:
        if test.calls:
            yield test.calls
        kind = (test.of or "tools").removesuffix("s")
        yield from (f"{kind}:{test.lists}/{name}" for name in test.expect.shows or ())
