"""Does an agent's sidecar speak for its agent, and for nobody else, to the sidecar before a server?

Two of them in a row, over MCP: the first signs whom it calls for, the second fetches its keys and decides every link.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.flow.idp import APPS, ISSUER, bearer
from tests.flow.talk import ERAS, Era, Talk, reason_of
from tests.flow.test_identity_flow import GOOD, IDP, LENDS, gateway, token
from tests.flow.world import World

BY_ROLE = {"policies/user_to_nhi.csv": "p, role:corp/eng, nhi:planner, delegate, -, -, -, allow\n"}
WITH_ROLES = f"""\
identity:
  issuers:
    - issuer: "{ISSUER}"
      jwks_path: jwks.json
      algorithms: [ES256]
      kinds: [user, nhi]
      roles_from: {{claim: groups, namespace: corp}}
    - {{issuer: "{APPS}", namespace: apps, jwks_path: jwks.json, algorithms: [ES256], kinds: [user, nhi]}}
"""


@asynccontextmanager
async def two(
    folder: Path, *, rules: dict[str, str], actors: str = "nhi:planner"
) -> AsyncIterator[tuple[World, World]]:
    """The planner's own sidecar, and the one before the server."""
    async with gateway(folder / "far", files=rules) as far:
        signed = 'credential: {signed: {roles: true, own: "nhi:planner"}}'
        async with gateway(
            folder / "near", upstream_url=f"{far.url}/mcp/github", upstream_settings=signed, files=BY_ROLE | rules
        ) as near:
            peer = f'preset: sidecar, actors: ["{actors}"], roles_from: {{namespace: corp}}'
            with_peer = f'identity:\n  issuers: [{{issuer: "{near.app.base_url}", {peer}}}]\n'
            for running, identity in ((near, WITH_ROLES), (far, with_peer)):
                path = running.folder / "sidecar.yaml"
                path.write_text(path.read_text().partition("identity:")[0] + identity)
                await running.app.reload("test")
            yield near, far


@pytest.mark.parametrize("era", ERAS)
async def test_the_sidecar_before_the_server_sees_the_whole_chain_with_its_roles(era: Era, tmp_path: Path) -> None:
    async with two(tmp_path, rules=BY_ROLE) as (near, far):
        alices = bearer(token(near, "user:alice", "nhi:planner", claims={"groups": ["eng"]}))
        answer = await Talk(near, era, alices).call("search_code", GOOD)
        assert (answer[0], reason_of(answer)) == (200, ""), answer
        assert len(far.upstream.calls()) == 1
        for running in (near, far):
            assert running.ends()[-1]["chain"] == ["user:alice", "nhi:planner"]
        assert [link["action"] for link in far.ends()[-1]["links"]] == ["delegate", "tools/call"]
        planners = bearer(token(near, "nhi:planner"))
        assert (await Talk(near, era, planners).call("search_code", GOOD))[0] == 200
        assert far.ends()[-1]["chain"] == ["nhi:planner"]


async def test_a_peer_that_speaks_for_another_is_not_heard(tmp_path: Path) -> None:
    async with two(tmp_path, rules=LENDS, actors="nhi:researcher") as (near, far):
        alices = bearer(token(near, "user:alice", "nhi:planner", claims={"groups": ["eng"]}))
        answer = await Talk(near, "stateless", alices).call("search_code", GOOD)
        assert answer[0] != 200
        assert far.upstream.calls() == []
        assert {record["reason"] for record in far.ends()} == {"bad-credential"}


async def test_who_reaches_the_second_sidecar_without_the_first_is_nobody(tmp_path: Path) -> None:
    async with two(tmp_path, rules=BY_ROLE) as (near, far):
        for shown in (bearer(token(near, "user:alice", "nhi:planner")), bearer(IDP.token("nhi:planner", far.url))):
            answer = await Talk(far, "stateless", shown).call("search_code", GOOD)
            assert (answer[0], reason_of(answer)) == (401, "bad-credential")
