"""Does a token of one agent's addresses open them, name its bearer, and do nothing anywhere else?"""

import pytest

from sidecar.errors import Reason, Refusal
from sidecar.identity import Audience, Presented
from sidecar.identity.agent_tokens import AgentTokenRule, digest_of
from sidecar.identity.authenticator import check_caller
from sidecar.vocabulary import Credential
from tests.unit.identity.test_chain_builder import api_key, keys_of
from tests.unit.identity.world import NOW, World, a_world, an_issuer, claims, minted, signing_key

TOKEN, OTHER = "7fQ-2c51e8a94b0d3f6a7c81e2d95b40aa63", "0b-91d2c7e4f5a6038d7c81e2d95b40aa63f"
AGENT = "https://gw.acme.example/agents/summariser"
ALIAS = "https://gw.acme.example/tools/summarise"
USER = f"Bearer {minted(aud=AGENT)}"


def gate(header: str, *, required: bool = True) -> AgentTokenRule:
    return AgentTokenRule("summariser", "nhi:ci", header, digest_of(TOKEN), required)


def at(gate: AgentTokenRule | None, *, anonymous: bool = False) -> Audience:
    return Audience(AGENT, anonymous, gate=gate, alias=ALIAS)


@pytest.fixture
def world() -> World:
    gates = {"summariser": gate("authorization")}
    return a_world(keys=keys_of("nhi:planner", "user:alice"), gates=gates, aliases=("/tools/summarise", "/tools/lint"))


async def who(world: World, shown: Presented, audience: Audience) -> list[str] | Reason:
    try:
        caller = await world.identity.identify(shown, audience)
    except Refusal as refusal:
        assert TOKEN not in f"{refusal!r}{refusal.detail}{refusal.challenge}"
        return refusal.reason
    return [principal.name for principal in caller.chain]


BAD, NOBODY, CONFLICT = Reason.BAD_CREDENTIAL, Reason.UNAUTHENTICATED, Reason.CREDENTIAL_CONFLICT
# header, what is shown, who it is where the token is required, and where it is not
BEARER = (f"Bearer {TOKEN}",)
KEY = (api_key("nhi:planner"),)
MATRIX = [
    ("authorization", Presented(BEARER), ["nhi:ci"], ["nhi:ci"]),
    ("authorization", Presented((f"bEARER  {TOKEN} ",)), ["nhi:ci"], ["nhi:ci"]),
    ("authorization", Presented(()), NOBODY, NOBODY),
    ("authorization", Presented((f"Bearer {OTHER}",)), BAD, BAD),
    ("authorization", Presented((f"Bearer {TOKEN[:-1]}",)), BAD, BAD),
    ("authorization", Presented((f"Bearer {TOKEN}\ufffd",)), BAD, BAD),
    ("authorization", Presented((f"DPoP {TOKEN}",)), BAD, BAD),
    ("authorization", Presented((TOKEN,)), BAD, BAD),
    ("authorization", Presented(BEARER * 2), BAD, BAD),
    ("authorization", Presented(BEARER, proofs=("a",)), BAD, BAD),
    ("authorization", Presented((), (TOKEN,)), BAD, BAD),
    ("authorization", Presented(BEARER, KEY), CONFLICT, CONFLICT),
    ("authorization", Presented(BEARER, local="nhi:planner"), CONFLICT, CONFLICT),
    ("authorization", Presented((), KEY), BAD, ["nhi:planner"]),
    ("authorization", Presented((USER,)), BAD, ["user:alice"]),
    ("authorization", Presented((), local="nhi:planner"), BAD, ["nhi:planner"]),
    ("x-api-key", Presented((), (TOKEN,)), ["nhi:ci"], ["nhi:ci"]),
    ("x-api-key", Presented((), (TOKEN, TOKEN)), BAD, BAD),
    ("x-api-key", Presented((), (OTHER,)), BAD, BAD),
    ("x-api-key", Presented((), KEY), BAD, ["nhi:planner"]),
    ("x-api-key", Presented((USER,), (TOKEN,)), ["user:alice", "nhi:ci"], ["user:alice", "nhi:ci"]),
    ("x-api-key", Presented((f"Bearer {KEY[0]}",), (TOKEN,)), CONFLICT, CONFLICT),
    ("x-api-key", Presented(BEARER), BAD, BAD),
    ("x-agent-token", Presented(own=(TOKEN,)), ["nhi:ci"], ["nhi:ci"]),
    ("x-agent-token", Presented(own=(TOKEN, TOKEN)), BAD, BAD),
    ("x-agent-token", Presented(own=(OTHER,)), BAD, BAD),
    ("x-agent-token", Presented((USER,), own=(OTHER,)), BAD, BAD),
    ("x-agent-token", Presented((USER,), own=(TOKEN,)), ["user:alice", "nhi:ci"], ["user:alice", "nhi:ci"]),
    ("x-agent-token", Presented((f"Bearer {KEY[0]}",), own=(TOKEN,)), CONFLICT, CONFLICT),
    ("x-agent-token", Presented((USER,)), BAD, ["user:alice"]),
    ("x-agent-token", Presented(), NOBODY, NOBODY),
]


