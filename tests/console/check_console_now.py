"""The page Now follows what happens, within a second, and its chart with it."""

import time

from tests.console.browser import ConsoleBrowser
from tests.console.scene import Scene

POINTS = "return JSON.parse(document.getElementById('traffic').dataset.traffic).at.length"


def number(browser: ConsoleBrowser, name: str) -> int:
    return int(browser.text(f"#{name}").replace(",", ""))


def test_a_denied_call_is_shown_within_a_second(scene: Scene, browser: ConsoleBrowser) -> None:
    scene.pause()
    try:
        browser.open("/console/now")
        browser.until(lambda: browser.run("return document.querySelectorAll('#traffic canvas').length"))
        time.sleep(1.5)  # for the calls that were under way
        before = number(browser, "denied")
        for _ in range(100):  # what is a minute old leaves at the same time
            scene.call("delete_repo", {"repo": "acme/site"})
        assert browser.until(lambda: number(browser, "denied") > before + 50) < 1
        assert browser.run(POINTS) > 0
    finally:
        scene.go_on()


def test_what_wants_attention_comes_and_goes(scene: Scene, browser: ConsoleBrowser) -> None:
    browser.open("/console/now")
    browser.until(lambda: "billing" in browser.text(".notice"))
    scene.run(scene.order("/api/principals/nhi:rogue/disable", {"reason": "a check"}))
    assert browser.until(lambda: "nhi:rogue is disabled: a check" in browser.text()) < 1
    scene.run(scene.order("/api/principals/nhi:rogue/enable", {}))
    assert browser.until(lambda: "nhi:rogue" not in browser.text()) < 1


def test_the_time_span_is_in_the_address(browser: ConsoleBrowser) -> None:
    browser.open("/console/now")
    browser.find(".choices a:not([aria-current])").click()
    browser.until(lambda: browser.driver.current_url.endswith("?span=1h"))
    assert browser.text(".choices a[aria-current]") == "1 hour"
