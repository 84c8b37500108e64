"""The scene and the browsers of all checks in one process."""

from collections.abc import Iterator

import pytest

from sidecar.settings.timestamps import rfc3339
from tests.console.browser import ConsoleBrowser, browser_at, find_chromium
from tests.console.scene import OPERATOR, Scene, running_scene

GRANT_ENDS_IN_S = 3 * 86_400


@pytest.fixture(scope="session")
def scene() -> Iterator[Scene]:
    import time

    if find_chromium() is None:
        pytest.skip("chromium and chromedriver are not installed")
    with running_scene(rfc3339(time.time() + GRANT_ENDS_IN_S)) as running:
        yield running


@pytest.fixture
def browser(scene: Scene) -> Iterator[ConsoleBrowser]:
    """A window in which an operator is logged in. At the end it has complained of nothing."""
    with browser_at(scene.base) as window:
        window.log_in(OPERATOR)
        yield window
        assert window.complaints() == []
