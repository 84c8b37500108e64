"""How does the owner of a task hear of its end without asking?"""

from __future__ import annotations

from sidecar.protocols.jsonrpc import malformed
from sidecar.task_api.records import Record


async def refuse_callback(url: str) -> None:
    """Nobody is called back. Raises Refusal(MALFORMED_CALL)."""
    raise malformed("callback_url: nobody is called back here")


async def nobody_is_called_back(record: Record, body: bytes) -> None:
    """No task has such an address: none was taken."""
