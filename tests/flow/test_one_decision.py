"""A question gets one decision, whichever protocol asks it.

    python -m tests.flow.test_one_decision --policies 2000

Policies, chains and questions are drawn. The same question goes to one sidecar for each protocol; all of them have the
same policy and the same audit key, and each counts for itself. Then their records agree: in decision and reason, in the
rules of every link and what conditions read, in the limits and what is left of them, in chain, object and hash of the
arguments.
"""

import argparse
import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
from grpc import aio
from hypothesis import HealthCheck, Phase, given, settings, strategies as st

from sidecar.protocols.ext_authz import CHECK, CheckRequest, CheckResponse
from tests.flow.enforcement import ADMIN, KEY, SECRET
from tests.flow.idp import SETTINGS, Idp, bearer
from tests.flow.world import ACCEPT, PATIENCE_S, STATELESS, Upstream, World, listening, stateless, world
from tests.unit.policy.plain import Policy
from tests.unit.policy.test_against_plain_casbin import ACTION_OF, NHIS, NODES, TOOLS, arguments, policies, sampled
from tests.unit.policy.world import AFTER, BEFORE

AUDIT_KEY = "f7cc0b9c5a0461edd733ebc1322cfb7a48b94c33ffea478b893e6218448cfece"
IN_TIME = {BEFORE: "2020-01-01T00:00:00Z", AFTER: "2099-01-01T00:00:00Z"}
LISTENERS = 'server: {listen: "127.0.0.1:0", grpc: "127.0.0.1:0"}\n'
PATIENT = "refusals: {per_principal_per_minute: 100000, recorded_per_principal_per_minute: 100000}\n"
BUDGETS = 'version: 1\nprincipals: {"nhi:*": {per_hour: 90000}}\ntools: {"tool:s1/*": {daily_quota: 80000}}\n'
COMPARED = (
    "reason", "links", "facts", "policy_revision", "enforcement", "would_deny", "chain", "upstream", "method",
    "server", "tool", "action", "object", "args_hash",
)  # fmt: skip


class Asked(NamedTuple):
    """One question: who asks, what for, with which arguments."""

    chain: tuple[str, ...]
    object: str
    arguments: Mapping[str, Any]

    @property
    def place(self) -> tuple[str, str]:
        """Its server, and the name there."""
        server, _, name = self.object.partition(":")[2].partition("/")
        return server, name

    @property
    def action(self) -> str:
        return ACTION_OF[self.object.partition(":")[0]]

    def message(self) -> tuple[dict[str, Any], dict[str, str]]:
        """The message of MCP that asks it, and its headers."""
        message = stateless(self.action, {"name": self.place[1], "arguments": self.arguments})
        return message, {"Mcp-Method": self.action, "Mcp-Name": self.place[1], "MCP-Protocol-Version": STATELESS}


@dataclass
class Side:
    """One sidecar, asked by one protocol. `read` is how much of its log was read."""

    running: World
    idp: Idp
    read: int = 0
    channel: aio.Channel | None = None
    tokens: dict[tuple[tuple[str, ...], str], Mapping[str, str]] = field(default_factory=dict)

    def credential(self, asked: Asked) -> Mapping[str, str]:
        """A token of the chain for the server."""
        key = asked.chain, asked.place[0]
        if key not in self.tokens:
            audience = f"{self.running.app.base_url}/mcp/{asked.place[0]}"
            self.tokens[key] = bearer(self.idp.token(asked.chain[0], audience, actors=asked.chain[1:], ttl_s=3000))
        return self.tokens[key]

    def record(self) -> dict[str, Any]:
        """The first record of the question that was just asked."""
        with self.running.app.settings.audit_path.open("rb") as log:
            log.seek(self.read)
            lines = log.read()
        self.read += len(lines)
        found = (json.loads(line) for line in lines.splitlines())
        return next(record for record in found if record["event"] in ("decision", "refusal"))

    async def takes(self, files: Mapping[str, str]) -> None:
        folder = self.running.folder / "policies"
        for name in ("agent_to_tool", "user_to_nhi", "nhi_to_nhi", "guardrails", "roles"):
            (folder / f"{name}.csv").write_text(files.get(f"{name}.csv", ""))
        await self.running.app.reload("test")


