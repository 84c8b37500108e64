"""Drives headless Chromium, and collects what it notices: errors, blocked sources, findings of axe-core."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from selenium import webdriver
from selenium.common import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

WIDE, PHONE = (1280, 900), (390, 844)
WITHIN_S = 10.0
ARGUMENTS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars --force-device-scale-factor=1"
)
AXE = Path(__file__).parent / "vendor" / "axe.min.js"
AXE_RUN = """
const done = arguments[0];
const failed = error => done({violations: [{id: String(error), impact: 'critical', nodes: []}]});
axe.run(document, {resultTypes: ['violations']}).then(done, failed);
"""
SERIOUS = ("serious", "critical")
Scheme = Literal["light", "dark"]


def find_chromium() -> tuple[str, str] | None:
    """The browser and its driver, if both are installed."""
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


@dataclass(frozen=True)
class ConsoleBrowser:
    """One window. `base` is the address of the admin listener."""

    driver: Any
    base: str

    def open(self, path: str) -> None:
        self.driver.get(self.base + path)

    def log_in(self, key: str) -> None:
        self.open("/console/login")
        self.find("#key").send_keys(key)
        self.find("main button").click()
        self.until(lambda: "/login" not in self.driver.current_url)

    def find(self, selector: str) -> WebElement:
        found: WebElement = self.driver.find_element(By.CSS_SELECTOR, selector)
        return found

    def all(self, selector: str) -> list[WebElement]:
        return list(self.driver.find_elements(By.CSS_SELECTOR, selector))

    def press(self, words: str) -> None:
        """Presses the button with these words, once it is there."""
        script = "return [...document.querySelectorAll('main button')].find(one => one.innerText === arguments[0])"

        def is_pressed() -> bool:
            button = self.run(script, words)
            if button is None:
                return False
            with suppress(StaleElementReferenceException):  # a live page replaced it meanwhile
                button.click()
                return True
            return False

        self.until(is_pressed)

    def text(self, selector: str = "main") -> str:
        """The text of the first such element, read in one step: a live page may replace it meanwhile."""
        found = self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector)
        return str(found)

    def run(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    def until(self, condition: Callable[[], object], within_s: float = WITHIN_S) -> float:
        """Wait until something holds. Returns how long it took; raises TimeoutError with the page's text."""
        began_s = time.monotonic()
        while not condition():
            if time.monotonic() - began_s > within_s:
                raise TimeoutError(f"{self.driver.current_url}: {self.text('body')[:2000]}")
            time.sleep(0.02)
        return time.monotonic() - began_s

    def resize(self, size: tuple[int, int]) -> None:
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == PHONE}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, scheme: Scheme) -> None:
        """The colour scheme that the person prefers."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def complaints(self) -> list[str]:
        """What the browser wrote to its console since the last time: script errors, blocked sources, failed loads."""
        entries = self.driver.get_log("browser")
        return [entry["message"] for entry in entries if entry["level"] in ("WARNING", "SEVERE")]

    def overflow(self) -> int:
        """How many pixels the page is wider than the window."""
        return int(self.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth"))

    def barriers(self) -> list[str]:
        """What axe-core finds serious or critical."""
        if not self.run("return typeof axe !== 'undefined'"):
            self.run(AXE.read_text("utf-8"))
        found = self.driver.execute_async_script(AXE_RUN)["violations"]
        return [
            f"{one['id']}: {node['html']} {node.get('failureSummary', '')}"
            for one in found
            if one["impact"] in SERIOUS
            for node in one["nodes"] or [{"html": ""}]
        ]

    def picture(self, path: Path) -> None:
        self.driver.save_screenshot(str(path))


def soonest(browser: ConsoleBrowser, times: int, act: Callable[[int], object], shown: Callable[[int], object]) -> float:
    """The shortest time, of some attempts, from what happens to its being shown: the machine may do other things."""
    took_s = []
    for attempt in range(times):
        act(attempt)
        took_s.append(browser.until(lambda attempt=attempt: shown(attempt)))  # type: ignore[misc]
    return min(took_s)


@contextmanager
def browser_at(base: str) -> Iterator[ConsoleBrowser]:
    """A window of its own, with an empty profile."""
    found = find_chromium()
    if found is None:
        raise FileNotFoundError("chromium and chromedriver: install Debian's packages chromium and chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = found[0]
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with tempfile.TemporaryDirectory(prefix="chromium") as profile:
        for argument in (*ARGUMENTS.split(), f"--user-data-dir={profile}"):
            options.add_argument(argument)
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(found[1]))
        try:
            driver.set_page_load_timeout(WITHIN_S)
            driver.set_script_timeout(3 * WITHIN_S)
            window = ConsoleBrowser(driver, base)
            window.resize(WIDE)
            window.prefer("light")
            yield window
        finally:
            driver.quit()
