"""What does another sidecar's word count for? Its tokens, as `SignedSource` really makes them, honest and widened."""

from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from sidecar.errors import SettingsError
from sidecar.identity import ApiKeys, TrustedIssuer
from sidecar.upstreams.credentials.signed_tokens import SignedSource, TokenSigner
from sidecar.vocabulary import Caller, Credential, Principal
from tests.tables import tables
from tests.unit.identity.test_chain_builder import api_key, keys_of, roles_from
from tests.unit.identity.test_from_settings import issuer_of
from tests.unit.identity.world import GITHUB, IDP, NOW, World, a_world, acting, an_issuer, claims, minted, signing_key

FIRST, SECOND = "https://first.acme.example", "https://second.acme.example"


def a_peer(name: str, *actors: str, **what: Any) -> TrustedIssuer:
    return an_issuer(name, typ=("JWT",), actors=frozenset(actors), **what)


@dataclass
class Peer:
    """The sidecar at `name`: what it shows to those behind it, about who called it."""

    name: str
    numbers: Any = field(default_factory=count)

    async def word(self, *names: str, to: str = GITHUB, roles: tuple[str, ...] = (), ends: float | None = None) -> str:
        first, *others = names
        chain = (Principal(first, IDP, frozenset(roles)), *(Principal(name, IDP) for name in others))
        signer, told = TokenSigner(self.name, signing_key(self.name)), {"clock": lambda: NOW}
        told["new_id"] = lambda: f"id-{next(self.numbers)}"
        source = SignedSource(signer, to, 60.0, True, self.name, **told)
        _, line = await source.header(Caller(chain, (Credential("jwt", IDP),), ends), 5.0)
        return line.removeprefix("Bearer ")


def world_of(*issuers: TrustedIssuer, keys: ApiKeys | None = None) -> World:
    """A sidecar that knows the identity provider and these peers, who sign with keys of their own."""
    world = a_world(an_issuer(), *issuers, keys=keys or keys_of("nhi:planner", "nhi:researcher", "nhi:writer"))
    for issuer in issuers:
        world.server.serve(issuer.issuer, signing_key(issuer.issuer))
    return world


def forged(**changes: Any) -> str:
    """What the first peer would sign if it lied."""
    lie = {"sub": "user:alice", "act": acting("nhi:planner"), **changes}
    return signing_key(FIRST).sign({**claims(iss=FIRST), **lie}, "JWT")


@pytest.fixture
def world() -> World:
    return world_of(a_peer(FIRST, "nhi:planner"))


async def test_the_sidecar_beside_an_agent_speaks_for_it(world: World) -> None:
    for names in (["user:alice", "nhi:planner"], ["nhi:planner"], ["user:a/b", "nhi:front", "nhi:planner"]):
        assert await world.chain(await Peer(FIRST).word(*names)) == names


@pytest.mark.parametrize("names", [["user:alice"], ["nhi:writer"], ["nhi:planner", "nhi:writer"]])
async def test_and_for_nobody_else(world: World, names: list[str]) -> None:
    await world.refused(await Peer(FIRST).word(*names))
    await world.refused(await Peer(FIRST).word(*names, to="nhi:researcher"), key=api_key("nhi:researcher"))


async def test_an_agent_shows_what_its_sidecar_lent_to_it(world: World) -> None:
    """The sidecar before the planner says who called; the planner says that it is the planner."""
    word = await Peer(FIRST).word("user:alice", to="nhi:planner")
    assert await world.chain(word, key=api_key("nhi:planner")) == ["user:alice", "nhi:planner"]
    await world.refused(word)
    await world.refused(word, key=api_key("nhi:writer"))


async def test_a_word_for_an_agent_and_for_a_route_serves_the_agent_at_that_route(world: World) -> None:
    word = signing_key(FIRST).sign(claims(iss=FIRST, aud=[GITHUB, "nhi:planner"]), "JWT")
    await world.refused(word)
    assert await world.chain(word, key=api_key("nhi:planner")) == ["user:alice", "nhi:planner"]
    await world.refused(word, key=api_key("nhi:writer"))


