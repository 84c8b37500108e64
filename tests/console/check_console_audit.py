"""Decisions and Audit in a browser: calls come in as they are made, a row opens its explanation, a log is verified."""

from tests.console.browser import PHONE, ConsoleBrowser
from tests.console.scene import Scene

LIVE_S = 1.0


def rows(browser: ConsoleBrowser) -> list[str]:
    """The ids of the rows that are shown."""
    found = browser.run("return [...document.querySelectorAll('#calls tr[id]')].map(row => row.id)")
    return [str(one) for one in found]


def test_a_call_is_seen_within_a_second_and_stands_once(scene: Scene, browser: ConsoleBrowser) -> None:
    scene.pause()
    browser.open("/console/decisions?object=get_file&principal=nhi:planner")
    before = rows(browser)
    seen_s = []
    for count in range(1, 4):
        browser.until(lambda: browser.run("return document.querySelector('[sse-connect]') !== null"))
        scene.call("get_file", {"path": "README.md"})
        seen_s.append(browser.until(lambda count=count: len(rows(browser)) >= len(before) + count))
    assert min(seen_s) <= LIVE_S
    now = rows(browser)
    assert len(set(now)) == len(now) and now[-len(before) :] == before
    scene.go_on()


def test_a_list_that_is_held_stays_as_it_is(scene: Scene, browser: ConsoleBrowser) -> None:
    browser.open("/console/decisions")
    browser.find(".bar-line a").click()
    browser.until(lambda: "live=off" in browser.driver.current_url)
    before = rows(browser)
    scene.call("get_file", {"path": "README.md"})
    assert rows(browser) == before and browser.all("[sse-connect]") == []


def test_a_row_opens_the_explanation_on_a_phone_too(scene: Scene, browser: ConsoleBrowser) -> None:
    scene.call("search_code", {"repo": "other/site"})
    browser.resize(PHONE)
    browser.open("/console/decisions?reason=condition-false&live=off")
    browser.find("#calls a.whole").click()
    browser.until(lambda: "Nearest rules" in browser.text())
    assert "planner-searches" in browser.text() and "other/site" not in browser.driver.page_source
    browser.find("dl.facts a[href*='/console/audit/']").click()
    browser.until(lambda: "The whole record" in browser.text())
    assert browser.barriers() == [] and browser.overflow() <= 0


def test_a_filter_is_in_the_address_and_can_be_cleared(browser: ConsoleBrowser) -> None:
    browser.open("/console/audit")
    browser.find("#principal").send_keys("planner")
    browser.find("form.filter button").click()
    browser.until(lambda: "principal=planner" in browser.driver.current_url)
    assert browser.find("#principal").get_attribute("value") == "planner"
    browser.find("form.filter a.button").click()
    browser.until(lambda: browser.driver.current_url.endswith("/console/audit"))


def test_a_log_is_verified_while_the_page_shows_how_far(browser: ConsoleBrowser) -> None:
    browser.open("/console/audit/log")
    browser.find("form[action='/console/audit/verify'] button").click()
    browser.until(lambda: "Proved" in browser.text() and "holds" in browser.text())
    assert "admin:olga" in browser.text() and browser.barriers() == []
