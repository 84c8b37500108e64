"""How is the interpreter set that the tests run in? As a sidecar's is once it has begun: its collector need not walk,
again and again, what was there before the first test."""

from __future__ import annotations

from sidecar.cli.serve import settle_interpreter


def pytest_collection_finish() -> None:
    settle_interpreter()
