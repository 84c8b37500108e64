"""A sidecar that is killed takes its programs along."""

import sys
import tempfile
from pathlib import Path

import aiohttp
import pytest

from tests.flow.process import served
from tests.flow.test_stdio import alive, children_of, moody
from tests.flow.world import ACCEPT, SESSION, request, until


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody adopts what left its group")
async def test_a_sidecar_that_is_killed_takes_everything_along_within_two_seconds() -> None:
    rules = "p, anonymous, tool:github/*, use, -, -, -, allow\n"
    program = moody("deaf", "orphans")
    async with served("", rules=rules, program=program, upstream_settings="anonymous: true") as running:
        async with aiohttp.ClientSession() as http:
            hello = {"protocolVersion": SESSION, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
            headers = {"Accept": ACCEPT}
            url = f"{running.url}/mcp/github"
            async with http.post(url, json=request("initialize", hello), headers=headers) as response:
                assert response.status == 200
        await until(lambda: len(children_of(running.process.pid)) >= 6)  # warden, keeper, program, three more
        below = children_of(running.process.pid)
        await running.kill()
        await until(lambda: not [pid for pid in below if alive(pid)], within_s=2.0)
        assert not list(Path(tempfile.gettempdir()).glob(f"sidecar-{running.process.pid}-*"))
