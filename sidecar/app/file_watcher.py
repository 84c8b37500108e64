"""Watches the operator's files for changes.

A scan every half second lists the files and their last write times, following links. A change is accepted when two
scans agree, so that a burst of writes, an editor's rename or Kubernetes' swap of `..data` is one change.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from sidecar.policy.files import left_by_an_editor
from sidecar.settings.load import paths_in
from sidecar.settings.sidecar_file import Settings

LOOK_S = 0.5
LOOK_SHARE, LONGEST_REST_S = 10, 5.0  # after a slow scan, so that at most a tenth of the time is spent on scans
RETRY_S = 10.0  # after a change that could not be put in force for a reason outside the files
STILL_S = 0.2  # between two scans that agree: writing has ended
LONGEST_S = 2.0  # files that keep changing are read after this long
MAX_FILES = 20_000

WatchLook = Mapping[str, tuple[int, ...]]
"""Device, inode, size and the times of the last change of content and inode, by path. Missing files are omitted."""


def key_files(settings: Settings) -> tuple[Path, ...]:
    """All files of keys and credentials that a reload reads again."""
    signing = (settings.signing_key_path, *settings.previous_key_paths)
    tokens = tuple(offer.authentication for _, _, offer in settings.offers())
    variables = tuple(agent.env_path for agent in settings.agents.values())  # agents write in their working folders
    named = (
        settings.identity,
        settings.upstreams,
        variables,
        settings.server.tls,
        settings.admin,
        settings.pdp,
        settings.egress,
        tokens,
    )
    return (*(path for _, path in paths_in(named)), settings.api_keys_pepper_path, *signing)


def look_at(config: Path, settings: Settings) -> WatchLook:
    """The current state of every file that a reload reads."""
    return _stamps((config, *key_files(settings), *settings.policy.files)) | look_under(settings.policy.folders)


def look_under(folders: tuple[Path, ...]) -> dict[str, tuple[int, ...]]:
    """The current state of every file in these folders that a load would read or refuse."""
    return _stamps(_files_under(folders))


def with_made(seen: WatchLook, settings: Settings) -> WatchLook:
    """A scan from before the start, updated with the signing key that the start created, which is not a change."""
    path = settings.signing_key_path
    made = _stamp(path) if str(path) not in seen else ()
    return {**seen, str(path): made} if made else seen


@dataclass(slots=True)
class FileWatcher:
    """Reports when files differ from `seen`. `settings` returns the settings that name the files."""

    config: Path
    settings: Callable[[], Settings]
    seen: WatchLook
    _hint: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, changed: Callable[[], Awaitable[bool]]) -> None:
        """Calls `changed` for each change; if it returns False, again after RETRY_S. Runs as long as the process."""
        loop, rest_s, retry_at = asyncio.get_running_loop(), LOOK_S, math.inf
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(rest_s):  # not wait_for(), which may swallow a cancellation
                    await self._hint.wait()
            self._hint.clear()
            if not self.settings().policy.watch:
                continue
            began_at, found = loop.time(), await self.look()
            rest_s = min(max(LOOK_S, LOOK_SHARE * (loop.time() - began_at)), LONGEST_REST_S)
            if await self._settled(found) != self.seen or loop.time() >= retry_at:
                retry_at = math.inf if await changed() else loop.time() + RETRY_S

    async def look(self) -> WatchLook:
        """Scans in a thread: folders may be large and file systems slow."""
        return await asyncio.to_thread(look_at, self.config, self.settings())

    def hint(self) -> None:
        """Scans now."""
        self._hint.set()

    async def _settled(self, found: WatchLook) -> WatchLook:
        """A scan that agrees with the one before it, or the last scan if the files keep changing."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + LONGEST_S
        while found != self.seen and loop.time() < ends_at:
            await asyncio.sleep(STILL_S)
            before, found = found, await self.look()
            if found == before:
                break
        return found


def _stamps(paths: Iterable[Path]) -> dict[str, tuple[int, ...]]:
    return {str(path): stamp for path in paths if (stamp := _stamp(path))}


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except (OSError, ValueError):
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _is_folder(path: Path) -> bool:
    """Like `is_dir`, but False if that raises because of file system errors."""
    try:
        return path.is_dir()
    except OSError:
        return False


def _files_under(folders: tuple[Path, ...]) -> Iterator[Path]:
    """All files that a load would read or refuse. Follows links, and visits each folder once."""
    todo, entered, count = list(folders), set[tuple[int, ...]](), 0
    while todo:
        folder = todo.pop()
        place = _stamp(folder)[:2]
        if not place or place in entered:
            continue
        entered.add(place)
        with suppress(OSError):
            for path in folder.iterdir():
                if path.name.startswith(".") or left_by_an_editor(path.name):
                    continue
                count += 1
                if count > MAX_FILES:
                    return
                if _is_folder(path):
                    todo.append(path)
                else:
                    yield path