@pytest.mark.parametrize(("header", "shown", "required", "optional"), MATRIX)
async def test_a_token_of_its_own_names_its_bearer(
    world: World, header: str, shown: Presented, required: list[str] | Reason, optional: list[str] | Reason
) -> None:
    assert await who(world, shown, at(gate(header))) == required
    assert await who(world, shown, at(gate(header, required=False))) == optional


@pytest.mark.parametrize("shown", [Presented(BEARER), Presented((), (TOKEN,))])
async def test_it_opens_nothing_else(world: World, shown: Presented) -> None:
    elsewhere = AgentTokenRule("linter", "nhi:ci", "authorization", digest_of(OTHER))
    for there in (None, elsewhere):
        assert await who(world, shown, Audience("https://gw.acme.example/agents/linter", gate=there)) is BAD
    assert await who(world, shown, Audience("https://gw.acme.example/mcp/github", anonymous=True)) is BAD


async def test_evidence_names_the_token_and_a_changed_one_is_another(world: World) -> None:
    caller = await world.identity.identify(Presented(BEARER), at(gate("authorization")))
    (credential,) = caller.credentials
    assert credential == Credential("agent_token", "agent:summariser", digest_of(TOKEN).hex()[:12])
    assert TOKEN not in f"{caller!r}{gate('authorization')!r}" and digest_of(TOKEN).hex() not in f"{caller!r}"
    assert world.identity.vouches_for(caller)
    changed = AgentTokenRule("summariser", "nhi:ci", "authorization", digest_of(OTHER))
    anothers = AgentTokenRule("summariser", "nhi:other", "authorization", digest_of(TOKEN))
    for gates in ({}, {"summariser": changed}, {"summariser": anothers}):
        assert not a_world(gates=gates).identity.vouches_for(caller)


async def test_whoever_was_proven_elsewhere_has_not_shown_it(world: World) -> None:
    """The task API, and streams under new settings, ask what the address would have asked."""
    alice = await world.identity.identify(Presented((USER,)), at(None))
    bearer = await world.identity.identify(Presented(BEARER), at(gate("authorization")))
    check_caller(bearer, at(gate("authorization"))._replace(scopes=("read",)))  # it has no scopes to show
    check_caller(alice, at(gate("authorization", required=False)))
    with pytest.raises(Refusal) as refused:
        check_caller(alice, at(gate("authorization")))
    assert refused.value.reason is NOBODY
    other = AgentTokenRule("summariser", "nhi:ci", "authorization", digest_of(OTHER))
    with pytest.raises(Refusal):
        check_caller(bearer, at(other))


async def test_nobody_is_anonymous_with_a_bad_token(world: World) -> None:
    open_to_all = at(gate("x-agent-token", required=False), anonymous=True)
    assert await who(world, Presented(), open_to_all) == ["anonymous"]
    for bad in (Presented(own=(OTHER,)), Presented(own=("",)), Presented((f"Bearer {TOKEN}",))):
        assert await who(world, bad, open_to_all) is BAD
        assert not world.identity.is_unidentified(bad)


async def test_a_token_for_one_address_of_an_agent_is_for_all_of_them_and_for_no_other_agents() -> None:
    """RFC 8707, also where the issuer's own audiences name an alias."""
    issuer = an_issuer(audiences=(ALIAS, "https://gw.acme.example"))
    world = a_world(issuer, aliases=("/tools/summarise", "/tools/lint"))
    linter = Audience("https://gw.acme.example/agents/linter", alias="https://gw.acme.example/tools/lint")
    lone = Audience("https://gw.acme.example/mcp/github")
    named: list[tuple[str, list[str] | Reason, list[str] | Reason]] = [
        (AGENT, ["user:alice"], BAD),
        (ALIAS, ["user:alice"], BAD),
        ("https://gw.acme.example", ["user:alice"], ["user:alice"]),
        ("https://gw.acme.example/tools/lint", BAD, ["user:alice"]),
    ]
    for audience, here, there in named:
        token = Presented((f"Bearer {signing_key().sign(claims(aud=audience, iat=int(NOW) - 10))}",))
        assert await who(world, token, at(None)) == here, audience
        assert await who(world, token, linter) == there, audience
        assert (await who(world, token, lone) == ["user:alice"]) is (audience == "https://gw.acme.example")
