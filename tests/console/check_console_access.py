"""Who may what and Try in a browser: from a cell to its question, arguments, another policy, and with a keyboard."""

from tests.console.browser import PHONE, ConsoleBrowser
from tests.console.scene import Scene


def test_a_cell_leads_to_its_question_and_the_question_to_both_lists(browser: ConsoleBrowser) -> None:
    browser.open("/console/access?who=nhi:*&what_kind=tool")
    browser.find("td.cell.conditional a").click()
    browser.until(lambda: "/console/try" in browser.driver.current_url)
    assert "Depends on arguments" in browser.text("#verdict")
    browser.find(".verdict a[href*='/console/access?who=']").click()
    browser.until(lambda: "who=nhi" in browser.driver.current_url)
    assert "tool:github/search_code" in browser.text(".scroll") and browser.barriers() == []
    browser.find("th[scope=row] a[href*='what=tool']").click()
    browser.until(lambda: "what=tool" in browser.driver.current_url)
    assert "Who may" in browser.text(".scroll caption")


def test_arguments_are_tried_without_a_new_page_and_stand_in_no_address(scene: Scene, browser: ConsoleBrowser) -> None:
    scene.pause()
    before = len(scene.github.calls())
    browser.open("/console/try?as=nhi:planner&calls=tool:github/search_code")
    browser.run("window.stays = true")
    browser.find("#arguments").send_keys('{"repo": "acme/<img src=x>", "q": "x"}')
    browser.find("form.fields button").click()
    browser.until(lambda: "they fit the tool" in browser.text("#answer"))
    assert browser.run("return window.stays") and "acme" not in browser.driver.current_url
    assert "Allowed" in browser.text("#verdict") and "acme/<img src=x>" in browser.text("#answer")
    browser.find("#arguments").clear()
    browser.find("#arguments").send_keys("[1]")
    browser.find("form.fields button").click()
    browser.until(lambda: "not a JSON object" in browser.text("#answer"))
    assert browser.barriers() == [] and len(scene.github.calls()) == before
    scene.go_on()


def test_another_policy_is_compared_on_a_phone_too(browser: ConsoleBrowser) -> None:
    browser.resize(PHONE)
    browser.open("/console/try?as=nhi:researcher&calls=tool:github/search_code")
    browser.all("form.fields summary")[-1].click()
    browser.run("document.getElementById('against').value = 'file'")
    browser.find("#file_name").send_keys("agent_to_tool.more.csv")
    browser.find("#content").send_keys("p, nhi:researcher, tool:github/search_code, use, -, -, -, allow\n")
    browser.find("form.fields button").click()
    browser.until(lambda: "1 wider" in browser.text("#answer"), 30.0)
    assert "another one than now" in browser.text("#answer")
    assert browser.barriers() == [] and browser.overflow() <= 0


def test_the_matrix_is_scrolled_and_its_cells_are_reached_with_a_keyboard(browser: ConsoleBrowser) -> None:
    browser.resize(PHONE)
    browser.open("/console/access")
    browser.run("document.querySelector('.scroll[tabindex]').focus()")
    assert browser.run("return document.activeElement.getAttribute('aria-label')") == "Matrix"
    assert browser.run("return [...document.querySelectorAll('td.cell a')].every(a => a.tabIndex === 0)")
    names = browser.run("return [...document.querySelectorAll('td.cell a')].map(a => a.getAttribute('aria-label'))")
    assert names and all(": " in name for name in names)
