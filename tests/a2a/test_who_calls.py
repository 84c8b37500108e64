"""Is a caller's proof the same in every way to say a call: bound tokens, and certificates that a proxy tells of?"""

import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from sidecar.protocols.a2a import http
from sidecar.protocols.a2a.operations import SEND, Binding, Version
from tests.a2a.world import HELLO, IDP, SPOKEN, AgentWorld, agent_world, ask
from tests.flow.idp import SETTINGS, bearer
from tests.unit.identity.authority import Authority, authority
from tests.unit.identity.test_bound_tokens import HOLDER, THIEF, proof

PLANNER = "spiffe://acme.example/ns/prod/sa/planner"
PROXIED = """\
  certificates: {spiffe: [{trust_domain: acme.example, path: "/ns/prod/sa/{id}"}]}
  trusted_proxies: [{address: NETWORK}]
"""


def address(world: AgentWorld, version: Version, binding: Binding) -> str:
    """What a proof is for; over gRPC too it is an address over HTTP."""
    base = f"{world.app.live.current.base_url}/agents/researcher"
    return base + (http.path_to(SEND.http(version)[0], {}) if binding == "http_json" else "/")


async def test_a_bound_token_needs_its_proof_in_every_binding(tmp_path: Path) -> None:
    async with agent_world(tmp_path) as world:
        at = f"{world.app.live.current.base_url}/agents/researcher"
        token = IDP.token("user:alice", at, claims={"cnf": {"jkt": HOLDER.kid}})
        for version, binding in SPOKEN:
            htu, iat = address(world, version, binding), int(time.time())
            good = {"Authorization": f"DPoP {token}", "DPoP": proof(token, htu=htu, iat=iat)}
            answered = await ask(world, version, binding, "message/send", {"message": HELLO}, good)
            assert answered.status == 200, (version, binding, answered)
            stolen = {
                "shown again": good,
                "as a bearer token": {"Authorization": f"Bearer {token}"},
                "by the thief": {**good, "DPoP": proof(token, by=THIEF, htu=htu, iat=iat)},
                "for another agent": {**good, "DPoP": proof(token, htu=htu.replace("researcher", "x"), iat=iat)},
            }
            for how, headers in stolen.items():
                answered = await ask(world, version, binding, "message/send", {"message": HELLO}, headers)
                assert answered.status == 401, (version, binding, how, answered)
        assert len(world.agent.seen) == len(SPOKEN)


@pytest.mark.parametrize("action", ["message/stream", "tasks/resubscribe"])
async def test_a_stream_wants_a_credential_as_every_call_does(action: str, tmp_path: Path) -> None:
    """BL-031: no, bad and expired ones, each refused and on record."""
    params: dict[str, Any] = {"message": HELLO} if action == "message/stream" else {"id": "t1"}
    async with agent_world(tmp_path) as world:
        at = f"{world.app.live.current.base_url}/agents/researcher"
        expired = IDP.token("user:alice", at, age_s=7200, ttl_s=60)
        for version, binding in SPOKEN:
            for who in ({}, bearer("nonsense"), bearer(expired)):
                reason = "bad-credential" if who else "unauthenticated"
                before = len(world.ends())
                answered = await ask(world, version, binding, action, params, who)
                assert (answered.status, answered.reason) == (401, reason), (version, binding, answered)
                assert answered.error and (binding != "grpc" or answered.error["code"] == "UNAUTHENTICATED")
                (record,) = world.ends()[before:]
                assert (record["event"], record["reason"]) == ("refusal", reason), record
        assert world.agent.seen == []


async def test_a_certificate_counts_from_a_named_proxy_in_every_binding(tmp_path: Path) -> None:
    forwarded = {"X-Forwarded-Client-Cert": f'Hash={"ab" * 32};Subject="";URI={PLANNER}'}
    for network, status in (("127.0.0.0/8", 200), ("10.0.0.0/8", 401)):
        identity = SETTINGS + PROXIED.replace("NETWORK", network)
        async with agent_world(tmp_path / network[:3], identity=identity) as world:
            for version, binding in SPOKEN:
                answered = await ask(world, version, binding, "message/send", {"message": HELLO}, forwarded)
                assert answered.status == status, (network, version, binding, answered)


async def test_a_new_certificate_is_shown_to_callers_over_grpc_too(tmp_path: Path) -> None:
    before, after = authority("before"), authority("after")
    before.issue(address="127.0.0.1").write(tmp_path, "server")
    tls = "tls: {cert_path: server.pem, key_path: server.key}"
    server = f'server: {{listen: "127.0.0.1:0", grpc: "127.0.0.1:0", {tls}}}\n'
    async with agent_world(tmp_path, settings=server) as world:
        assert await answers(world, before) and not await answers(world, after)
        after.issue(address="127.0.0.1").write(tmp_path, "server")
        await world.app.reload("test")
        assert await answers(world, after) and not await answers(world, before)


async def answers(world: AgentWorld, trusts: Authority) -> bool:
    """Whether somebody who trusts this authority reaches the gRPC listener."""
    credentials = grpc.ssl_channel_credentials(trusts.own.pem.encode())
    async with grpc.aio.secure_channel(f"127.0.0.1:{world.app.grpc_ports['']}", credentials) as channel:
        state = channel.get_state(try_to_connect=True)
        while state not in (grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE):
            await channel.wait_for_state_change(state)
            state = channel.get_state()
        return state is grpc.ChannelConnectivity.READY
