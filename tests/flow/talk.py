"""How does one client speak, whatever the era?

`Talk` is a client of one era at one server: a session is opened when the first call needs one. `plain` is no era: it is
HTTP without MCP.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import aiohttp

from sidecar.protocols.mcp.eras import encoded_header
from tests.flow.streams import Ear, hearing
from tests.flow.world import SESSION, STATELESS, World, request, stateless

Era = Literal["stateless", "session", "plain"]
Answer = tuple[int, Any, Mapping[str, str]]
ERAS: tuple[Era, ...] = ("stateless", "session")
NAMED_BY = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
NAMED_BY |= dict.fromkeys(("tasks/get", "tasks/update", "tasks/cancel"), "taskId")
DECLARED = {"io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}}}


@dataclass
class Talk:
    """One client. `headers` go with every request, `url` is the address when it is not the world's own; with `tasks` it
    declares MCP's extension of that name on every call of the stateless era, else on those about tasks."""

    world: World
    era: Era
    headers: dict[str, str] = field(default_factory=dict)
    server: str = "github"
    url: str = ""
    session: str = ""
    tasks: bool = False

    async def open(self, capabilities: Mapping[str, Any] = MappingProxyType({})) -> Answer:
        """Session era: `initialize`. The session's id is kept if there is one."""
        client = {"capabilities": {**capabilities}, "clientInfo": {"name": "test", "version": "1"}}
        answer = await self._post(request("initialize", {"protocolVersion": SESSION, **client}), {})
        self.session = answer[2].get("Mcp-Session-Id", "")
        return answer

    async def ask(
        self,
        method: str,
        params: dict[str, Any] | None = None,
        *,
        id: int | str = 1,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """One request and its answer."""
        if self.era == "plain":
            return await self._plain(method, params or {}, {**self.headers, **(headers or {})})
        message, around = await self._framed(method, params or {}, id)
        return await self._post(message, {**around, **(headers or {})})

    @asynccontextmanager
    async def hearing(
        self,
        method: str = "",
        params: dict[str, Any] | None = None,
        *,
        id: int | str = 1,
        last: str = "",
        http: aiohttp.ClientSession | None = None,
    ) -> AsyncIterator[Ear]:
        """The stream that answers one request; without a method, the session's own, after the event `last`."""
        body, around = await self._framed(method, params or {}, id) if method else (None, self.in_session)
        sent = {**self.headers, **around, **({"Last-Event-ID": last} if last else {})}
        async with hearing(http or self.world.http, self._url, sent, body) as ear:
            yield ear

    async def say(self, message: dict[str, Any]) -> Answer:
        """What is no request, in the session."""
        return await self._post({"jsonrpc": "2.0", **message}, self.in_session)

    async def _framed(self, method: str, params: dict[str, Any], id: int | str) -> tuple[Any, dict[str, str]]:
        """A request as the era has it, and the headers around it."""
        if self.era == "session":
            if not self.session and method != "initialize":
                await self.open()
            return request(method, params, id=id), self.in_session
        routing = {"Mcp-Method": method, "MCP-Protocol-Version": STATELESS}
        if method in NAMED_BY and NAMED_BY[method] in params:
            routing["Mcp-Name"] = encoded_header(str(params[NAMED_BY[method]]))
        message = stateless(method, params, id=id)
        if self.tasks or method.startswith("tasks/"):
            message["params"]["_meta"].update(DECLARED)
        return message, routing

    async def call(self, tool: str, arguments: dict[str, Any] | None = None, **more: Any) -> Answer:
        """One `tools/call`."""
        return await self.ask("tools/call", {"name": tool, "arguments": arguments or {}}, **more)

    async def send(self, body: bytes, headers: Mapping[str, str] | None = None) -> Answer:
        """These very bytes, with the headers that the era wants around a `tools/call`."""
        if self.era == "plain":
            url = f"{self._url}/tools/search_code"
            return await self.world.post(body, headers={**self.headers, **(headers or {})}, url=url)
        if self.era == "stateless":
            around = {"Mcp-Method": "tools/call", "Mcp-Name": "search_code", "MCP-Protocol-Version": STATELESS}
        else:
            if not self.session:
                await self.open()
            around = self.in_session
        return await self._post(body, {**around, **(headers or {})})

    async def verb(self, verb: str, headers: Mapping[str, str] | None = None, under: str = "") -> Answer:
        """A request without a body."""
        sent = {**self.headers, **(self.in_session if self.session else {}), **(headers or {})}
        async with self.world.http.request(verb, self._url + under, headers=sent) as response:
            return response.status, await response.read(), dict(response.headers)

    @property
    def in_session(self) -> dict[str, str]:
        """What every request of the open session bears."""
        return {"Mcp-Session-Id": self.session, "MCP-Protocol-Version": SESSION}

    @property
    def _url(self) -> str:
        return f"{self.url or self.world.url}/mcp/{self.server}"

    async def _plain(self, method: str, params: Mapping[str, Any], headers: Mapping[str, str]) -> Answer:
        if method == "tools/call":
            body = {"arguments": params.get("arguments", {})}
            return await self.world.post(body, headers=headers, url=f"{self._url}/tools/{params['name']}")
        assert method == "tools/list", "there is nothing else"
        async with self.world.http.get(f"{self._url}/tools", headers=headers) as response:
            return response.status, await response.json(content_type=None), dict(response.headers)

    async def _post(self, message: Any, headers: Mapping[str, str]) -> Answer:
        return await self.world.post(message, headers={**self.headers, **headers}, url=self._url)


@asynccontextmanager
async def talking(
    stage: AbstractAsyncContextManager[World], era: Era, *more: Any, client: type[Talk] = Talk, **named: Any
) -> AsyncIterator[Any]:
    """A client at a world of its own."""
    async with stage as world:
        yield client(world, era, *more, **named)


def error_of(answer: Answer) -> dict[str, Any]:
    """The JSON-RPC error of an answer."""
    _, body, _ = answer
    assert isinstance(body, dict), body
    found: dict[str, Any] = body["error"]
    return found


def reason_of(answer: Answer) -> str:
    """Why an answer is no; "" if it is not."""
    return str(_refusal(answer).get("reason", ""))


def decision_id_of(answer: Answer) -> str:
    """Which record a refusal points to; "" in an answer of the upstream's."""
    return str(_refusal(answer).get("decision_id", ""))


def _refusal(answer: Answer) -> dict[str, Any]:
    _, body, _ = answer
    if not isinstance(body, dict):
        return {}
    if "error" in body:
        found: dict[str, Any] = body["error"].get("data", {})
        return found
    return body.get("result", {}).get("_meta", {}).get("sidecar/refusal", {}) if "result" in body else body


def series_moved(before: str, after: str) -> list[str]:
    """The counters that a scrape shows higher than an earlier one, each with by how much."""
    old, new = _counters(before), _counters(after)
    return sorted(
        f"{name} +{value - old.get(name, 0.0):g}" for name, value in new.items() if value != old.get(name, 0.0)
    )


def _counters(text: str) -> dict[str, float]:
    lines = (line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, value in lines if "_total" in name and name.startswith("sidecar_")}
