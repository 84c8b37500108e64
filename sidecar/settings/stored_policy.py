"""Locates and records policies from a remote source, each in a folder of its own in the data folder."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final

import orjson
from pydantic import Field, TypeAdapter

from sidecar.errors import SettingsError, fault_in
from sidecar.settings.reading import read_bounded
from sidecar.settings.shipped_files import shipped
from sidecar.settings.sidecar_file import Settings

FOLDER: Final = "policy"
CURRENT: Final = "current.json"
VERSION: Final = 1
MAX_BYTES: Final = 64 * 1024
NOTHING_YET: Final = "nothing-yet"
ROWS_FILE: Final = "policy.csv"
_HINT: Final = "remove it to start again: any version is then accepted"


@dataclass(frozen=True, slots=True)
class StoredPolicy:
    """One policy from a source. `name` is the SHA-256 of a bundle or of an adapter's rows, or the id of a commit, and
    the name of its folder. `of` identifies the source: the name in the bundle, the repository and its folder, or the
    adapter. A later policy has no smaller `version`. `size` is in bytes, for an adapter in rows. `created_at` and
    `taken_at` are in seconds since the epoch. `manifest` is the SHA-256 of a bundle's manifest."""

    name: Annotated[str, Field(pattern="^[0-9A-Za-z]+$")]
    kind: str
    of: str
    version: int
    size: int
    signer: str
    created_at: float
    taken_at: float
    manifest: str = ""

    def plain(self) -> bytes:
        return orjson.dumps({"v": VERSION, **asdict(self)}, option=orjson.OPT_INDENT_2) + b"\n"


def shelf_of(settings: Settings) -> Path:
    """The folder of all policies from a source."""
    if settings.server.workers != 1 and not settings.server.worker:  # a command; all workers have the policy
        return settings.own_of(1) / FOLDER
    return settings.own / FOLDER


def kept_for(settings: Settings) -> StoredPolicy | None:
    """The last policy that was accepted; None if there is none. Raises SettingsError if its record is unreadable,
    because without the record an older policy could replace it."""
    path = shelf_of(settings) / CURRENT
    try:
        said = orjson.loads(read_bounded(path, MAX_BYTES))
        if said["v"] != VERSION:
            raise ValueError(f"it has version {said['v']!r}")
        return TypeAdapter(StoredPolicy).validate_python(said)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = f"it cannot be read: {error}"
        raise SettingsError([fault_in(path, why, code="S162", hint=_HINT)]) from None


def placed(settings: Settings, kept: StoredPolicy | None = None) -> Settings:
    """The settings with the folders of the source's policy: of `kept`, or of the last one that was accepted. Raises
    SettingsError."""
    if settings.policy.source is None:
        return settings
    kept = kept or kept_for(settings)
    if kept is not None and (kept.kind == "adapter") is settings.policy.is_fetched:
        kept = None  # of another kind of source, which has other files
    folder = shelf_of(settings) / (NOTHING_YET if kept is None else kept.name)
    if not settings.policy.is_fetched:
        return settings.model_copy(update={"policy": settings.policy.with_rows(folder / "policies" / ROWS_FILE)})
    models = folder / "models"
    there = {"path": folder / "policies", "models": models if models.is_dir() else shipped("models")}
    return settings.model_copy(update={"policy": settings.policy.model_copy(update=there)})


def stored_name(settings: Settings) -> str:
    """The name of the stored policy that `placed` has put into the settings."""
    return (settings.policy.rows or settings.policy.path / ROWS_FILE).parent.parent.name
