"""What is refused, and why."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sidecar.errors import Reason, Refusal


@contextmanager
def refused(reason: Reason, match: str | None = None) -> Iterator[None]:
    with pytest.raises(Refusal, match=match) as found:
        yield
    assert found.value.reason is reason
