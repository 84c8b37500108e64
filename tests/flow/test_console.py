"""The console as a browser uses it: logging in, pages, forms, event streams, and what it refuses."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.flow.world import World, world

OPERATOR, VIEWER = "4f1c9f0b7a6d4e52b8c3d1a09e7f6b5c", "b2d64c1e8f0a4739a5c7e91d3f6b8a20"
PDP = "c7a1e5f09b3d4862a6d0f7b8e1c35942"
SETTINGS = """\
admin:
  listen: "127.0.0.1:0"
  console: {enabled: true}
  credentials:
    - {role: operator, name: olga, secret_path: op.key}
    - {role: viewer, secret_path: view.key}
    - {role: pdp, secret_path: pdp.key}
"""
FILES = {"op.key": OPERATOR, "view.key": VIEWER, "pdp.key": PDP}
HTML = {"Accept": "text/html"}
JSON = {"Accept": "application/json"}


class Browser:
    """A client that keeps cookies and sends what browsers send."""

    def __init__(self, world: World) -> None:
        self.world, self.base = world, world.admin_url
        self.http = aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))

    async def get(self, path: str, **headers: str) -> tuple[int, str, Any]:
        sent = {**HTML, **headers}
        async with self.http.get(self.base + path, headers=sent, allow_redirects=False) as response:
            return response.status, await response.text(), response.headers

    async def post(self, path: str, form: dict[str, str], **headers: str) -> tuple[int, str, Any]:
        sent = {**HTML, "Origin": self.base, **headers}
        async with self.http.post(self.base + path, data=form, headers=sent, allow_redirects=False) as response:
            return response.status, await response.text(), response.headers

    async def log_in(self, key: str = OPERATOR, next_path: str = "") -> tuple[int, str, Any]:
        return await self.post("/console/login", {"key": key, "next": next_path})

    async def csrf(self) -> str:
        _, page, _ = await self.get("/console/now")
        found = re.search(r'name="csrf" value="([^"]+)"', page)
        assert found
        return found[1]

    @property
    def cookies(self) -> dict[str, str]:
        return {cookie.key: cookie.value for cookie in self.http.cookie_jar}


@asynccontextmanager
async def browsed(folder: Path, **more: Any) -> AsyncIterator[tuple[World, Browser]]:
    more.setdefault("settings", SETTINGS)
    async with world(folder, files=FILES | more.pop("files", {}), **more) as running:
        browser = Browser(running)
        try:
            yield running, browser
        finally:
            await browser.http.close()


async def test_a_login_leads_to_the_page_that_was_asked_for(tmp_path: Path) -> None:
    async with browsed(tmp_path) as (_, browser):
        for path in ("/", "/console", "/console/"):
            status, _, headers = await browser.get(path)
            assert (status, headers["Location"]) == (303, "/console/now")
        status, _, headers = await browser.get("/console/now?a=b")
        assert (status, headers["Location"]) == (303, "/console/login?next=/console/now%3Fa%3Db")
        status, page, _ = await browser.get(headers["Location"])
        assert status == 200 and 'value="/console/now?a=b"' in page
        status, _, headers = await browser.log_in(next_path="/console/now?a=b")
        assert (status, headers["Location"]) == (303, "/console/now?a=b")
        status, page, _ = await browser.get("/console/now")
        assert status == 200 and "admin:olga" in page and "github" in page
