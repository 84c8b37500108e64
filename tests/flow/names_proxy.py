"""proxy.py, a proxy that nobody here wrote, as a process: it alone knows the names `*.corp.test`, all on this machine.

with names_proxy(folder, "user:password") as proxy:    proxy.url, proxy.targets()
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from proxy.http.proxy import HttpProxyBasePlugin

ROOT = Path(__file__).parents[2]
ASKED = "ASKED_PATH"
PATIENCE_S = 20.0


class NamesOfTests(HttpProxyBasePlugin):
    """Writes down which destinations the proxy is asked for, and resolves the names of the tests."""

    def resolve_dns(self, host: str, port: int) -> tuple[str | None, tuple[str, int] | None]:
        with Path(os.environ[ASKED]).open("a") as file:
            file.write(f"{host}\n")
        return ("127.0.0.1" if host.endswith(".corp.test") else None), None


@dataclass(frozen=True)
class NamesProxy:
    url: str
    asked: Path

    def targets(self) -> set[str]:
        return set(self.asked.read_text().split())


@contextmanager
def names_proxy(folder: Path, credentials: str) -> Iterator[NamesProxy]:
    """The proxy until the block ends."""
    asked, port_file = folder / "asked", folder / "port"
    asked.write_text("")
    one = ("--hostname", "127.0.0.1", "--port", "0", "--port-file", str(port_file), "--basic-auth", credentials)
    few = ("--num-acceptors", "1", "--num-workers", "1", "--log-level", "e", "--data-dir", str(folder / "proxy"))
    argv = [sys.executable, "-m", "proxy", *one, *few, "--plugins", f"{__name__}.{NamesOfTests.__name__}"]
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), ASKED: str(asked)}
    with subprocess.Popen(argv, env=env, cwd=folder) as process:
        try:
            until = time.monotonic() + PATIENCE_S
            while not port_file.exists() or not port_file.read_text().strip():
                assert process.poll() is None and time.monotonic() < until, "the proxy did not start"
                time.sleep(0.02)
            yield NamesProxy(f"http://127.0.0.1:{int(port_file.read_text())}", asked)
        finally:
            process.terminate()
