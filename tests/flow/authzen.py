"""A sidecar that AuthZEN enforcement points ask, with a vocabulary of records and of tools."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.flow.enforcement import KEY, asked_world
from tests.flow.world import World

RULES = """\
#: id=planner-searches
p, nhi:planner, tool:github/search_code, use, -, -, args.repo.startsWith('acme/'), allow
#: id=planner-reads
p, nhi:planner, tool:github/get_file, use, -, 3, -, allow
#: id=alice-reads
p, user:alice, tool:records/read/101, use, -, -, -, allow
p, user:alice, tool:records/read/102, use, -, -, -, allow
p, user:alice, tool:records/write/101, use, -, -, args.status == 'active', allow
#: id=staff-reads
p, role:staff, tool:records/read/*, use, -, -, -, allow
"""
FILES = {
    "policies/user_to_nhi.csv": "p, user:alice, nhi:planner, delegate, -, -, -, allow\n",
    "policies/roles.csv": "g, user:bob, role:staff\n",
}
PDP = """{charges: ask, authzen: {types: {record: "tool:records/{action}/*"}, actions: {can_call: tools/call},
  arguments: {record: {status: resource.properties.status}}}}"""
ALICE, BOB = ({"type": "user", "id": name} for name in ("alice", "bob"))
PLANNER = {"type": "nhi", "id": "planner"}


class Answered(NamedTuple):
    """The answer to a request: its status, its parsed body, its headers."""

    status: int
    body: Any
    headers: Mapping[str, str]


@asynccontextmanager
async def authzen_world(folder: Path, pdp: str = PDP, **more: Any) -> AsyncIterator[World]:
    written = {"rules": RULES, "files": FILES, **more}
    async with asked_world(folder, pdp, **written) as (running, _):
        yield running


async def ask(running: World, path: str, body: Any, *, method: str = "POST", **headers: str) -> Answered:
    """Sends a body (bytes as they are) to `/access/v1/<path>`, or to an absolute path, with the enforcement point's
    key. Underscores in names of headers are hyphens; an empty header is left out."""
    sent = {
        "Content-Type": "application/json",
        **KEY,
        **{name.replace("_", "-"): text for name, text in headers.items()},
    }
    sent = {name: text for name, text in sent.items() if text}
    options: dict[str, Any] = {"data" if isinstance(body, bytes) else "json": body, "headers": sent}
    url = f"{running.admin_url}{path if path.startswith('/') else f'/access/v1/{path}'}"
    async with running.http.request(method, url, **options) as response:
        return Answered(response.status, await response.json(content_type=None), response.headers)


def question(subject: Mapping[str, Any], action: str, resource: str, **more: Any) -> dict[str, Any]:
    """A question about a resource `<type>:<id>`; `properties` are the resource's."""
    kind, _, id_ = resource.partition(":")
    entity = {"type": kind, "id": id_, **({"properties": more.pop("properties")} if "properties" in more else {})}
    return {"subject": subject, "action": {"name": action}, "resource": entity, **more}


def arguments(**given: Any) -> dict[str, Any]:
    return {"arguments": given}
