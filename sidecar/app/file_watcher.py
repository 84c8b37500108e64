"""Watches the operator's files for changes.

A scan lists the files and when each was last written; only scans decide whether something changed. Events of the
operating system arrive within milliseconds and only trigger a scan. A scan every ten seconds finds changes that have no
events, such as those on network file systems and links that were redirected to another folder. A change counts when two
scans agree, so that a burst of writes, an editor's rename or Kubernetes' swap of `..data` is one change.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path

from pydantic import BaseModel

from sidecar.policy.files import left_by_an_editor
from sidecar.settings import Settings

POLL_S = 10.0
SOON_S = 1.0  # scan after starting to listen: earlier writes have no event
STILL_S = 0.2  # two scans this far apart that agree: writing has ended
LONGEST_S = 2.0  # files that keep changing are read after this long
STEP_MS = 50
MAX_FILES = 20_000
KUBERNETES_LINK = "..data"

log = logging.getLogger("sidecar.app.file_watcher")

WatchLook = Mapping[str, tuple[int, ...]]
"""Device, inode, size and the times of the last change of content and inode, by path. Missing files are left out."""


def key_files(settings: Settings) -> tuple[Path, ...]:
    """All files of keys and credentials that a reload reads again."""
    signing = (settings.signing_key_path, *settings.previous_key_paths)
    tokens = [offer.authentication for _, _, offer in settings.offers()]
    variables = [agent.env_path for agent in settings.agents.values()]  # agents write in their working folders
    named = (settings.identity, settings.upstreams, variables, settings.server.tls, tokens)
    return (*_paths_in(named), settings.api_keys_pepper_path, *signing)


def look_at(config: Path, settings: Settings) -> WatchLook:
    """The current state of every file that a reload reads."""
    singles = (config, *key_files(settings))
    folders = settings.policy.folders
    return {str(path): stamp for path in (*singles, *_files_under(folders)) if (stamp := _stamp(path))}


def with_made(seen: WatchLook, settings: Settings) -> WatchLook:
    """A scan from before the start, updated with the signing key that the start created: that is not a change."""
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
    _places: _Places | None = None
    _stop: threading.Event = field(default_factory=threading.Event)
    _listening_since: float = -math.inf

    async def run(self, changed: Callable[[], Awaitable[bool]]) -> None:
        """Call `changed` for each change. If it returns False, it is called again after the next scan. Runs as long as
        the process."""
        done = True
        try:
            while True:
                await self._listen()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._patience_s()):  # not wait_for(), which may swallow a cancellation
                        await self._hint.wait()
                self._hint.clear()
                if self.settings().policy.watch and (await self._settled() != self.seen or not done):
                    done = await changed()
        finally:
            self._stop.set()

    async def look(self) -> WatchLook:
        """Scan in a thread: folders may be large and file systems slow."""
        return await asyncio.to_thread(look_at, self.config, self.settings())

    def hint(self) -> None:
        self._hint.set()

    def _patience_s(self) -> float:
        """The longest time to wait for an event, in seconds."""
        since_s = asyncio.get_running_loop().time() - self._listening_since
        return SOON_S - since_s if since_s < SOON_S else POLL_S

    async def _settled(self) -> WatchLook:
        """A scan that agrees with the one before it, or the last scan if the files keep changing."""
        found, loop = await self.look(), asyncio.get_running_loop()
        ends_at = loop.time() + LONGEST_S
        while found != self.seen and loop.time() < ends_at:
            await asyncio.sleep(STILL_S)
            before, found = found, await self.look()
            if found == before:
                break
        return found

    async def _listen(self) -> None:
        """Subscribe to the operating system's events for the current files."""
        settings = self.settings()
        wanted = await asyncio.to_thread(_Places.of, self.config, settings) if settings.policy.watch else None
        if self._places == wanted:
            return
        self._stop.set()
        self._places, self._stop = wanted, threading.Event()
        if wanted is not None:
            loop = asyncio.get_running_loop()
            hear = partial(loop.call_soon_threadsafe, self._hint.set)
            for paths, names in ((wanted.deep, None), (wanted.flat, wanted.names)):
                if paths:
                    given = paths, names, hear, self._stop
                    threading.Thread(target=_hear_changes, args=given, name="sidecar-watch", daemon=True).start()
            self._listening_since = loop.time()


@dataclass(frozen=True, slots=True)
class _Places:
    """The folders to listen to: `deep` ones with their whole tree, `flat` ones only for certain `names`. `inodes` show
    whether a folder is still the one that was subscribed to."""

    deep: tuple[str, ...]
    flat: tuple[str, ...]
    names: frozenset[str]
    inodes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, config: Path, settings: Settings) -> _Places:
        folders = settings.policy.folders
        singles = (config, *key_files(settings), *folders)  # folders too: they may be created or removed
        links = [link for path in singles for link in _links_in(path)]
        deep = tuple(sorted({str(path) for path in folders if _is_folder(path)}))
        flat = tuple(sorted({str(path.parent) for path in (*singles, *links) if _is_folder(path.parent)}))
        names = frozenset({KUBERNETES_LINK, *(path.name for path in (*singles, *links))})
        return cls(deep, flat, names, tuple(_stamp(Path(path))[:2] for path in (*deep, *flat)))


def _hear_changes(
    paths: tuple[str, ...], names: frozenset[str] | None, hear: Callable[[], object], stop: threading.Event
) -> None:
    """Call `hear` at each event in these folders until `stop`: for these `names`, or for policies in the whole tree."""
    import watchfiles  # imported here to keep the start fast

    logging.getLogger("watchfiles").setLevel(logging.WARNING)

    def matters(_: watchfiles.Change, path: str) -> bool:
        name = Path(path).name
        return name == KUBERNETES_LINK or _is_policy(name) if names is None else name in names

    try:
        for _ in watchfiles.watch(
            *paths,
            watch_filter=matters,
            recursive=names is None,
            step=STEP_MS,
            debounce=int(STILL_S * 1000),
            stop_event=stop,
            raise_interrupt=False,
        ):
            hear()
    except (OSError, RuntimeError) as error:  # no inotify, its limit is reached, or the loop is closed
        if not stop.is_set():
            log.warning(f"files are looked at every {POLL_S:.0f} s only", extra={"error": str(error)})


def _is_policy(name: str) -> bool:
    return not name.startswith(".") and not left_by_an_editor(name)


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except (OSError, ValueError):
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _is_folder(path: Path) -> bool:
    """Like `is_dir`, but False where that raises because of file system errors."""
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
                if not _is_policy(path.name):
                    continue
                count += 1
                if count > MAX_FILES:
                    return
                if _is_folder(path):
                    todo.append(path)
                else:
                    yield path


def _links_in(path: Path, deep: int = 8) -> Iterator[Path]:
    """The links in a path and in their targets: any of them may be replaced."""
    for part in (path.absolute(), *path.absolute().parents):
        with suppress(OSError):
            if deep and part.is_symlink():
                yield part
                yield from _links_in(part.parent / part.readlink(), deep - 1)


def _paths_in(value: object) -> Iterator[Path]:
    match value:
        case Path():
            yield value
        case BaseModel():
            yield from _paths_in([getattr(value, name) for name in type(value).model_fields])
        case Mapping():
            yield from _paths_in(list(value.values()))
        case list() | tuple():
            yield from chain.from_iterable(map(_paths_in, value))
