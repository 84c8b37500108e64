"""Deliveries are tried again soon."""

import pytest

from sidecar.tasks.webhooks import outbox


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "FIRST_RETRY_S", 0.01)
    monkeypatch.setattr(outbox, "MAX_RETRY_S", 0.05)
