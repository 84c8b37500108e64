"""A real Valkey for stores of records."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.valkey import Valkey, running_valkey


@pytest.fixture(scope="session")
def valkey() -> Iterator[Valkey]:
    with running_valkey() as server:
        yield server