async def proxied(side: Side, asked: Asked) -> bool:
    message, headers = asked.message()
    sent = {**headers, **side.credential(asked)}
    _, answer, _ = await side.running.post(message, headers=sent, server=asked.place[0])
    return "result" in answer and not answer["result"].get("isError")


async def by_ext_authz(side: Side, asked: Asked) -> bool:
    message, headers = asked.message()
    sent = {"Content-Type": "application/json", "Accept": ACCEPT, **headers, **side.credential(asked), **KEY}
    url = f"{side.running.admin_url}/ext-authz/mcp/{asked.place[0]}"
    async with side.running.http.post(url, data=json.dumps(message), headers=sent) as response:
        return response.status == 200


async def by_ext_authz_grpc(side: Side, asked: Asked) -> bool:
    message, headers = asked.message()
    sent = {"content-type": "application/json", "accept": ACCEPT, **headers, **side.credential(asked)}
    check = CheckRequest()
    http = check.attributes.request.http
    http.method, http.path, http.raw_body = "POST", f"/mcp/{asked.place[0]}", json.dumps(message).encode()
    for name, value in sent.items():
        http.headers[name.lower()] = value
    if side.channel is None:
        side.channel = aio.insecure_channel(f"127.0.0.1:{side.running.app.grpc_ports['']}")
    ask: Any = side.channel.unary_unary(CHECK)
    answer = await ask(check.SerializeToString(), metadata=(("x-pdp-key", SECRET),), timeout=PATIENCE_S)
    return CheckResponse.FromString(answer).WhichOneof("http_response") == "ok_response"


async def by_authzen(side: Side, asked: Asked) -> bool:
    if len(asked.chain) > 2:  # a request has no place for it; the limits here must remain those of the others
        return await by_ext_authz(side, asked)
    (kind, _, of_subject), what = asked.chain[0].partition(":"), asked.object.partition(":")
    agents = [("agent", name.partition(":")[2]) for name in asked.chain[1:]]
    body = {
        "subject": {"type": kind, "id": of_subject},
        "action": {"name": asked.action},
        "resource": {"type": what[0], "id": what[2], "properties": {"arguments": asked.arguments}},
        "context": dict(agents),
    }
    url = f"{side.running.admin_url}/access/v1/evaluation"
    async with side.running.http.post(url, json=body, headers=KEY) as response:
        answer = await response.json()
        return bool(answer["decision"])


Ask = Callable[[Side, Asked], Awaitable[bool]]
PROTOCOLS: Mapping[str, Ask] = {
    "mcp": proxied,
    "ext_authz": by_ext_authz,
    "ext_authz over gRPC": by_ext_authz_grpc,
    "authzen": by_authzen,
}


@dataclass
class Sides:
    """A sidecar for each protocol."""

    loop: asyncio.Runner
    of: dict[str, Side] = field(default_factory=dict)
    allowed: int = 0
    charged: int = 0
    asked: int = 0

    def compare(self, policy: Policy, questions: Sequence[Asked]) -> None:
        self.loop.run(self._compare(policy, questions))

    async def _compare(self, policy: Policy, questions: Sequence[Asked]) -> None:
        files = policy.files(partial(map, _per_origin))  # type: ignore[arg-type]
        await asyncio.gather(*(side.takes(files) for side in self.of.values()))
        for side in self.of.values():
            side.read = side.running.app.settings.audit_path.stat().st_size
        for asked in questions:
            first = None
            for protocol, ask in PROTOCOLS.items():
                side = self.of[protocol]
                allowed, record = await ask(side, asked), side.record()
                assert allowed is (record["reason"] is None), record
                found = {name: record[name] for name in COMPARED}
                found["limits"] = [{**state, "reset_at": None} for state in record["limits"]]
                first = first or found
                assert found == first, f"by {protocol}: {asked}"
            assert first is not None
            self.asked += 1
            self.allowed += first["reason"] is None
            self.charged += bool(first["limits"])


