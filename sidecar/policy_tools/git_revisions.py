"""Reads policies from git revisions: `main`, `HEAD~1`, `abc123`, or `rev:path` for a folder.

Files are read from git's objects, byte for byte (no filter, attribute or hook runs), into a private temporary folder.
Git runs without a shell, with a deadline and a bound on its output. Names that begin with `-`, links, and paths that
lead out of the repository are refused.
"""

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import NamedTuple, NoReturn

from sidecar.errors import SettingsError, fault_in
from sidecar.policy_tools.policy_location import CONFIG, MODELS, POLICIES, PolicyLocation, files_named, in_folder
from sidecar.settings.programs import executable_of
from sidecar.upstreams.processes.launcher import Processes, Program, StartFailed, output_of

DEADLINE_S = 30.0
MAX_FILES = 8_192
MAX_BYTES = 256 * 1024 * 1024
_MAX_SAID = 16 * 1024  # git's other output: names, errors
_FILE_MODES = ("100644", "100755")


class Revision(NamedTuple):
    """One policy named on a command line. `label` is its name; `root` is the temporary folder of a policy from git."""

    label: str
    place: PolicyLocation
    root: Path | None = None

    def shown(self, file: str) -> str:
        """Returns a file name for display: `main:policies/roles.csv` for a file from git."""
        if self.root is None or not file.startswith(f"{self.root}/"):
            return file
        return f"{self.label.partition(':')[0]}:{file[len(str(self.root)) + 1 :]}"


class _Blob(NamedTuple):
    path: PurePosixPath
    digest: str
    size: int


@contextmanager
def opened(name: str, *, directory: Path) -> Iterator[Revision]:
    """Opens the folder `name` in `directory`, or the git revision `name` of the repository that contains `directory`. A
    policy from git exists until the context ends. Raises SettingsError if there is neither, or git fails."""
    folder = directory / name
    if name and folder.is_dir():
        yield Revision(name, in_folder(Path(name) if directory == Path() else folder))
        return
    with TemporaryDirectory(prefix="sidecar-revision-") as made:
        root = Path(made).resolve() / "files"  # in a private folder: models next to the rows are read too
        root.mkdir(0o700)
        top = asyncio.run(_extract(name, directory, root))
        yield Revision(name, in_folder(root / top), root)


