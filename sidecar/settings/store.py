"""Where are limits counted?"""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from sidecar.settings.fields import Section, not_yet
from sidecar.settings.findings import Finding, reject

_LATER = {"redis+sentinel": "Redis Sentinel", "redis+cluster": "Redis Cluster"}


def _store_url(text: str) -> str:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        reject(Finding("this is no URL"))
    if parts.scheme in _LATER:
        reject(Finding(f"{_LATER[parts.scheme]} is not supported by this version", "S105", "use redis:// or rediss://"))
    if parts.scheme not in ("memory", "redis", "rediss", "unix"):
        reject(
            Finding(
                "this is no store", hint="memory://, redis://host:6379/0, rediss://host:6379/0 or unix:///path/to.sock"
            )
        )
    if parts.scheme == "memory" and text != "memory://":
        reject(Finding("the in-process store takes no address", hint="write memory://"))
    if parts.scheme in ("redis", "rediss") and (not parts.hostname or port == 0):
        reject(Finding("the host is missing", hint=f"write {parts.scheme}://host:6379/0"))
    if parts.scheme == "unix" and not parts.path:
        reject(Finding("the path is missing", hint="write unix:///path/to.sock"))
    return text


class StoreSettings(Section):
    """The store of limits."""

    url: Annotated[str, Field(max_length=2048), AfterValidator(_store_url)] = Field(default="memory://", repr=False)
    """`memory://` counts in this process; `redis://`, `rediss://` or `unix://` count for all replicas."""
    on_failure: Annotated[Literal["deny", "degraded"], not_yet("on_failure degraded", "degraded")] = "deny"
    """What becomes of calls with limits while the store is out. `degraded` is not supported by this version."""

    @property
    def is_memory(self) -> bool:
        """Whether limits are counted in this process only."""
        return self.url == "memory://"
