"""What can be done on the page Limits: it follows calls, is filtered, and an operator resets."""

import time

from tests.console.browser import ConsoleBrowser
from tests.console.scene import Scene

LIVE_S = 1.0


def used(browser: ConsoleBrowser) -> str:
    return browser.text("tbody tr td.number")


def test_the_table_follows_a_call_within_a_second(scene: Scene, browser: ConsoleBrowser) -> None:
    scene.pause()
    try:
        browser.open("/console/limits?limit=rule:planner-reads")
        browser.until(lambda: used(browser))
        before = used(browser)
        assert scene.call("get_file", {"path": "README.md"}) == 200
        assert browser.until(lambda: used(browser) != before) < LIVE_S
    finally:
        scene.go_on()


def test_news_take_away_neither_the_focus_nor_what_is_pressed(scene: Scene, browser: ConsoleBrowser) -> None:
    scene.pause()
    try:
        browser.open("/console/limits?limit=rule:planner-reads")
        browser.until(lambda: used(browser))
        link = browser.run("const a = [...document.querySelectorAll('tbody td a')].pop(); a.focus(); return a.id")
        before = used(browser)
        scene.call("get_file", {"path": "README.md"})
        browser.until(lambda: used(browser) != before)
        assert browser.run("return document.activeElement.id") == link
        browser.run("document.dispatchEvent(new PointerEvent('pointerdown', {bubbles: true}))")
        before = used(browser)
        scene.call("get_file", {"path": "README.md"})
        time.sleep(LIVE_S)
        assert used(browser) == before
        browser.run("document.dispatchEvent(new PointerEvent('pointerup', {bubbles: true}))")
        assert browser.until(lambda: used(browser) != before) < LIVE_S
    finally:
        scene.go_on()


def test_an_operator_resets_a_limit_after_a_question(scene: Scene, browser: ConsoleBrowser) -> None:
    scene.call("get_file", {"path": "README.md"})
    browser.open("/console/limits")
    browser.find("#limit").send_keys("principals:nhi:planner")
    browser.find("form.filter button").click()
    browser.until(lambda: "limit=principals" in browser.driver.current_url)
    browser.until(lambda: browser.all("tbody tr td a[href*='reset=']"))
    browser.run("document.querySelector(\"tbody tr td a[href*='reset=']\").click()")
    browser.until(lambda: browser.all("section.sheet form"))
    assert browser.barriers() == []
    browser.find("section.sheet form button").click()
    browser.until(lambda: "Reset:" in browser.text(".notice.good"))
    assert "principals:nhi:planner:hour" in browser.text(".notice.good")
