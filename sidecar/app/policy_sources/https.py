"""Fetches a policy bundle over HTTPS."""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sidecar.app.policy_sources.bundle import MAX_KEY_FILE, opened, read_keys
from sidecar.app.policy_sources.stored_revisions import SourceError, StoredRevisions, objection
from sidecar.errors import SettingsError
from sidecar.http.client import Egress, EgressError, egress_from
from sidecar.http.client.fetch import FetchedDocument, fetch_newer
from sidecar.http.tls import read_authorities
from sidecar.settings.egress import EgressSettings
from sidecar.settings.policy import BundleSource
from sidecar.settings.reading import read_bounded
from sidecar.settings.secrets import read_secret
from sidecar.settings.sidecar_file import Settings
from sidecar.settings.stored_policy import StoredPolicy, kept_for

MAX_BYTES: Final = 64 * 2**20


@dataclass(slots=True)
class BundleOrigin:
    """A bundle at a URL. `_seen` holds the validator of the last response and the settings and keys at that time. A
    bundle that was already accepted or refused under the same settings and keys is not fetched again."""

    clock: Callable[[], float]
    environ: Mapping[str, str] = field(default_factory=dict)
    _seen: tuple[str, BundleSource, bytes] | None = None
    _refused: str = ""
    rest_s: float = 0.0

    async def look(self, settings: Settings) -> StoredPolicy | None:
        """Fetches, checks and unpacks the bundle if it differs from the last accepted one. Raises SourceError."""
        chosen = settings.policy.source.bundle if settings.policy.source else None
        assert chosen is not None
        keys = await asyncio.to_thread(_read, chosen.keys_path)
        known = self._seen[0] if self._seen is not None and self._seen[1:] == (chosen, keys) else ""
        fetched = await _fetched(chosen, known, settings.egress, self.environ)
        if fetched is None:
            if self._refused:
                raise SourceError(self._refused, refused=True)
            return None
        try:
            kept = await asyncio.to_thread(self._take, settings, chosen, fetched.body)
            self._refused = ""
        except SourceError as error:
            self._refused = str(error) if error.refused else ""
            raise
        finally:
            self._seen = (fetched.etag, chosen, keys) if fetched.etag else None
        return kept

    def refuse(self, why: str) -> None:
        self._refused = why

    def forget(self) -> None:
        self._seen, self._refused = None, ""  # the settings or keys may have changed

    async def close(self) -> None:
        """No part of it runs between two polls."""

    def _take(self, settings: Settings, chosen: BundleSource, raw: bytes) -> StoredPolicy | None:
        old, shelf = kept_for(settings), StoredRevisions(settings)
        try:
            with shelf.aside() as made:
                found = opened(raw, read_keys(chosen.keys_path), into=made)
                said = found.manifest
                new = StoredPolicy(
                    name=found.digest,
                    kind="bundle",
                    of=said.name,
                    version=said.version,
                    size=said.size,
                    signer=found.key_id,
                    created_at=said.created_at,
                    taken_at=self.clock(),
                    manifest=found.manifest_digest,
                )
                if old is not None and (old.name == new.name or old.manifest == new.manifest):
                    return None  # or signed by another key, with the same content
                if said.name != chosen.name:
                    raise SourceError(f"it is the policy of {said.name!r:.80}", refused=True)
                if why := objection(new, old, chosen.accept):
                    raise SourceError(f"{why} (its digest is {new.name})", refused=True)
                shelf.name(made, new.name)
                return new
        except OSError as error:
            raise SourceError(f"it cannot be stored: {error}") from None


def _read(path: Path) -> bytes:
    try:
        return read_bounded(path, MAX_KEY_FILE)
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from None


async def _fetched(
    chosen: BundleSource, etag: str, settings: EgressSettings, environ: Mapping[str, str]
) -> FetchedDocument | None:
    headers = [("Accept", "application/gzip, application/octet-stream")]
    try:
        if chosen.bearer_path is not None:
            secret = await asyncio.to_thread(read_secret, chosen.bearer_path, "theirs")
            headers.append(("Authorization", f"Bearer {secret}"))
        egress, tls = await asyncio.to_thread(_leaving, chosen, settings, environ)
        bounds: dict[str, Any] = {"max_bytes": MAX_BYTES, "deadline_s": chosen.timeout_s}
        return await fetch_newer(chosen.url, etag, headers, **bounds, egress=egress, tls=tls)
    except EgressError as error:
        raise SourceError(f"it cannot be fetched: {error}") from None
    except SettingsError as error:
        raise SourceError(f"its files cannot be used: {error}") from None


def _leaving(
    chosen: BundleSource, settings: EgressSettings, environ: Mapping[str, str]
) -> tuple[Egress, ssl.SSLContext]:
    """Returns the egress of the connection and its trusted authorities. Raises SettingsError."""
    egress = egress_from(settings, environ)
    return egress, egress.tls(instead="" if chosen.ca_path is None else read_authorities(chosen.ca_path))
