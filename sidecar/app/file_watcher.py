"""Watches the operator's files for changes.

What counts is a look: which files there are, and when each was last written. Everything else only says when to look.
The operating system tells of events within milliseconds; of what it does not tell (a network file system, a link
that was turned to another folder) a look every ten seconds finds out. Files are taken when two looks agree, so that
a burst of writes, an editor's rename or Kubernetes' turning of `..data` is one change.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel

from sidecar.policy.files import left_by_an_editor
from sidecar.settings import Settings

POLL_S = 10.0
SOON_S = 1.0  # after beginning to listen: what was written before the system knew of it is told by nobody
STILL_S = 0.2  # two looks this far apart that agree: nobody is writing any more
LONGEST_S = 2.0  # who never stops writing is read all the same
STEP_MS = 50
MAX_FILES = 20_000
KUBERNETES_LINK = "..data"

log = logging.getLogger("sidecar.app.file_watcher")

WatchLook = Mapping[str, tuple[int, ...]]
"""By path: device, inode, size, and when content and inode were last changed. What is not there is not in it."""


def key_files(settings: Settings) -> tuple[Path, ...]:
    """Every file of keys and credentials that a reload reads anew."""
    signing = (settings.signing_key_path, *settings.previous_key_paths)
    tokens = [offer.authentication for _, _, offer in settings.offers()]
    variables = [agent.env_path for agent in settings.agents.values()]  # their folders are what they work in
    named = (settings.identity, settings.upstreams, variables, settings.server.tls, tokens)
    return (*_paths_in(named), settings.api_keys_pepper_path, *signing)


def look_at(config: Path, settings: Settings) -> WatchLook:
    """How every file that a reload reads lies there now."""
    singles = (config, *key_files(settings))
    folders = settings.policy.folders
    return {str(path): stamp for path in (*singles, *_files_under(folders)) if (stamp := _stamp(path))}


def with_made(seen: WatchLook, settings: Settings) -> WatchLook:
    """A look of before the start, with the signing key that the start itself made: that is no change of anybody's."""
    path = settings.signing_key_path
    made = _stamp(path) if str(path) not in seen else ()
    return {**seen, str(path): made} if made else seen


@dataclass(slots=True)
class FileWatcher:
    """Tells when the files differ from what was `seen`. `settings` say where they are now."""

    config: Path
    settings: Callable[[], Settings]
    seen: WatchLook
    _hint: asyncio.Event = field(default_factory=asyncio.Event)
    _ears: _Ears | None = None
    _listening_since: float = -math.inf

    async def run(self, changed: Callable[[], Awaitable[bool]]) -> None:
        """Call `changed` for each change; it returns whether it is done with it, else it is called again after the
        next look. Runs as long as the process."""
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
            self._stop_listening()

    async def look(self) -> WatchLook:
        """A look, off the loop: folders may be large, and file systems slow."""
        return await asyncio.to_thread(look_at, self.config, self.settings())

    def hint(self) -> None:
        """There may be something to see."""
        self._hint.set()

    def _patience_s(self) -> float:
        """How long to wait for an event."""
        since_s = asyncio.get_running_loop().time() - self._listening_since
        return SOON_S - since_s if since_s < SOON_S else POLL_S

    async def _settled(self) -> WatchLook:
        """A look at files that nobody is writing; the last look, if somebody never stops."""
        found, loop = await self.look(), asyncio.get_running_loop()
        ends_at = loop.time() + LONGEST_S
        while found != self.seen and loop.time() < ends_at:
            await asyncio.sleep(STILL_S)
            before, found = found, await self.look()
            if found == before:
                break
        return found

    async def _listen(self) -> None:
        """Have the operating system tell of events where the files are now."""
        settings = self.settings()
        wanted = await asyncio.to_thread(_Places.of, self.config, settings) if settings.policy.watch else None
        if self._ears is not None and self._ears.places == wanted:
            return
        self._stop_listening()
        if wanted is not None:
            loop = asyncio.get_running_loop()
            self._ears = _Ears(wanted, lambda: loop.call_soon_threadsafe(self._hint.set))
            self._ears.open()
            self._listening_since = loop.time()

    def _stop_listening(self) -> None:
        if self._ears is not None:
            self._ears.stop.set()
            self._ears = None


