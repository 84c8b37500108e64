"""Unpacks archives safely.

Accepts only regular files and folders of tar (POSIX ustar), under plain relative names. An archive with links, devices,
sparse files, extended headers that rename members, names that leave the folder, or names that two systems read
differently is refused as a whole; nothing is skipped or repaired. All reads are bounded.
"""

import io
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from gzip import GzipFile
from pathlib import Path
from tarfile import USTAR_FORMAT, TarFile, TarInfo
from typing import IO, Final, NamedTuple

from sidecar.app.policy_sources.stored_revisions import SourceError

BLOCK: Final = 512
CHUNK: Final = 64 * 1024
MAX_FILES: Final = 5_000
MAX_ENTRIES: Final = 4 * MAX_FILES  # folders, comments and skipped members have headers too
MAX_BYTES: Final = 512 * 2**20
MAX_FILE_BYTES: Final = 128 * 2**20
MAX_DEPTH: Final = 16
MAX_COMMENT: Final = 4 * 1024
_SEGMENT: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+@=-]{0,127}")
_REGULAR, _FOLDER, _COMMENT = (b"0", b"\0"), b"5", b"g"


class BadArchive(SourceError):
    """The archive or bundle is refused, or no trusted key signed it."""

    def __init__(self, message: str) -> None:
        super().__init__(message, refused=True)


class TarMember(NamedTuple):
    """One regular file. Its `size` bytes of content are read from the archive before the next member."""

    name: str
    size: int
    content: Iterator[bytes]


@dataclass(slots=True)
class TarNames:
    """The names seen so far, compared like in a case-insensitive file system."""

    files: set[str] = field(default_factory=set)
    folders: set[str] = field(default_factory=set)

    def take(self, name: str) -> None:
        """Adds a file name. Raises BadArchive for an invalid or duplicate name."""
        parts = name.split("/")
        if len(parts) > MAX_DEPTH or not all(map(_SEGMENT.fullmatch, parts)):
            raise BadArchive(f"no file is named {name[:128]!r} in a policy")
        folded = name.casefold()
        above = {folder.casefold() for folder in _above(name)}
        if folded in self.files or folded in self.folders or self.files & above:
            raise BadArchive(f"{name[:128]} is there twice, or twice but for its case")
        self.files.add(folded)
        self.folders |= above
        if len(self.files) > MAX_FILES:
            raise BadArchive(f"it has more than {MAX_FILES} files")


def gunzipped(file: IO[bytes]) -> IO[bytes]:
    """The archive inside, inflated only as far as it is read."""
    return GzipFile(fileobj=file, mode="rb")  # type: ignore[return-value]


def members(archive: IO[bytes], *, by_git: bool = False) -> Iterator[TarMember]:
    """All regular files in the archive's order. With `by_git`, skips names that begin with a dot, which policy readers
    ignore, and refuses empty folders, which git writes for submodules. Raises BadArchive."""
    names, total, empty = TarNames(), 0, dict[str, None]()
    for name, size, kind in _headers(archive):
        if kind == _FOLDER and size == 0:
            empty[name.rstrip("/")] = None
            continue
        if kind not in _REGULAR:
            raise BadArchive(f"{name[:128]!r} is not a regular file")
        total += size
        if size > MAX_FILE_BYTES or total > MAX_BYTES:
            raise BadArchive(f"it has more than {MAX_BYTES // 2**20} MiB, or one file of too many")
        content = _content(archive, size)
        for above in _above(name):
            empty.pop(above, None)
        if not (by_git and _is_hidden(name)):
            names.take(name)
            yield TarMember(name, size, content)
        for _ in content:  # skip content that the caller did not read
            pass
        _exactly(archive, _padded(size) - size)
    if by_git and (folder := next((name for name in empty if not _is_hidden(name)), None)):
        raise BadArchive(f"{folder[:128]!r} is a submodule: what is in it would be missing")


def _headers(archive: IO[bytes]) -> Iterator[tuple[str, int, bytes]]:
    """The name, size and type of each member. Comments are skipped."""
    for _ in range(MAX_ENTRIES):
        header = _exactly(archive, BLOCK, may_end=True)
        if not header.strip(b"\0"):
            return
        name, size, kind = _header(header)
        if kind != _COMMENT:
            yield name, size, kind
            continue
        if size > MAX_COMMENT:  # git writes the commit id here; other extended headers are ignored
            raise BadArchive("it has a comment that is none")
        _exactly(archive, _padded(size))
    raise BadArchive(f"it has more than {MAX_ENTRIES} entries")


def write_member(root: Path, member: TarMember) -> None:
    """Writes one file, synced to disk, under a folder that only this user can write. Raises BadArchive if its name is
    taken, OSError."""
    target = root / member.name
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except (FileExistsError, NotADirectoryError):
        raise BadArchive(f"{member.name} is there twice") from None
    with os.fdopen(descriptor, "wb") as file:
        for chunk in member.content:
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())


def archive_of(files: Mapping[str, bytes]) -> bytes:
    """A tar.gz that depends on names and contents only. Raises BadArchive for a name that is too long."""
    out = io.BytesIO()
    with (
        GzipFile(fileobj=out, mode="wb", mtime=0, filename="") as packer,
        TarFile(fileobj=packer, mode="w", format=USTAR_FORMAT) as archive,
    ):
        for name, raw in files.items():
            info = TarInfo(name)
            info.size = len(raw)
            try:
                archive.addfile(info, io.BytesIO(raw))
            except ValueError:
                raise BadArchive(f"{name[:128]} is too long a name") from None
    return out.getvalue()


def _above(name: str) -> Iterator[str]:
    parts = name.split("/")
    return ("/".join(parts[:deep]) for deep in range(1, len(parts)))


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") and part not in (".", "..") for part in name.split("/"))


def _header(raw: bytes) -> tuple[str, int, bytes]:
    if raw[257:263] != b"ustar\0":
        raise BadArchive("it is not a tar archive of the POSIX kind")
    if _octal(raw[148:156]) != sum(raw[:148]) + 8 * 32 + sum(raw[156:]):
        raise BadArchive("a header of it is damaged")
    name, prefix = _text(raw[:100]), _text(raw[345:500])
    return f"{prefix}/{name}" if prefix else name, _octal(raw[124:136]), raw[156:157]


def _octal(raw: bytes) -> int:
    digits = raw.strip(b" \0")
    if not re.fullmatch(rb"[0-7]{1,11}", digits):
        raise BadArchive("a header of it has a number that is none")
    return int(digits, 8)


def _text(raw: bytes) -> str:
    text, _, rest = raw.partition(b"\0")
    if rest.strip(b"\0"):
        raise BadArchive("a header of it has a name with something behind it")
    return text.decode("utf-8", "backslashreplace")


def _content(archive: IO[bytes], size: int) -> Iterator[bytes]:
    left = size
    while left:
        chunk = _exactly(archive, min(left, CHUNK))
        left -= len(chunk)
        yield chunk


def _exactly(archive: IO[bytes], size: int, *, may_end: bool = False) -> bytes:
    found = b""
    while len(found) < size:
        try:
            more = archive.read(size - len(found))
        except (OSError, EOFError, zlib.error):
            more = b""
            may_end = False
        if not more:
            if may_end and not found:
                return b""
            raise BadArchive("it is damaged or cut off")
        found += more
    return found


def _padded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK
