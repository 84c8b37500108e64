"""Is a Unix socket's file replaced only if nothing listens on it?"""

import errno
import socket
from pathlib import Path

import pytest

from sidecar.http.server.bound_sockets import bound_socket
from sidecar.settings.addresses import UnixAddress


def test_a_file_without_a_listener_is_replaced(tmp_path: Path) -> None:
    address = UnixAddress(tmp_path / "s")
    bound_socket(address).close()
    with bound_socket(address) as sock:
        assert sock.getsockname() == str(address.path)


def test_a_listener_whose_backlog_is_full_is_in_use_and_holds_nothing_up(tmp_path: Path) -> None:
    address = UnixAddress(tmp_path / "s")
    with bound_socket(address) as listening, socket.socket(socket.AF_UNIX) as waiting:
        listening.listen(0)
        waiting.connect(str(address.path))
        with pytest.raises(OSError) as caught:
            bound_socket(address)
    assert caught.value.errno == errno.EADDRINUSE