@dataclass(frozen=True, slots=True)
class _Places:
    """Where to listen: `deep` folders with all that is in them, `flat` ones only for some `names`. `inodes` tell
    whether a folder is still the one that was listened to."""

    deep: tuple[str, ...]
    flat: tuple[str, ...]
    names: frozenset[str]
    inodes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, config: Path, settings: Settings) -> _Places:
        folders = settings.policy.folders
        singles = (config, *key_files(settings), *folders)  # of a folder: that it goes and comes
        links = [link for path in singles for link in _links_in(path)]
        deep = tuple(sorted({str(path) for path in folders if _is_folder(path)}))
        flat = tuple(sorted({str(path.parent) for path in (*singles, *links) if _is_folder(path.parent)}))
        names = frozenset({KUBERNETES_LINK, *(path.name for path in (*singles, *links))})
        return cls(deep, flat, names, tuple(_stamp(Path(path))[:2] for path in (*deep, *flat)))


@dataclass(slots=True)
class _Ears:
    """Two threads that hear events, and end by themselves soon after `stop`. `hear` is called from them."""

    places: _Places
    hear: Callable[[], object]
    stop: threading.Event = field(default_factory=threading.Event)

    def open(self) -> None:
        for paths, deep in ((self.places.deep, True), (self.places.flat, False)):
            if paths:
                threading.Thread(target=self._run, args=(paths, deep), name="sidecar-watch", daemon=True).start()

    def _run(self, paths: tuple[str, ...], deep: bool) -> None:
        import watchfiles  # here: what it imports need not hold up a start

        logging.getLogger("watchfiles").setLevel(logging.WARNING)
        matters = _tells_of_policy if deep else self.places.names.__contains__
        try:
            for _ in watchfiles.watch(
                *paths,
                watch_filter=lambda change, path: matters(Path(path).name),
                recursive=deep,
                step=STEP_MS,
                debounce=int(STILL_S * 1000),
                stop_event=self.stop,
                raise_interrupt=False,
            ):
                self.hear()
        except (OSError, RuntimeError) as error:  # no inotify, its limit reached, or the loop is closed
            if not self.stop.is_set():
                log.warning(f"files are looked at every {POLL_S:.0f} s only", extra={"error": str(error)})


def _tells_of_policy(name: str) -> bool:
    return name == KUBERNETES_LINK or _is_policy(name)


def _is_policy(name: str) -> bool:
    return not name.startswith(".") and not left_by_an_editor(name)


def _stamp(path: Path) -> tuple[int, ...]:
    """Empty for what is not there."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _is_folder(path: Path) -> bool:
    """Not for a file system in trouble, where `is_dir` raises."""
    try:
        return path.is_dir()
    except OSError:
        return False


def _files_under(folders: tuple[Path, ...]) -> Iterator[Path]:
    """Every file that a load would read or refuse, links followed, each folder once."""
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
    """The parts of a path that are links, and those of what they point to: any of them may be exchanged."""
    for part in (path.absolute(), *path.absolute().parents):
        with suppress(OSError):
            if deep and part.is_symlink():
                yield part
                yield from _links_in(part.parent / part.readlink(), deep - 1)


def _paths_in(value: object) -> Iterator[Path]:
    """Every path in a part of the settings."""
    if isinstance(value, Path):
        yield value
    elif isinstance(value, BaseModel):
        yield from _paths_in([getattr(value, name) for name in type(value).model_fields])
    elif isinstance(value, Mapping):
        yield from _paths_in(list(value.values()))
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _paths_in(entry)
