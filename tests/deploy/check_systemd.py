"""The units are what systemd understands, confine the process, and name addresses that a sidecar takes."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.settings.addresses import parse_address
from sidecar.settings.load import load_settings
from tests.deploy import DEPLOY
from tests.flow.world import write_folder

UNITS = DEPLOY / "systemd"
ANALYZE = shutil.which("systemd-analyze")
EXECUTABLE = "/opt/sidecar/bin/sidecar"
MOST_EXPOSED = 20  # tenths; what is left is the network, which is the sidecar's work


def values(unit: str, section: str) -> dict[str, list[str]]:
    """The settings of one section; a key may stand several times."""
    found: dict[str, list[str]] = {}
    current = ""
    for line in (UNITS / unit).read_text().splitlines():
        if line.startswith("["):
            current = line.strip("[]")
        elif current == section and "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


@pytest.mark.skipif(ANALYZE is None, reason="no systemd-analyze")
def test_systemd_understands_the_units(tmp_path: Path) -> None:
    for unit in ("sidecar.service", "sidecar.socket"):
        text = (UNITS / unit).read_text()
        (tmp_path / unit).write_text(text.replace(EXECUTABLE, str(Path(sys.executable).with_name("sidecar"))))
    command = [str(ANALYZE), "verify", "--man=no", *map(str, sorted(tmp_path.iterdir()))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    ours = [line for line in done.stderr.splitlines() if "sidecar." in line or str(tmp_path) in line]
    assert (done.returncode, ours) == (0, [])


@pytest.mark.skipif(ANALYZE is None, reason="no systemd-analyze")
def test_the_service_is_confined() -> None:
    command = [str(ANALYZE), "security", "--offline=yes", f"--threshold={MOST_EXPOSED}", "--no-pager", "--json=short"]
    done = subprocess.run([*command, str(UNITS / "sidecar.service")], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(json.loads(done.stdout)) > 50


def test_the_service_has_the_notifications_that_the_process_sends() -> None:
    service = values("sidecar.service", "Service")
    assert service["Type"] == ["notify"] and int(service["WatchdogSec"][0]) > 0
    assert service["ExecStart"] == [f"{EXECUTABLE} serve -c /etc/sidecar/sidecar.yaml"]
    assert service["ExecReload"] == ["/bin/kill -HUP $MAINPID"]
    assert service["StateDirectory"] == ["sidecar"] and service["RestartPreventExitStatus"] == ["3"]
    assert set(values("sidecar.service", "Unit")) >= {"Description", "After"}


def test_settings_with_the_addresses_of_the_socket_unit_are_taken(tmp_path: Path) -> None:
    socket = values("sidecar.socket", "Socket")
    data, local = (one if re.match(r"[\d.]+:", one) else f"unix:{one}" for one in socket["ListenStream"])
    settings = f'server: {{listen: "{data}"}}\nlocal: [{{listen: "{local}", principal: "nhi:planner"}}]\n'
    write_folder(tmp_path, "http://127.0.0.1:9100/mcp", settings=settings, principal="")
    taken = load_settings(tmp_path / "sidecar.yaml", {})
    assert (taken.server.listen, taken.local[0].listen) == (parse_address(data), parse_address(local))
    assert int(socket["SocketMode"][0], 8) & 0o007 == 0, "a socket that every user may open stops the start"
