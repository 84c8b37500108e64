"""Which requests to an agent share what is made once?"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from sidecar.errors import Refusal
from sidecar.http.client import RequestForm
from sidecar.protocols.a2a.operations import BY_ACTION
from sidecar.upstreams.agents.http_transport import MAX_FORMS, HttpJsonAgent
from sidecar.upstreams.agents.transport import OutgoingOperation
from sidecar.upstreams.credentials.source import Header
from sidecar.upstreams.http_address import HttpAddress

MESSAGE = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hello"}]}


class Counting(HttpAddress):
    """Counts the forms that are made; nothing listens there."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:1/a")
        self.made: list[str] = []

    def form(self, verb: str, path: str, first: Sequence[Header]) -> RequestForm:
        self.made.append(path)
        return super().form(verb, path, first)


async def test_the_form_of_an_address_without_ids_is_made_once_also_after_many_with_ids() -> None:
    address = Counting()
    agent = HttpJsonAgent(address, lambda: "1.0", 1000)

    async def ask(action: str, params: dict[str, Any]) -> None:
        with suppress(Refusal):
            await agent.ask(OutgoingOperation(BY_ACTION[action], params, None, 1.0))

    for number in range(MAX_FORMS + 1):
        await ask("tasks/get", {"id": f"t{number}"})
        await ask("tasks/list", {"pageToken": f"p{number}"})
    for number in range(MAX_FORMS):
        await ask("message/send", {"message": MESSAGE})
        await ask("message/send", {"message": MESSAGE, "tenant": f"tenant-{number % 3}"})
    assert address.made.count("/a/message:send") == 1 and address.made.count("/a/tenant-0/message:send") == 1
    for number in range(MAX_FORMS):
        await ask("message/send", {"message": MESSAGE, "tenant": f"other-{number}"})
    await ask("message/send", {"message": MESSAGE})
    assert address.made.count("/a/message:send") == 2, "callers cannot fill the table with tenants"
    await agent.close()
