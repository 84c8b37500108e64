"""Is a free port one that nobody else comes by?"""

import socket

import pytest

from sidecar.cli import free_ports as ports
from sidecar.cli.free_ports import HIGHEST, LOWEST, free_ports


def test_none_is_given_twice_nor_one_that_somebody_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_last", HIGHEST - 1)
    [first] = free_ports(1)
    with socket.create_server(("127.0.0.1", first)):
        monkeypatch.setattr(ports, "_last", HIGHEST - 1)
        found = free_ports(50)
    assert first not in found and len(set(found)) == 50
    assert all(LOWEST <= port <= HIGHEST for port in found)


def test_too_few_are_none() -> None:
    with pytest.raises(OSError, match="no 20000 ports"):
        free_ports(20_000)
