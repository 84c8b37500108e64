"""The documentation site in Chromium: every page opens without an error, in light and dark and on a phone."""

import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.console.browser import PHONE, WIDE, ConsoleBrowser, browser_at, find_chromium
from tests.pages import ROOT

SAMPLE = ("", "reference/limits/", "glossary/")
FOCUSED_IN_VIEW = "scrollable-region-focusable: <code"  # the theme makes code focusable once it is in view
BROKEN_IMAGES = """
return [...document.images].filter(image => !(image.complete && image.naturalWidth)).map(image => image.src)
"""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built afresh. That it is built strictly is for `make docs`."""
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--no-strict", "--site-dir", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, timeout=120, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def browser(site: Path) -> Iterator[ConsoleBrowser]:
    if find_chromium() is None:
        pytest.skip("chromium and chromedriver are not installed")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with browser_at(f"http://127.0.0.1:{server.server_port}/") as window:
            yield window
        server.shutdown()


def test_every_page_opens_without_an_error_at_every_width_and_in_both_schemes(
    site: Path, browser: ConsoleBrowser
) -> None:
    pages = sorted(page.parent.relative_to(site).as_posix() for page in site.rglob("index.html"))
    assert len(pages) > 20
    wrong: list[str] = []
    for page in pages:
        browser.resize(WIDE)
        browser.prefer("light")
        browser.open("" if page == "." else f"{page}/")
        light = _background(browser)
        wrong += [f"{page}: {image}" for image in browser.run(BROKEN_IMAGES)]
        for size in (WIDE, PHONE):
            browser.resize(size)
            if browser.overflow() > 0:
                wrong.append(f"{page}: {browser.overflow()} px too wide at {size[0]}")
        browser.prefer("dark")
        try:
            browser.until(lambda light=light: _background(browser) != light)  # type: ignore[misc]
        except TimeoutError:
            wrong.append(f"{page}: the same in light and dark")
        wrong += [f"{page}: {complaint}" for complaint in browser.complaints()]
    assert not wrong, "\n".join(wrong)


def _background(browser: ConsoleBrowser) -> str:
    return str(browser.run("return getComputedStyle(document.body).backgroundColor"))


@pytest.mark.parametrize("page", SAMPLE)
def test_a_page_has_no_barrier(page: str, browser: ConsoleBrowser) -> None:
    browser.resize(WIDE)
    found = []
    for scheme in ("light", "dark"):
        browser.prefer(scheme)  # type: ignore[arg-type]
        browser.open(page)
        found += [barrier for barrier in browser.barriers() if not barrier.startswith(FOCUSED_IN_VIEW)]
    assert found == []


def test_the_search_finds_a_word_of_the_reference(browser: ConsoleBrowser) -> None:
    browser.resize(WIDE)
    browser.open("")
    browser.find(".md-search__input").click()
    browser.find(".md-search__input").send_keys("S102")
    browser.until(lambda: browser.all(".md-search-result__item a"))
    targets = [link.get_attribute("href") or "" for link in browser.all(".md-search-result__item a")]
    assert any("reference/error-codes/" in target for target in targets), targets
