"""What does the address of all servers look like to a test?

`federation` is a sidecar before several servers, `At` a client of one era at `/mcp`.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.flow.talk import Talk, talking
from tests.flow.world import Upstream, World, listening, world

RULES = """\
p, nhi:planner, tool:*, use, -, -, -, allow
p, nhi:planner, prompt:*, use, -, -, -, allow
p, nhi:planner, resource:*, use, -, -, -, allow
p, nhi:planner, nhi:*, sampling/createMessage|elicitation/create|roots/list, -, -, -, allow
"""


@dataclass
class At(Talk):
    """A client at the address of all servers."""

    @property
    def _url(self) -> str:
        return f"{self.url or self.world.url}/mcp"


everywhere = partial(talking, client=At)


@asynccontextmanager
async def federation(
    folder: Path,
    servers: Mapping[str, Upstream | str],
    *,
    rules: str = RULES,
    extra: Mapping[str, str] | None = None,
    **more: Any,
) -> AsyncIterator[World]:
    """A sidecar before `github` and these servers: stubs, or URLs of others. `extra` are further settings of theirs."""
    async with AsyncExitStack() as stack:
        urls = {}
        for name, server in servers.items():
            if isinstance(server, str):
                urls[name] = server
            elif name != "github":
                urls[name] = f"{await stack.enter_async_context(listening(server.handle))}/mcp"
        first = servers.get("github")
        settings = settings_of({name: url for name, url in urls.items() if name != "github"}, extra or {})
        if isinstance(first, Upstream):
            more["upstream"] = first
        elif first is not None:
            more["upstream_url"] = first
        yield await stack.enter_async_context(world(folder, rules=rules, upstream_settings=settings, **more))


def settings_of(urls: Mapping[str, str], extra: Mapping[str, str]) -> str:
    """Settings of `github` that go on with further servers."""
    text = extra.get("github", "anonymous: false")
    for name, url in urls.items():
        more = f", {extra[name]}" if name in extra else ""
        text += f"}}\n  {name}: {{mcp: {{url: '{url}'}}{more}"
    return text


def names_in(body: Any, member: str = "tools", key: str = "name") -> list[str]:
    """What a list names."""
    return [entry[key] for entry in body["result"][member]]