async def test_a_chain_of_three_sidecars_keeps_every_link_kind_and_role() -> None:
    """alice calls the planner, it calls the researcher, it calls a tool; each has a sidecar in front."""
    corp = roles_from("groups", "corp")
    first = a_world(an_issuer(roles_from=corp))
    alice = await first.ask(f"Bearer {minted(groups=['eng'])}")
    assert alice.first.roles == {"role:corp/eng"}
    told = roles_from("roles", "corp")
    second = world_of(a_peer(FIRST, "nhi:planner", roles_from=told))
    word = await Peer(FIRST).word("user:alice", to="nhi:planner", roles=tuple(alice.first.roles))
    planner = await second.ask(f"Bearer {word}", key=api_key("nhi:planner"))
    third = world_of(a_peer(SECOND, "nhi:researcher", roles_from=told))
    names = [principal.name for principal in planner.chain]
    word = await Peer(SECOND).word(*names, to="nhi:researcher", roles=tuple(planner.first.roles))
    researcher = await third.ask(f"Bearer {word}", key=api_key("nhi:researcher"))
    assert [principal.name for principal in researcher.chain] == ["user:alice", "nhi:planner", "nhi:researcher"]
    assert [principal.roles for principal in researcher.chain] == [{"role:corp/eng"}, set(), set()]


async def test_the_word_for_one_agent_is_worth_nothing_at_another(world: World) -> None:
    word = await Peer(FIRST).word("user:alice", "nhi:planner", to="nhi:researcher")
    assert await world.chain(word, key=api_key("nhi:researcher")) == ["user:alice", "nhi:planner", "nhi:researcher"]
    for how in ({}, {"key": api_key("nhi:writer")}, {"key": api_key("nhi:planner")}):
        await world.refused(word, **how)


async def test_a_chain_has_an_end_and_does_not_come_back_to_where_it_was(world: World) -> None:
    names = ["user:alice", *(f"nhi:a{number}" for number in range(7)), "nhi:planner"]
    assert await world.chain(await Peer(FIRST).word(*names)) == names
    await world.refused(await Peer(FIRST).word("user:alice", "nhi:b", *names[1:]))
    word = await Peer(FIRST).word("user:alice", "nhi:researcher", "nhi:planner", to="nhi:researcher")
    await world.refused(word, key=api_key("nhi:researcher"))
    word = await Peer(FIRST).word("user:alice", "nhi:planner", ends=NOW + 20)
    assert (await world.ask(f"Bearer {word}")).expires_at == NOW + 20
    await world.refused(await Peer(FIRST).word("user:alice"), key=api_key("nhi:planner"))


@pytest.mark.parametrize("subject", ["alice", "anonymous", "role:admin", FIRST, "", "user:"])
async def test_a_peer_calls_everybody_by_kind_and_name(world: World, subject: str) -> None:
    await world.refused(forged(sub=subject))


# Namespaces and roles


CORP = "https://corp.example"


def with_corp(**what: Any) -> World:
    return world_of(a_peer(FIRST, "nhi:planner", **what), an_issuer(CORP, namespace="corp"))


async def test_a_name_of_another_issuers_namespace_is_passed_on_only_where_the_operator_says_so() -> None:
    corps = forged(sub="user:corp/alice")
    assert await with_corp(relays=frozenset({"corp"})).chain(corps) == ["user:corp/alice", "nhi:planner"]
    await with_corp().refused(corps)
    assert await with_corp().chain(forged()) == ["user:alice", "nhi:planner"]


async def test_a_peer_of_another_house_has_all_its_names_in_its_namespace() -> None:
    world = world_of(a_peer(FIRST, "nhi:partner/planner", namespace="partner"))
    assert await world.chain(forged()) == ["user:partner/alice", "nhi:partner/planner"]
    await world_of(a_peer(FIRST, "nhi:planner", namespace="partner")).refused(forged())


async def test_only_roles_that_are_taken_from_a_peer_come_with_its_word() -> None:
    given = ["role:corp/eng", "role:corp/ops", "role:other/eng", "eng", "corp/eng", "role:corp/", "role:corpx/eng", 7]
    world = world_of(a_peer(FIRST, "nhi:planner", roles_from=roles_from("roles", "corp", ("eng",))))
    assert (await world.ask(f"Bearer {forged(roles=given)}")).first.roles == {"role:corp/eng"}
    assert (await world_of(a_peer(FIRST, "nhi:planner")).ask(f"Bearer {forged(roles=given)}")).first.roles == set()


# sidecar.yaml


