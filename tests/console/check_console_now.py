"""The page Now follows what happens, within a second, and its chart with it."""

import time

from tests.console.browser import ConsoleBrowser, soonest
from tests.console.scene import Scene

POINTS = "return JSON.parse(document.getElementById('traffic').dataset.traffic).at.length"


def number(browser: ConsoleBrowser, name: str) -> int:
    return int(browser.text(f"#{name}").replace(",", ""))


def test_denied_calls_are_shown_within_a_second(scene: Scene, browser: ConsoleBrowser) -> None:
    scene.pause()
    try:
        browser.open("/console/now")
        browser.until(lambda: browser.run("return document.querySelectorAll('#traffic canvas').length"))
        seen: list[int] = []

        def deny(attempt: int) -> None:
            seen.append(number(browser, "denied"))
            for _ in range(100):  # what is a minute old leaves at the same time
                scene.call("delete_repo", {"repo": "acme/site"})

        assert soonest(browser, 3, deny, lambda attempt: number(browser, "denied") > seen[-1] + 50) < 1
        assert browser.run(POINTS) > 0
    finally:
        scene.go_on()


def test_what_wants_attention_comes_and_goes(scene: Scene, browser: ConsoleBrowser) -> None:
    browser.open("/console/now")
    browser.until(lambda: "The breaker of billing" in browser.text())

    def disable(attempt: int) -> None:
        scene.run(scene.order(f"/api/principals/nhi:rogue-{attempt}/disable", {"reason": "a check"}))

    def is_told(attempt: int) -> bool:
        return f"nhi:rogue-{attempt} is disabled: a check" in browser.text()

    assert soonest(browser, 3, disable, is_told) < 1
    for attempt in range(3):
        scene.run(scene.order(f"/api/principals/nhi:rogue-{attempt}/enable"))
    browser.until(lambda: "nhi:rogue" not in browser.text())


def test_the_time_span_is_in_the_address(browser: ConsoleBrowser) -> None:
    browser.open("/console/now")
    browser.find(".choices a:not([aria-current])").click()
    browser.until(lambda: browser.driver.current_url.endswith("?span=1h"))
    assert browser.text(".choices a[aria-current]") == "1 hour"


def test_a_hidden_tab_holds_no_stream_and_goes_on_when_it_is_shown(scene: Scene, browser: ConsoleBrowser) -> None:
    browser.open("/console/now")
    browser.run(
        "window.opened = 0; const Native = window.EventSource;"
        "window.EventSource = class extends Native { constructor(...given) { super(...given); window.opened += 1; } };"
        "Object.defineProperty(document, 'hidden', {get: () => window.away, configurable: true});"
        "window.away = true; document.dispatchEvent(new Event('visibilitychange'));"
    )
    browser.until(lambda: is_still(browser), 20)
    browser.run("window.away = false; document.dispatchEvent(new Event('visibilitychange'));")
    browser.until(lambda: browser.run("return window.opened") == 1)
    shown = number(browser, "calls")
    browser.until(lambda: number(browser, "calls") != shown)


def is_still(browser: ConsoleBrowser) -> bool:
    """Whether the figures of traffic that goes on do not change any more."""
    shown = browser.text("#calls")
    time.sleep(2)
    return browser.text("#calls") == shown
