"""Is a bundle fetched from whom it should come from, and from nobody else?"""

import ssl
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from sidecar.app.policy_sources import https
from sidecar.app.policy_sources.bundle import build, sign
from sidecar.app.policy_sources.https import BundleOrigin
from sidecar.app.policy_sources.stored_revisions import SourceError
from sidecar.http.signing_keys import generate
from sidecar.settings.load import load_settings
from sidecar.settings.sidecar_file import Settings
from tests.unit.identity.authority import authority

ROW = "p, nhi:planner, tool:github/search_code, use, -, -, -, allow\n"


def signed(folder: Path) -> bytes:
    """A bundle, and beside it the key that vouches for it."""
    (folder / "made" / "policies").mkdir(parents=True)
    (folder / "made" / "policies" / "agent_to_tool.csv").write_text(ROW)
    key = generate("EdDSA")
    (folder / "keys.json").write_text(key.jwks())
    return sign(build(folder / "made", name="policy", version=1, created_at=0.0), key)


def settings_of(folder: Path, url: str, ca: str = "ca.pem") -> Settings:
    (folder / "token").write_text("s3cret\n")
    path = folder / "sidecar.yaml"
    bundle = f"url: {url}, keys_path: keys.json, ca_path: {ca}, bearer_path: token, timeout_s: 2"
    path.write_text(f"version: 1\npolicy: {{source: {{bundle: {{{bundle}}}}}}}\n")
    return load_settings(path, {}, check_files=False)


@asynccontextmanager
async def shop(certificate: Sequence[Path], answer: web.Response, heard: list[str]) -> AsyncIterator[str]:
    """Where a bundle lies; `heard` are the tokens that it was shown."""

    async def serve(request: web.Request) -> web.StreamResponse:
        heard.append(request.headers.get("Authorization", ""))
        if answer.status != 204:
            return answer
        endless = web.StreamResponse()
        await endless.prepare(request)
        while True:
            await endless.write(b"\0" * 65536)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    app = web.Application()
    app.router.add_get("/policy.tar.gz", serve)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    try:
        yield f"https://127.0.0.1:{runner.addresses[0][1]}/policy.tar.gz"
    finally:
        await runner.cleanup()


async def test_over_tls_it_comes_from_whom_the_authorities_that_are_named_vouch_for(tmp_path: Path) -> None:
    ours, strangers = authority("ours"), authority("strangers")
    (tmp_path / "ca.pem").write_text(ours.own.pem)
    bundle, heard = signed(tmp_path), list[str]()
    good = ours.issue(address="127.0.0.1").write(tmp_path, "good")
    async with shop(good, web.Response(body=bundle), heard) as url:
        kept = await BundleOrigin(time.time).look(settings_of(tmp_path, url))
        assert kept is not None and kept.version == 1 and heard == ["Bearer s3cret"]
    for name, certificate in (
        ("stranger", strangers.issue(address="127.0.0.1")),
        ("another", ours.issue(address="127.0.0.2")),
    ):
        async with shop(certificate.write(tmp_path, name), web.Response(body=bundle), heard) as url:
            with pytest.raises(SourceError, match="cannot be fetched"):
                await BundleOrigin(time.time).look(settings_of(tmp_path, url))
    assert heard == ["Bearer s3cret"], "no token is shown to a stranger"
    with pytest.raises(SourceError, match="its files cannot be used"):
        await BundleOrigin(time.time).look(settings_of(tmp_path, "https://127.0.0.1:1/policy.tar.gz", "nowhere.pem"))


async def test_it_is_followed_nowhere_and_read_no_further_than_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(https, "MAX_BYTES", 100_000)
    ours, heard = authority("ours"), list[str]()
    (tmp_path / "ca.pem").write_text(ours.own.pem)
    good = ours.issue(address="127.0.0.1").write(tmp_path, "good")
    signed(tmp_path)
    async with shop(good, web.Response(), heard) as target:
        moved = web.Response(status=302, headers={"Location": target})
        async with shop(good, moved, []) as url:
            with pytest.raises(SourceError, match="status 302 where 200 was needed"):
                await BundleOrigin(time.time).look(settings_of(tmp_path, url))
    assert not heard
    async with shop(good, web.Response(status=204), []) as url:
        with pytest.raises(SourceError, match="cannot be fetched"):
            await BundleOrigin(time.time).look(settings_of(tmp_path, url))
