"""What can be done on the pages Tools and Kill switch: pins side by side, switches, disabled principals."""

from tests.console.browser import PHONE, ConsoleBrowser
from tests.console.scene import HOSTILE, Scene

LIVE_S = 1.0


def test_a_changed_tool_appears_and_is_shown_beside_its_pin(scene: Scene, browser: ConsoleBrowser) -> None:
    with scene.changed_tool() as tool:
        browser.open("/console/tools")
        browser.until(lambda: " changed" in browser.text("tbody"))
        browser.open(f"/console/tools/upstreams/issues/tool?tool={tool}")
        assert "one" in browser.text("del") and browser.all("table.sides ins")
        words = browser.text()
        assert f"sidecar mcp tools issues {tool} --pin" in words and "+++ b/policies/pins.yaml" in words
        browser.resize(PHONE)
        assert browser.overflow() == 0 and browser.barriers() == []


def test_a_tool_is_switched_off_and_on(scene: Scene, browser: ConsoleBrowser) -> None:
    browser.open("/console/tools/upstreams/github/tool?tool=get_file")
    browser.find("#reason").send_keys(f"looks wrong {HOSTILE}")
    browser.find("#span option:nth-child(3)").click()
    browser.press("Switch the tool off")
    browser.until(lambda: "The tool is switched off by admin:olga" in browser.text())
    assert HOSTILE in browser.text() and scene.call("get_file", {"path": "README.md"}) == 403
    browser.open("/console/switches")
    browser.until(lambda: "tool:github/get_file" in browser.text())
    assert browser.barriers() == []
    browser.press("Switch on")
    browser.until(lambda: "It is switched on" in browser.text())
    assert scene.call("get_file", {"path": "README.md"}) == 200


def test_a_principal_is_disabled_and_another_window_hears_of_it(scene: Scene, browser: ConsoleBrowser) -> None:
    browser.open("/console/switches")
    browser.find("#principal").send_keys("nhi:plannner")
    browser.press("Disable")
    browser.until(lambda: "Nothing here names" in browser.text())
    assert browser.barriers() == []
    browser.find(".notice.warn a").click()
    browser.until(lambda: browser.find("#principal").get_attribute("value") == "nhi:planner")
    browser.press("Disable")
    browser.until(lambda: "is disabled" in browser.text(".notice.good"))
    assert scene.call("get_file", {"path": "README.md"}) == 403
    browser.press("Enable")
    browser.until(lambda: "is enabled" in browser.text(".notice.good"))
    assert scene.call("get_file", {"path": "README.md"}) == 200
