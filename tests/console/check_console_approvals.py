"""People's answers to calls that wait, on a phone."""

from collections.abc import Iterator

import pytest

from tests.console.browser import PHONE, ConsoleBrowser, browser_at, soonest
from tests.console.scene import DMITRI, HOSTILE, Scene

LIVE_S = 1.0


@pytest.fixture
def phone(scene: Scene) -> Iterator[ConsoleBrowser]:
    """A window of a phone's size, in which a person on call is logged in."""
    with browser_at(scene.base) as window:
        window.resize(PHONE)
        window.log_in(DMITRI)
        yield window
        assert window.complaints() == []


def close(scene: Scene, number: int) -> None:
    assert scene.call("close_issue", {"id": number, "why": f"{HOSTILE} is fixed"}, server="issues") == 200


def test_a_call_that_waits_appears_by_itself_and_is_approved(scene: Scene, phone: ConsoleBrowser) -> None:
    phone.open("/console/approvals")
    before: list[int] = []

    def ask(attempt: int) -> None:
        before.append(len(phone.all(".card")))
        close(scene, 19 + attempt)

    assert soonest(phone, 3, ask, lambda attempt: len(phone.all(".card")) > before[-1]) < LIVE_S
    phone.find(".card").click()
    assert f"{HOSTILE} is fixed" in phone.text(".arguments") and "21" in phone.text(".arguments")
    phone.find("#reason").send_keys("the fix is out\ue007")  # Enter: a person who types must not answer by it
    assert "waiting" in phone.text("dl.facts") and phone.barriers() == [] and phone.overflow() == 0
    phone.find(".answers button").click()
    phone.until(lambda: "approved" in (facts := phone.text("dl.facts")) and "the fix is out" in facts)
    close(scene, 21)  # it goes on, and uses the approval
    phone.until(lambda: "used" in phone.text("dl.facts"))
    assert phone.text(".answers") == "" and phone.barriers() == []


def test_a_reason_is_required_and_a_refusal_is_seen_in_other_windows(scene: Scene, phone: ConsoleBrowser) -> None:
    close(scene, 22)
    phone.open("/console/approvals")
    address = phone.find(".card").get_attribute("href")
    phone.driver.get(address)
    with browser_at(scene.base) as other:
        other.log_in(DMITRI)
        other.driver.get(address)
        other.find(".answers .danger").click()
        assert "waiting" in other.text("dl.facts"), "without a reason nothing is sent"
        other.find("#reason").send_keys(HOSTILE)
        other.find(".answers .danger").click()
        other.until(lambda: "refused" in other.text("dl.facts"))
        phone.until(lambda: not phone.all("#reason"))
        assert "user:dmitri" in phone.text("dl.facts") and HOSTILE in phone.text("dl.facts")
        assert other.complaints() == []


def test_a_login_without_a_person_sees_what_waits_and_no_arguments(scene: Scene, browser: ConsoleBrowser) -> None:
    close(scene, 23)
    browser.open("/console/approvals")
    assert "names no person" in browser.text()
    browser.find(".card").click()
    browser.until(lambda: "shown to those only" in browser.text())
    assert "is fixed" not in browser.driver.page_source and not browser.all("main form")
