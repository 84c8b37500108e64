"""Who has the numbers of standard input, output and error, when whoever started us had closed them?"""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, sys
from sidecar.http.server.fd_limits import hold_standard
hold_standard()
opened = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
os.write(opened, f"{opened} {[os.readlink(f'/proc/self/fd/{number}') for number in range(3)]}".encode())
"""


def test_nothing_that_is_opened_later_has_them(tmp_path: Path) -> None:
    told = tmp_path / "told"
    closed = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", PROGRAM, str(told)]
    subprocess.run(closed, check=True, timeout=30)
    assert told.read_text() == "3 ['/dev/null', '/dev/null', '/dev/null']"
