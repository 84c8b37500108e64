"""The documentation site in Chromium: every page opens without an error, on a phone too; a sample in light and dark."""

import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.console.browser import PHONE, WIDE, ConsoleBrowser, Scheme, browser_at, find_chromium
from tests.pages import ROOT

SAMPLE = ("", "reference/limits/", "glossary/")
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
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


def test_every_page_opens_without_an_error_at_every_width(site: Path, browser: ConsoleBrowser) -> None:
    pages = sorted(page.parent.relative_to(site).as_posix() for page in site.rglob("index.html"))
    assert len(pages) > 20
    browser.prefer("light")
    wrong: list[str] = []
    for page in pages:
        browser.resize(WIDE)
        browser.open("" if page == "." else f"{page}/")
        wrong += [f"{page}: {image}" for image in browser.run(BROKEN_IMAGES)]
        for size in (WIDE, PHONE):
            browser.resize(size)
            if browser.overflow() > 0:
                wrong.append(f"{page}: {browser.overflow()} px too wide at {size[0]}")
        wrong += [f"{page}: {complaint}" for complaint in browser.complaints()]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", SAMPLE)
def test_a_page_has_no_barrier_in_light_and_dark(page: str, browser: ConsoleBrowser) -> None:
    browser.resize(WIDE)
    found, backgrounds = [], set()
    for scheme in SCHEMES:
        browser.prefer(scheme)
        browser.open(page)
        backgrounds.add(browser.run("return getComputedStyle(document.body).backgroundColor"))
        found += [barrier for barrier in browser.barriers() if not barrier.startswith(FOCUSED_IN_VIEW)]
    assert found == [] and browser.complaints() == []
    assert len(backgrounds) == len(SCHEMES)


def test_the_search_finds_a_word_of_the_reference(browser: ConsoleBrowser) -> None:
    browser.resize(WIDE)
    browser.open("")
    browser.find(".md-search__input").click()
    browser.find(".md-search__input").send_keys("S102")
    browser.until(lambda: browser.all(".md-search-result__item a"))
    targets = [link.get_attribute("href") or "" for link in browser.all(".md-search-result__item a")]
    assert any("reference/error-codes/" in target for target in targets), targets
