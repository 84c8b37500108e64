"""Is what was proven once believed again only where it would be proven again?"""

from typing import Any

import jwt
import pytest

from sidecar.identity import Audience, digest_of
from sidecar.identity.agent_tokens import AgentTokenRule
from sidecar.vocabulary import Caller
from tests.unit.identity.world import GITHUB, NOW, ROUTE, World, a_world, minted


@pytest.fixture
def verified(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tokens that were verified, in order."""
    seen: list[str] = []
    verify = jwt.PyJWS.decode_complete

    def counted(self: jwt.PyJWS, token: str, *given: Any, **more: Any) -> Any:
        seen.append(token)
        return verify(self, token, *given, **more)

    monkeypatch.setattr(jwt.PyJWS, "decode_complete", counted)
    return seen


@pytest.fixture
def world() -> World:
    return a_world()


async def test_a_token_is_verified_once_and_believed_as_it_is_on_its_route_alone(
    world: World, verified: list[str]
) -> None:
    token = minted()
    for _ in range(5):
        await world.chain(token)
    assert verified == [token]

    def recalled(line: str, at: Audience = ROUTE) -> Caller | None:
        found = world.identity.recall(digest_of(line), at)
        return None if found is None else found.alone

    line = f"Bearer {token}"
    assert recalled(line) is recalled(line) is not None
    for strange in (
        *(ROUTE._replace(scopes=("admin",)), ROUTE._replace(keeps_token=True), ROUTE._replace(resource=f"{GITHUB}/x")),
        ROUTE._replace(gate=AgentTokenRule("planner", "nhi:a", "x-agent-token", b"", required=False)),
    ):
        assert recalled(line, strange) is None
    assert recalled(f"{line} ") is recalled(f"DPoP {token}") is recalled(f"{line}\ufffd") is recalled("") is None
    await world.refused(token, at=Audience("https://gw.acme.example/mcp/jira"))
    await world.chain(token)
    assert len(verified) == 2
    for at in (len(token) - 20, len(token) // 2, 10):
        await world.refused(token[:at] + ("A" if token[at] != "A" else "B") + token[at + 1 :])
    assert token not in repr(world.identity._remembered)


async def test_a_bad_token_is_refused_every_time(world: World, verified: list[str]) -> None:
    expired = minted(exp=NOW - 100, iat=NOW - 200)
    for token in (minted(aud="https://other.example"), expired):
        for _ in range(3):
            await world.refused(token)
    assert verified.count(expired) == 3


async def test_it_ends_with_the_token(world: World) -> None:
    token = minted(exp=NOW + 10)
    await world.chain(token)
    world.clock.pass_s(39)
    await world.chain(token)
    world.clock.pass_s(1)
    await world.refused(token)


async def test_what_is_remembered_is_bounded_and_the_oldest_goes(
    world: World, verified: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.identity.authenticator.MAX_REMEMBERED", 3)
    tokens = [minted(jti=str(number)) for number in range(4)]
    for token in tokens[:3]:
        await world.chain(token)
    await world.chain(tokens[0])
    await world.chain(tokens[3])
    assert len(verified) == 4
    await world.chain(tokens[0])
    assert len(verified) == 4
    await world.chain(tokens[1])
    assert verified[-1] == tokens[1]


async def test_a_workload_beside_a_remembered_token_is_asked_each_time(world: World) -> None:
    token = minted()
    for local in ("", "nhi:a", "nhi:b", ""):
        assert await world.chain(token, local=local) == ["user:alice", *filter(None, [local])]
