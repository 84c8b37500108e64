"""What a real browser does with the console's cookies, frames and forms when another site is involved.

`localhost` and `127.0.0.1` are two sites to a browser: the console is at one, the provider and the hostile page at the
other.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from tests.console.browser import WITHIN_S, ConsoleBrowser, browser_at, find_chromium
from tests.console.scene import OPERATOR, hosted
from tests.flow.openid import OpenIdProvider
from tests.flow.test_console import FILES, SETTINGS
from tests.flow.test_console_oidc import OIDC
from tests.flow.world import World, listening, world

Site = tuple[World, OpenIdProvider, str, asyncio.AbstractEventLoop]


def elsewhere(url: str) -> str:
    return url.replace("127.0.0.1", "localhost")


@asynccontextmanager
async def _site(folder: Path) -> AsyncIterator[Site]:
    """A sidecar, its OpenID provider, and the address of a page of another site."""
    provider, console = OpenIdProvider(secret=""), ""

    async def hostile(request: web.Request) -> web.StreamResponse:
        pages: Mapping[str, str] = {
            "/link": f'<a id="link" href="{console}/console/now?span=1h">the console</a>',
            "/frame": f'<iframe id="frame" src="{console}/console/login"></iframe>',
            "/form": f'<form id="form" method="post" action="{console}/console/logout"><button>go</button></form>',
        }
        return web.Response(text=pages.get(request.path, ""), content_type="text/html")

    async with listening(provider.handle) as url, listening(hostile) as page:
        provider.url = elsewhere(url)
        settings = SETTINGS.replace("enabled: true", OIDC % (provider.url, ""))
        async with world(folder, settings=settings, files=FILES) as running:
            console = running.admin_url
            yield running, provider, elsewhere(page), asyncio.get_running_loop()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    if find_chromium() is None:
        pytest.skip("chromium and chromedriver are not installed")
    with hosted(_site(tmp_path)) as found:
        yield found


@pytest.fixture
def browser(site: Site) -> Iterator[ConsoleBrowser]:
    with browser_at(site[0].admin_url) as window:
        yield window


def logged_in(browser: ConsoleBrowser) -> bool:
    browser.open("/console/now")
    return "/login" not in browser.driver.current_url


def test_a_login_at_a_provider_of_another_site_comes_back_to_the_page(site: Site, browser: ConsoleBrowser) -> None:
    browser.open("/console/now?span=1h")
    assert "/console/login" in browser.driver.current_url
    browser.find("a.button").click()
    browser.until(lambda: browser.driver.current_url == f"{site[0].admin_url}/console/now?span=1h")
    assert "oidc:alice" in browser.text(".side .who")
    assert browser.complaints() == []
    assert site[1].refused == []


def test_a_link_on_another_site_opens_the_page_for_who_is_logged_in(site: Site, browser: ConsoleBrowser) -> None:
    browser.log_in(OPERATOR)
    browser.driver.get(f"{site[2]}/link")
    browser.find("#link").click()
    browser.until(lambda: browser.text("h1") == "Now")
    assert browser.driver.current_url == f"{site[0].admin_url}/console/now?span=1h"


def test_another_site_can_neither_frame_the_console_nor_send_its_forms(site: Site, browser: ConsoleBrowser) -> None:
    browser.log_in(OPERATOR)
    browser.driver.get(f"{site[2]}/frame")
    browser.driver.switch_to.frame(browser.find("#frame"))
    assert browser.all("#key") == []
    browser.driver.switch_to.default_content()
    assert any("frame-ancestors" in one or "X-Frame-Options" in one for one in browser.complaints())
    browser.driver.get(f"{site[2]}/form")
    browser.find("button").click()
    browser.until(lambda: "403" in browser.text("h1"))
    assert logged_in(browser)


def test_a_page_whose_stream_is_lost_says_so(site: Site, browser: ConsoleBrowser) -> None:
    running = site[0]
    browser.log_in(OPERATOR)
    browser.until(lambda: browser.text("h1") == "Now")
    admin = next(one for one in running.app.listeners if running.admin_url.endswith(f":{one.port}"))
    closing = asyncio.run_coroutine_threadsafe(admin.close(0.2), site[3])
    browser.until(lambda: "This page is not live" in browser.text())
    closing.result(WITHIN_S)