def test_a_peer_is_its_address_and_its_actors(tmp_path: Path) -> None:
    text = f"issuer: '{FIRST}', preset: sidecar, actors: ['nhi:planner'], roles_from: {{namespace: corp}}"
    (peer,) = issuer_of(tmp_path, text).identity.issuers
    assert (peer.jwks_url, peer.roles_from.claim) == (f"{FIRST}/.well-known/jwks.json", "roles")
    assert (peer.kinds, peer.algorithms) == (("user", "nhi"), ("ES256",))


def test_a_peer_needs_no_namespace_beside_an_issuer_without_one(tmp_path: Path) -> None:
    keys = "jwks_path: k, kinds: [user, nhi]"
    peers = [f"issuer: '{name}', preset: sidecar, actors: ['nhi:planner']" for name in (FIRST, SECOND)]
    assert len(issuer_of(tmp_path, *peers, f"issuer: a, {keys}").identity.issuers) == 3
    with pytest.raises(SettingsError) as caught:
        issuer_of(tmp_path, *peers, f"issuer: a, {keys}", f"issuer: b, {keys}")
    assert [fault.code for fault in caught.value.faults] == ["S111"]


@pytest.mark.parametrize(("what", "code"), tables("identity/peers")["faults"])
def test_a_peer_that_could_say_more_is_a_fault(tmp_path: Path, what: str, code: str) -> None:
    with pytest.raises(SettingsError) as caught:
        issuer_of(tmp_path, f"issuer: '{FIRST}', {what}")
    assert code in {fault.code for fault in caught.value.faults}, caught.value.faults
    assert all(fault.line == 4 and fault.hint for fault in caught.value.faults)


async def test_who_was_believed_once_is_asked_about_as_their_issuer_is_trusted_now() -> None:
    """What was let in before a reload narrowed what its issuer may say: open streams, and tasks that go on."""
    narrowed: list[tuple[TrustedIssuer, str, dict[str, Any], list[TrustedIssuer], list[TrustedIssuer]]] = [
        (
            a_peer(FIRST, "nhi:planner", relays=frozenset({"apps"})),
            await Peer(FIRST).word("user:apps/zoe", "nhi:planner"),
            {},
            [a_peer(FIRST, "nhi:planner", "nhi:writer", relays=frozenset({"apps"}), audiences=("x",))],
            [
                a_peer(FIRST, "nhi:writer", relays=frozenset({"apps"})),
                a_peer(FIRST, "nhi:planner"),
                a_peer(FIRST, "nhi:planner", relays=frozenset({"apps"}), kinds=("nhi",)),
                a_peer(SECOND, "nhi:planner", relays=frozenset({"apps"})),
            ],
        ),
        (
            a_peer(FIRST, "nhi:researcher"),
            await Peer(FIRST).word("user:alice", "nhi:planner", to="nhi:researcher"),
            {"key": api_key("nhi:researcher")},
            [a_peer(FIRST, "nhi:researcher", "nhi:x"), a_peer(FIRST, "nhi:planner")],
            [a_peer(FIRST, "nhi:x")],
        ),
    ]
    for before, token, beside, alike, narrower in narrowed:
        apps = an_issuer("https://apps.acme.example", namespace="apps")
        caller = await world_of(before, apps).ask(f"Bearer {token}", **beside)
        for issuer in alike:
            assert world_of(issuer, apps).identity.vouches_for(caller), issuer
        for issuer in narrower:
            assert not world_of(issuer, apps).identity.vouches_for(caller), issuer


async def test_a_client_that_is_taken_out_of_the_table_has_lost_what_it_had() -> None:
    clients = {"one": "nhi:apps/planner", "two": "direct"}
    before = an_issuer(IDP, namespace="apps", actor_from="azp", clients=clients)
    for client, after, stands in (
        ("one", clients, True),
        ("one", {"one": "nhi:apps/planner"}, True),
        ("one", {"two": "direct"}, False),
        ("one", {**clients, "one": "nhi:apps/writer"}, False),
        ("two", {"one": "nhi:apps/planner"}, False),
        ("two", clients, True),
    ):
        caller = await a_world(before).ask(f"Bearer {minted(azp=client)}")
        changed = a_world(an_issuer(IDP, namespace="apps", actor_from="azp", clients=after))
        assert changed.identity.vouches_for(caller) is stands, (client, after)
    assert not a_world(an_issuer(IDP, namespace="other")).identity.vouches_for(caller)
