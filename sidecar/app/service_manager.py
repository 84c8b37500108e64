"""Reports the state of the process to a service manager (sd_notify of systemd: `Type=notify`, `WatchdogSec=`)."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Mapping

log = logging.getLogger("sidecar.app.service_manager")

MAX_STATUS = 200


class ServiceManager:
    """The manager at `NOTIFY_SOCKET`. Without that variable, nothing is sent."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        name = environ.get("NOTIFY_SOCKET", "")
        self._address = f"\0{name[1:]}" if name.startswith("@") else name
        usec, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
        is_ours = pid in ("", str(os.getpid()))
        self._watchdog_s = int(usec) / 1e6 if usec.isdecimal() and is_ours else 0.0
        self._failed = False

    def ready(self, status: str) -> None:
        """The start or a reload is complete."""
        self._send("READY=1", f"STATUS={' '.join(status.split())[:MAX_STATUS]}")

    def reloading(self) -> None:
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self, within_s: float) -> None:
        """The stop has begun, and takes at most `within_s`, which takes precedence over a shorter `TimeoutStopSec=`."""
        self._send("STOPPING=1", "STATUS=finishes calls in flight", f"EXTEND_TIMEOUT_USEC={int(within_s * 1e6)}")

    async def run_watchdog(self) -> None:
        """Sends a keep-alive twice per period. A hanging event loop sends none, and the manager ends the process."""
        while self._watchdog_s > 0.0:
            self._send("WATCHDOG=1")
            await asyncio.sleep(self._watchdog_s / 2)

    def _send(self, *states: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.setblocking(False)
                sock.sendto("\n".join(states).encode(), self._address)
            self._failed = False
        except (OSError, ValueError) as error:
            if not self._failed:
                log.warning("the service manager cannot be reached", extra={"error": str(error)})
            self._failed = True
