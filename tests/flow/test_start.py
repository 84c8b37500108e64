"""What does a start load?"""

import re

import pytest

from tests.flow.test_kill import process
from tests.flow.world import Upstream
from tests.tables import tables

# Each package, and when it is loaded.
NOT_LOADED = tables("flow/start")["not_loaded"]


async def test_a_start_loads_nothing_that_its_settings_do_not_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    async with process(Upstream(), is_fresh=True) as client:
        loaded = set(re.findall(r"^import time: .*\| +(\S+)$", client.running.log(), re.MULTILINE))
    assert {"sidecar.gateway.pipeline", "aiohttp.web", "jwt"} <= loaded
    assert loaded & NOT_LOADED.keys() == set()
