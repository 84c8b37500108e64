"""Every page that the console links to, as a browser shows it: nothing is blocked, nothing fails, nothing bars the way.

The pages are found by following links, so a new page is checked without being named here. What a page does is checked
in a file of its own, `check_console_<page>.py`.
"""

import re
from collections import Counter
from urllib.parse import urlsplit

from tests.console.browser import PHONE, WIDE, ConsoleBrowser, Scheme, browser_at
from tests.console.scene import HOSTILE, OPERATOR, VIEWER, Scene

MAX_PAGES = 80
OF_ONE_PATH = 2  # with different queries
LINKS = """
return [...document.querySelectorAll('a[href^="/console/"]')].map(a => a.getAttribute('href').split('#')[0])
"""


def shape_of(path: str) -> str:
    """A path without what is different from one object to the next."""
    return re.sub(r"[0-9a-f-]{8,}|\d+|%[0-9A-F]{2}", "…", urlsplit(path).path)


def pages(browser: ConsoleBrowser) -> list[str]:
    """The addresses that can be reached by links, few of each shape."""
    todo, seen, shapes = ["/console/now"], list[str](), Counter[str]()
    while todo and len(seen) < MAX_PAGES:
        path = todo.pop(0)
        if path in seen or shapes[shape_of(path)] >= OF_ONE_PATH or path.startswith("/console/static/"):
            continue
        shapes[shape_of(path)] += 1
        seen.append(path)
        browser.open(path)
        todo += browser.run(LINKS)
    return seen


def test_every_page_shows_itself_to_everybody(scene: Scene, browser: ConsoleBrowser) -> None:
    found = pages(browser)
    faults: list[str] = []
    looks: list[tuple[tuple[int, int], Scheme]] = [(WIDE, "dark"), (WIDE, "light"), (PHONE, "light")]
    for path in found:
        browser.open(path)
        for size, scheme in looks:
            browser.resize(size)
            browser.prefer(scheme)
            place = f"{path} ({size[0]} px, {scheme})"
            faults += [f"{place}: {one}" for one in browser.barriers()]
            faults += [f"{place}: {one}" for one in browser.complaints()]
            if (wide := browser.overflow()) > 0:
                faults.append(f"{place}: {wide} px wider than the window")
            if not browser.all("main h1"):
                faults.append(f"{place}: no heading")
            if browser.run("return document.querySelectorAll('img[src=x]').length"):
                faults.append(f"{place}: a name became an element")
    assert not faults, "\n".join(faults)
    assert len(found) >= len(browser.all("nav a")) > 0


def test_a_keyboard_reaches_the_content_and_all_that_can_be_pressed(browser: ConsoleBrowser) -> None:
    browser.open("/console/now")
    order = browser.run(
        "return [...document.querySelectorAll('a[href], button, input:not([type=hidden]), select, textarea, summary')]"
        ".filter(e => e.tabIndex < 0).map(e => e.outerHTML)"
    )
    assert order == []
    browser.find("body").send_keys("\ue004")  # Tab
    assert browser.run("return document.activeElement.className") == "skip"
    browser.find(".skip").send_keys("\ue007")  # Enter
    assert browser.run("return location.hash") == "#main"


def test_a_viewer_is_shown_no_button_that_changes_things(scene: Scene) -> None:
    with browser_at(scene.base) as browser:
        browser.log_in(VIEWER)
        for path in pages(browser):
            browser.open(path)
            forms = [form.get_dom_attribute("action") for form in browser.all("form[method=post]")]
            allowed = ("/console/logout", "/console/try")
            assert [one for one in forms if not one.endswith(allowed)] == [], path
        assert browser.complaints() == []


def test_a_log_out_ends_the_login(scene: Scene) -> None:
    with browser_at(scene.base) as browser:
        browser.log_in(OPERATOR)
        assert HOSTILE not in browser.driver.page_source
        browser.find(".who button").click()
        browser.until(lambda: "/console/login" in browser.driver.current_url)
        browser.open("/console/now")
        assert "/console/login?next=/console/now" in browser.driver.current_url
        browser.find("#key").send_keys("no key of anybody")
        browser.find("main button").click()
        browser.until(lambda: "This is not a key" in browser.text())
        assert browser.barriers() == []