async def _extract(name: str, directory: Path, root: Path) -> PurePosixPath:
    revision, colon, path = name.partition(":")
    if not revision or revision.startswith("-") or "\0" in name:
        _refuse(name, "this is not a folder, and no git revision")
    processes = Processes(os.environ)
    git = _GitReader(name, directory, processes)
    try:
        commit = await git.line("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        if not commit:
            hint = "name a folder, main, HEAD~1, or rev:path"
            _refuse(name, "this is not a folder, and git knows no such revision", hint)
        top = _inside(path if colon else (await git.line("rev-parse", "--show-prefix")).rstrip("/"), name)
        blobs = await git.blobs(commit, [top / POLICIES, top / MODELS, top / CONFIG])
        if not any(blob.path.is_relative_to(top / POLICIES) for blob in blobs):
            # The path may name a folder of rows, with its models next to it.
            blobs = await git.blobs(commit, [top, top.parent / MODELS]) if colon else []
            if not any(top in blob.path.parents for blob in blobs):
                _refuse(name, f"no {top / POLICIES}/ in this revision", "name the folder that holds it: rev:path")
        await _write(git, blobs, root)
        named = [path.relative_to(root) for path in files_named(root / top) if path.is_relative_to(root)]
        known = {blob.path for blob in blobs}
        if others := [PurePosixPath(path) for path in named if PurePosixPath(path) not in known]:
            await _write(git, await git.blobs(commit, others), root)
    finally:
        await processes.close()
    return top


async def _write(git: "_GitReader", blobs: Sequence["_Blob"], root: Path) -> None:
    for blob, content in await git.contents(blobs):
        target = root / blob.path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def _inside(path: str, name: str) -> PurePosixPath:
    inside = PurePosixPath(path or ".")
    if inside.is_absolute() or ".." in inside.parts or any(part.startswith("-") for part in inside.parts):
        _refuse(name, "the path must lie inside the repository, and no part of it may begin with -")
    return inside


def _refuse(name: str, message: str, hint: str = "") -> NoReturn:
    raise SettingsError([fault_in(name, message, code="P001", hint=hint)])


_OPTIONS = ("--no-replace-objects", "--literal-pathspecs", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false")
_QUIET: Mapping[str, str] = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_LAZY_FETCH": "1",  # a partial clone must not access the network
    "LC_ALL": "C",
}


class _GitReader:
    """Runs git on one repository, for one name on the command line."""

    def __init__(self, name: str, directory: Path, processes: Processes) -> None:
        self._name, self._directory, self._processes = name, directory, processes

    async def line(self, *arguments: str) -> str:
        said, good = await self._run(arguments, most=_MAX_SAID)
        return said.decode("utf-8", "replace").strip() if good else ""

    async def blobs(self, commit: str, folders: Sequence[PurePosixPath]) -> list[_Blob]:
        """Returns every file under these folders. Raises SettingsError for links and everything else that is not a
        regular file, and for too many files or bytes."""
        named = [] if PurePosixPath() in folders else map(str, folders)  # without a name git lists every file
        listing = ("ls-tree", "-r", "-l", "-z", "--full-tree", commit, "--", *named)
        said, good = await self._run(listing, most=MAX_FILES * 512)
        if not good:
            _refuse(self._name, "git cannot list the files of this revision")
        found = [self._blob(entry) for entry in said.decode("utf-8", "surrogateescape").split("\0") if entry]
        if len(found) > MAX_FILES or sum(blob.size for blob in found) > MAX_BYTES:
            _refuse(self._name, f"more than {MAX_FILES} files, or {MAX_BYTES // 2**20} MiB")
        return found

    def _blob(self, entry: str) -> _Blob:
        described, _, path = entry.partition("\t")
        mode, _, digest, size = described.split()
        if mode not in _FILE_MODES:
            _refuse(self._name, f"{path} is not a regular file in this revision", "links are not followed out of git")
        return _Blob(_inside(path, self._name), digest, int(size))

    async def contents(self, blobs: Sequence[_Blob]) -> list[tuple[_Blob, bytes]]:
        wanted = "".join(f"{blob.digest}\n" for blob in blobs).encode()
        most = sum(blob.size + 128 for blob in blobs)
        said, good = await self._run(("cat-file", "--batch"), most=most, sent=wanted)
        at, found = 0, []
        for blob in blobs:
            start = said.find(b"\n", at) + 1
            if not good or said[at:start].split()[:3] != [blob.digest.encode(), b"blob", str(blob.size).encode()]:
                _refuse(self._name, f"git cannot read {blob.path} of this revision")
            at = start + blob.size + 1
            found.append((blob, said[start : start + blob.size]))
        return found

    async def _run(self, arguments: Sequence[str], *, most: int, sent: bytes = b"") -> tuple[bytes, bool]:
        """Returns git's output, and whether it succeeded. Raises SettingsError if git is not installed, writes more
        than `most` bytes, or takes longer than DEADLINE_S."""
        path = executable_of("git", {}, os.environ)
        if path is None:
            _refuse(self._name, "this is not a folder, and git is not installed")
        program = Program(
            path, ["git", *_OPTIONS, *arguments], {**os.environ, **_QUIET}, str(self._directory.absolute())
        )
        try:
            async with asyncio.timeout(DEADLINE_S):
                said, _, ended = await output_of(self._processes, program, most=most + 1, sent=sent)
        except StartFailed as error:
            _refuse(self._name, f"this is not a folder, and git cannot be started: {error}")
        except TimeoutError:
            _refuse(self._name, f"git took longer than {DEADLINE_S:g} s")
        if len(said) > most:
            _refuse(self._name, f"git wrote more than {most} bytes")
        return said, ended.code == 0
