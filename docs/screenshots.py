"""Makes the screenshots of the console that stand in docs/: `python -m docs.screenshots`.

A sidecar with servers, agents and calls going on is started, as for `make console-check`, and headless Chromium shows
each page.
"""

import time
from pathlib import Path

from sidecar.settings.timestamps import rfc3339
from tests.console.browser import PHONE, WIDE, ConsoleBrowser, Scheme, browser_at
from tests.console.scene import OPERATOR, running_scene

FOLDER = Path(__file__).parent
TRAFFIC_S = 75.0  # before the first picture, so that charts show something
SETTLED_S = 1.5
DAY_S = 86_400
# Name of the file, path, window, colour scheme.
PICTURES: tuple[tuple[str, str, tuple[int, int], Scheme], ...] = (
    ("now", "/console/now", WIDE, "light"),
    ("now-dark", "/console/now", WIDE, "dark"),
    ("decisions", "/console/decisions", WIDE, "light"),
    ("limits", "/console/limits", WIDE, "light"),
    ("audit", "/console/audit", WIDE, "light"),
    ("access", "/console/access", WIDE, "light"),
    ("try", "/console/try", WIDE, "light"),
    ("policy", "/console/policy", WIDE, "light"),
    ("tools", "/console/tools", WIDE, "light"),
    ("agents", "/console/agents", WIDE, "light"),
    ("approvals", "/console/approvals", PHONE, "light"),
)


def take(browser: ConsoleBrowser, name: str, path: str, window: tuple[int, int], scheme: Scheme) -> Path:
    browser.resize(window)
    browser.prefer(scheme)
    browser.open(path)
    time.sleep(SETTLED_S)
    if complaints := browser.complaints():
        raise RuntimeError(f"{path}: {complaints}")
    picture = FOLDER / f"console-{name}.png"
    browser.picture(picture)
    return picture


def main() -> None:
    with running_scene(rfc3339(time.time() + 3 * DAY_S)) as scene, browser_at(scene.base) as browser:
        browser.log_in(OPERATOR)
        time.sleep(TRAFFIC_S)
        for name, path, window, scheme in PICTURES:
            print(take(browser, name, path, window, scheme).name)


if __name__ == "__main__":
    main()
