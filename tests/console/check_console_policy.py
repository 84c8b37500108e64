"""What can be done on the page Policy: a line by its link, a refused file within a second, the reports."""

from tests.console.browser import ConsoleBrowser
from tests.console.scene import HOSTILE, Scene

LIVE_S = 1.0
WATCHED_S = 2.5  # a change of files is noticed by two looks that agree


def test_a_line_is_found_by_its_link_and_by_its_number(scene: Scene, browser: ConsoleBrowser) -> None:
    browser.open("/console/policy/file?name=policies/agent_to_tool.csv&line=4")
    assert "planner" in browser.text("tr.at") and browser.text("tr.at").startswith("4")
    browser.find("#line").clear()
    browser.find("#line").send_keys("2")
    browser.find("main form.filter button").click()
    browser.until(lambda: browser.text("tr.at").startswith("2"))
    assert browser.barriers() == []


def test_refused_files_and_the_way_back_are_shown(scene: Scene, browser: ConsoleBrowser) -> None:
    file = scene.served.folder / "policies" / "user_to_nhi.csv"
    good = file.read_text()
    browser.open("/console/policy")
    try:
        file.write_text(f"{good}p, user:alice, nhi:{HOSTILE}, use, -, -, -, allow\n")
        assert browser.until(lambda: "The newest files are refused" in browser.text()) < WATCHED_S + LIVE_S
        assert browser.barriers() == []
        browser.find(".refused .faults a").click()
        browser.until(lambda: HOSTILE in browser.text("tr.at"))
        browser.open("/console/policy")
    finally:
        file.write_text(good)
    browser.until(lambda: "The newest files are refused" not in browser.text())


def test_the_reports_appear_by_themselves(scene: Scene, browser: ConsoleBrowser) -> None:
    for path, words in (("policy/check", "Findings"), ("policy/tests", "The policy has no tests")):
        browser.open(f"/console/{path}")
        browser.until(lambda words=words: words in browser.text(".scroll"), 30)  # type: ignore[misc]
        assert browser.barriers() == []


def test_an_operator_reads_all_files_again(scene: Scene, browser: ConsoleBrowser) -> None:
    browser.open("/console/policy")
    (button,) = [one for one in browser.all("main button") if one.text == "Read all files again"]
    button.click()
    browser.until(lambda: "All files were read again" in browser.text(".notice.good"))
