"""What can be done on the pages about agents."""

from tests.console.browser import ConsoleBrowser, soonest
from tests.console.scene import HOSTILE, Scene

LIVE_S = 1.0


def test_output_comes_by_itself_and_a_run_is_cancelled(scene: Scene, browser: ConsoleBrowser) -> None:
    browser.open("/console/agents")
    browser.find("#agent-counter").click()
    browser.press("Run")
    browser.until(lambda: "/agents/runs/" in browser.driver.current_url)
    browser.until(lambda: "count 3" in browser.text("pre.output"))
    shown = browser.text("pre.output").count("count")
    browser.until(lambda: browser.text("pre.output").count("count") > shown + 5)
    browser.find("details.act summary").click()
    browser.find("#reason").send_keys(f"enough {HOSTILE}")
    shown = browser.text("pre.output").count("count")
    browser.until(lambda: browser.text("pre.output").count("count") > shown + 10)
    assert browser.run("return document.getElementById('reason').value") == f"enough {HOSTILE}"
    assert browser.barriers() == []
    browser.press("Cancel it and end its processes")
    browser.until(lambda: "cancelled" in browser.text(".figures"))
    assert not browser.all("details.act") and browser.all("pre.output span")


def test_a_list_shows_a_run_of_another_within_a_second(scene: Scene, browser: ConsoleBrowser) -> None:
    browser.open("/console/agents/runs?agent=summariser")
    before: list[int] = []

    def order(attempt: int) -> None:
        before.append(len(browser.all("tbody tr")))
        scene.run(scene.order("/api/agents/summariser/runs", {"prompt": HOSTILE}))

    assert soonest(browser, 3, order, lambda attempt: len(browser.all("tbody tr")) > before[-1]) < LIVE_S


def test_a_run_that_asks_is_answered(scene: Scene, browser: ConsoleBrowser) -> None:
    ordered = scene.run(scene.order("/api/agents/decorator/runs", {"prompt": "paint it"}))
    browser.open(f"/console/agents/runs/{ordered['run_id']}")
    browser.until(lambda: browser.all("#prompt"))
    assert "which colour?" in browser.text() and browser.barriers() == []
    browser.find("#prompt").send_keys("red")
    browser.press("Answer")
    browser.until(lambda: "it continues" in browser.text())


def test_a_schedule_is_paused_resumed_and_run(scene: Scene, browser: ConsoleBrowser) -> None:
    browser.open("/console/agents/schedules")
    browser.find("#schedule-nightly").click()
    browser.press("Pause")
    browser.until(lambda: "by admin:olga" in browser.text("dl.facts"))
    browser.press("Resume")
    browser.until(lambda: "by admin:olga" not in browser.text("dl.facts"))
    browser.press("Run now")
    browser.until(lambda: "/agents/runs/" in browser.driver.current_url)
    browser.until(lambda: "success" in browser.text(".figures"))
