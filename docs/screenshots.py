"""Makes the screenshots of docs/guides/integrate/console.md: `python -m docs.screenshots`, or some by name.

A sidecar with servers, agents and calls going on is started, as for `make console-check`, and headless Chromium shows
each page.
"""

import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Final

from sidecar.settings.timestamps import rfc3339
from tests.console.browser import PHONE, WIDE, ConsoleBrowser, Scheme, browser_at
from tests.console.scene import DMITRI, OPERATOR, running_scene

FOLDER = Path(__file__).parent / "guides" / "integrate"
TRAFFIC_S = 75.0  # before the first picture, so that charts show something
SETTLED_S = 1.5
RELOADED_S = 3.0  # until changed files are in force
DAY_S = 86_400
# Name of the file, path, window, colour scheme.
PICTURES: tuple[tuple[str, str, tuple[int, int], Scheme], ...] = (
    ("now", "/console/now", WIDE, "light"),
    ("now-dark", "/console/now", WIDE, "dark"),
    ("decision", "/console/decisions?reason=condition-false&live=off", WIDE, "light"),
    ("access", "/console/access", WIDE, "light"),
    ("try", "/console/try?as=user:alice,nhi:planner&calls=tool:github/get_file", WIDE, "light"),
    ("tool", "/console/tools/upstreams/issues/tool?tool=get_issue", WIDE, "light"),
    ("approval", "/console/approvals", PHONE, "light"),
)
FIRST_OF: Final = {"approval": ".card", "decision": "#calls a.whole"}
"""The link to follow from a page of which the first entry is shown."""


def take(browser: ConsoleBrowser, name: str, path: str, window: tuple[int, int], scheme: Scheme) -> Path:
    browser.resize(window)
    browser.prefer(scheme)
    browser.open(path)
    if name in FIRST_OF:
        browser.find(FIRST_OF[name]).click()
    time.sleep(SETTLED_S)
    if complaints := browser.complaints():
        raise RuntimeError(f"{path}: {complaints}")
    picture = FOLDER / f"console-{name}.png"
    browser.picture(picture)
    return picture


def main() -> None:
    with running_scene(rfc3339(time.time() + 3 * DAY_S)) as scene, browser_at(scene.base) as browser:
        browser.log_in(OPERATOR)
        asked = sys.argv[1:]
        wanted = [one for one in PICTURES if not asked or one[0] in asked]
        time.sleep(TRAFFIC_S)
        for name, path, window, scheme in wanted:
            if name == "approval":
                scene.call("close_issue", {"id": 2041, "why": "Fixed in 2.4, released today."}, server="issues")
                browser.log_in(DMITRI)
            with scene.changed_tool() if name == "tool" else nullcontext():
                time.sleep(RELOADED_S if name == "tool" else 0.0)
                print(take(browser, name, path, window, scheme).name)


if __name__ == "__main__":
    main()