def _per_origin(line: str) -> str:
    """Counts the limits of some rows for the first of a chain, and of others for the rule."""
    columns = line.split(", ")
    if columns[0] != "p" or columns[5] == "-":
        return line
    return {"3": f"#: per=origin\n{line}", "5": f"#: per=rule\n{line}"}.get(columns[5], line)


@contextmanager
def sides() -> Iterator[Sides]:
    with asyncio.Runner() as loop, TemporaryDirectory() as folder:
        found, stack = Sides(loop), AsyncExitStack()
        loop.run(_start(found, stack, Path(folder)))
        try:
            yield found
        finally:
            for side in found.of.values():
                if side.channel is not None:
                    loop.run(side.channel.close())
            loop.run(stack.aclose())


async def _start(found: Sides, stack: AsyncExitStack, folder: Path) -> None:
    anything = {"type": "object"}
    upstream = Upstream(tools=[{"name": name, "inputSchema": anything} for name in ("t1", "t2")])
    base = await stack.enter_async_context(listening(upstream.handle))
    for protocol in PROTOCOLS:
        idp = Idp()
        quiet = f'{{mcp: {{url: "{base}/mcp"}}, probe: {{enabled: false}}}}'
        lines = f"  s1: {quiet}\n  s2: {quiet}\n"
        key = folder / protocol / "data" / "keys" / "audit.key"
        key.parent.mkdir(parents=True)
        key.touch(0o600)
        key.write_text(AUDIT_KEY)
        files = {**idp.files(), "pdp.secret": SECRET, "policies/budgets.yaml": BUDGETS}
        whole = f"{lines}{SETTINGS}{ADMIN}pdp: {{charges: always}}\n{PATIENT}{LISTENERS}"
        running = await stack.enter_async_context(world(folder / protocol, settings=whole, files=files, principal=""))
        found.of[protocol] = Side(running, idp)


@st.composite
def limited_policies(draw: st.DrawFn) -> Policy:
    """Policies with limits, most of which allow something to everybody."""
    policy = draw(policies())
    limits, chance = st.sampled_from(("-", "-", "2", "3", "5")), st.integers(0, 3)
    rows = {}
    for kind, of_kind in policy.rows.items():
        written = [(*row[:3], IN_TIME.get(row[3], row[3]), _limit(draw, limits, row), *row[5:]) for row in of_kind]
        if kind != "guardrails" and draw(chance):
            written.append(("*", "*", "use", "-", draw(limits), "-", "allow"))
        rows[kind] = list(dict.fromkeys(row for row in written if row[6] == "allow" or not draw(chance)))
    return replace(policy, rows=rows)


def _limit(draw: st.DrawFn, limits: st.SearchStrategy[str], row: Sequence[str]) -> str:
    return draw(limits) if row[6] == "allow" else "-"


chains = st.one_of(
    st.tuples(sampled(*NODES)),
    st.tuples(sampled(*NODES), sampled(*NHIS)),
    st.permutations(NHIS).map(lambda both: ("user:a", *both)),
).filter(lambda chain: len(set(chain)) == len(chain))
questions = st.builds(Asked, chains, sampled(*TOOLS), arguments).filter(
    lambda asked: asked.action == "tools/call" or all(isinstance(one, str) for one in asked.arguments.values())
)
asked_often = st.lists(questions, min_size=1, max_size=4).map(lambda some: some * 3)  # so that limits are reached


@pytest.fixture(scope="module")
def running() -> Iterator[Sides]:
    with sides() as found:
        yield found


@settings(
    max_examples=12, phases=(Phase.generate,), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(policy=limited_policies(), asked=asked_often)
def test_every_protocol_gives_a_question_the_same_decision(running: Sides, policy: Policy, asked: list[Asked]) -> None:
    running.compare(policy, asked)


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--policies", type=int, default=2000)
    chosen = options.parse_args()
    with sides() as found:
        check = settings(max_examples=chosen.policies, deadline=None, suppress_health_check=list(HealthCheck))(
            given(limited_policies(), asked_often)(found.compare)
        )
        check()
        told = f"{found.allowed:,} allowed, {found.charged:,} with limits"
        print(f"{found.asked:,} questions ({told}) had one decision each by {', '.join(PROTOCOLS)}")


if __name__ == "__main__":
    main()
