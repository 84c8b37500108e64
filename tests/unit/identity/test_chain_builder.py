"""Through whom does a call come? Every sentence of CONTRACT 1.1, honest and forged."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.errors import Reason, SettingsError
from sidecar.identity import ApiKeys, Audience, KindRule, RoleClaim, TrustedIssuer
from sidecar.identity.api_keys import KeyRecord, digest_of
from tests.unit.identity.world import GITHUB, IDP, ROUTE, World, a_world, acting, an_issuer, claims, minted, signing_key

PEPPER = b"0123456789abcdef0123456789abcdef"
PARTNER = "https://partner.example"


def api_key(name: str) -> str:
    return f"sck_{name.translate(str.maketrans('', '', ':-/'))[:32]}_{'a' * 43}"


def keys_of(*principals: str) -> ApiKeys:
    records = [KeyRecord(api_key(name).split("_")[1], name, digest_of(api_key(name), PEPPER)) for name in principals]
    return ApiKeys(records, PEPPER)


@pytest.fixture
def world() -> World:
    return a_world(keys=keys_of("nhi:planner", "nhi:other", "user:alice"))


# Principals and their names


@pytest.mark.parametrize(
    "subject", ["user:alice", "nhi:planner", "user:a", "user:" + "a" * 256, "nhi:spiffe://td/ns/x"]
)
async def test_a_principal_is_a_user_or_an_nhi(world: World, subject: str) -> None:
    assert await world.chain(minted(sub=subject)) == [subject]


@pytest.mark.parametrize(
    "subject",
    [
        "alice",
        "role:admin",
        "anonymous",
        "User:alice",
        "group:x",
        ":alice",
        "user:",
        "user:" + "a" * 257,
        *(f"user:a{sign}b" for sign in " \t\n\"',|*\x7f\x00é"),
    ],
)
async def test_anything_else_is_401(world: World, subject: str) -> None:
    await world.refused(minted(sub=subject))


async def test_an_issuer_names_the_kinds_it_lists() -> None:
    users = a_world(an_issuer(kinds=("user",)))
    assert await users.chain(minted(sub="alice")) == ["user:alice"]
    workloads = a_world(an_issuer(kinds=("nhi",)))
    assert await workloads.chain(minted(sub="planner")) == ["nhi:planner"]


@pytest.mark.parametrize("subject", ["user:alice", "nhi:planner", "role:admin", "anonymous"])
async def test_where_ids_are_bare_a_typed_sub_is_refused_since_two_accounts_would_be_one(subject: str) -> None:
    await a_world(an_issuer(kinds=("user",))).refused(minted(sub=subject))


async def test_an_issuer_of_users_names_no_actor() -> None:
    await a_world(an_issuer(kinds=("user",))).refused(minted(sub="alice", act=acting("planner")))


async def test_a_kind_claim_gives_the_kind_and_nothing_else_does() -> None:
    rules = (KindRule("user", "kind", "user"), KindRule("nhi", "kind", "nhi"))
    world = a_world(an_issuer(kind_rules=rules))
    assert await world.chain(minted(sub="alice", kind="user")) == ["user:alice"]
    assert await world.chain(minted(sub="alice", kind="nhi")) == ["nhi:alice"]
    for kind in (None, "role", "", 7, ["user"]):
        await world.refused(minted(sub="alice", kind=kind))


# Namespaces


def two_issuers() -> World:
    world = a_world(an_issuer(), an_issuer(PARTNER, namespace="partner"))
    world.server.serve(PARTNER, signing_key("partner"))
    return world


def from_partner(**changes: Any) -> str:
    return minted(signing_key("partner"), iss=PARTNER, **changes)


async def test_a_namespaced_issuer_names_into_its_namespace() -> None:
    world = two_issuers()
    assert await world.chain(from_partner(sub="user:alice")) == ["user:partner/alice"]
    assert await world.chain(from_partner(sub="user:alice", act=acting("bot"))) == [
        "user:partner/alice",
        "nhi:partner/bot",
    ]
    assert await world.chain(minted(sub="user:alice")) == ["user:alice"]


@pytest.mark.parametrize("subject", ["user:partner/alice", "nhi:partner/bot", "user:partner/"])
async def test_no_issuer_mints_into_anothers_namespace(subject: str) -> None:
    await two_issuers().refused(minted(sub=subject))


async def test_an_actor_is_not_minted_into_anothers_namespace_either() -> None:
    await two_issuers().refused(minted(act=acting("nhi:partner/bot")))


async def test_a_namespaced_issuer_cannot_leave_its_namespace() -> None:
    world = two_issuers()
    assert await world.chain(from_partner(sub="user:partner/alice")) == ["user:partner/partner/alice"]
    assert await world.chain(from_partner(sub="user:../alice")) == ["user:partner/../alice"]


async def test_slashes_that_are_nobodys_namespace_are_part_of_an_id() -> None:
    assert await two_issuers().chain(minted(sub="user:eng/alice")) == ["user:eng/alice"]


async def test_one_issuers_key_proves_nothing_for_another() -> None:
    world = two_issuers()
    await world.refused(minted(signing_key("partner")))
    await world.refused(minted(iss=PARTNER))


BAD_ISSUERS: dict[str, tuple[TrustedIssuer, ...]] = {
    "two without a namespace": (an_issuer(), an_issuer(PARTNER)),
    "a namespace twice": (an_issuer(namespace="x"), an_issuer(PARTNER, namespace="x")),
    "an issuer twice": (an_issuer(), an_issuer(namespace="x")),
    "a client in another's namespace": (
        an_issuer(actor_from="azp", clients={"app": "nhi:x/bot"}),
        an_issuer(PARTNER, namespace="x"),
    ),
    "a client that is a user": (an_issuer(actor_from="azp", clients={"app": "user:x"}),),
    "a workload from an issuer of users": (an_issuer(kinds=("user",), actor_from="azp", clients={"app": "nhi:x"}),),
    "actor_from without clients": (an_issuer(actor_from="azp"),),
    "clients without actor_from": (an_issuer(clients={"app": "direct"}),),
    "a shared secret": (an_issuer(algorithms=("ES256", "HS256")),),
    "no algorithm": (an_issuer(algorithms=()),),
    "alg none": (an_issuer(algorithms=("none",)),),
    "no kinds": (an_issuer(kinds=()),),
    "a role as a kind": (an_issuer(kinds=("role",)),),
    "a bad namespace": (an_issuer(namespace="a/b"),),
    "roles of no namespace": (an_issuer(roles_from=RoleClaim("groups", "")),),
    "no keys": (an_issuer(jwks_url=""),),
}


@pytest.mark.parametrize("name", BAD_ISSUERS)
def test_issuers_that_could_forge_one_another_are_not_used(name: str) -> None:
    with pytest.raises(SettingsError):
        a_world(*BAD_ISSUERS[name])


# act


async def test_the_outermost_act_is_the_newest_actor(world: World) -> None:
    token = minted(act={"sub": "nhi:researcher", "act": {"sub": "nhi:planner"}})
    assert await world.chain(token) == ["user:alice", "nhi:planner", "nhi:researcher"]


async def test_an_actor_may_be_named_bare_since_it_can_only_be_an_nhi(world: World) -> None:
    assert await world.chain(minted(act=acting("planner"))) == ["user:alice", "nhi:planner"]


async def test_a_workload_acts_for_a_workload(world: World) -> None:
    assert await world.chain(minted(sub="nhi:a", act=acting("nhi:b"))) == ["nhi:a", "nhi:b"]


async def test_eight_actors_are_taken_and_nine_are_not(world: World) -> None:
    assert len(await world.chain(minted(act=acting(*(f"nhi:a{n}" for n in range(8)))))) == 9
    await world.refused(minted(act=acting(*(f"nhi:a{n}" for n in range(9)))))


FORGED_ACTS: dict[str, Any] = {
    "a user": acting("user:bob"),
    "a role": acting("role:admin"),
    "anonymous": acting("anonymous"),
    "no sub": {"client_id": "planner"},
    "a number": {"sub": 7},
    "empty": {"sub": ""},
    "a string": "nhi:planner",
    "a list": [{"sub": "nhi:planner"}],
    "false": False,
    "an actor with blanks": acting("nhi:a b"),
    "an actor twice": acting("nhi:a", "nhi:b", "nhi:a"),
    "an actor of another issuer": {"sub": "nhi:planner", "iss": "https://other.example"},
    "an actor bound to a key": {"sub": "nhi:planner", "cnf": {"jkt": "x"}},
    "an older actor misshapen": {"sub": "nhi:planner", "act": "nhi:x"},
    "an older actor null": {"sub": "nhi:planner", "act": None},
}


@pytest.mark.parametrize("name", FORGED_ACTS)
async def test_an_act_that_is_not_a_chain_of_workloads_is_refused(world: World, name: str) -> None:
    await world.refused(signing_key().sign({**claims(), "act": FORGED_ACTS[name]}))


async def test_a_subject_does_not_act_for_itself(world: World) -> None:
    await world.refused(minted(sub="nhi:planner", act=acting("nhi:planner")))


# The client table


def with_clients(**what: Any) -> World:
    clients = {"vscode": "direct", "planner-app": "nhi:planner"}
    issuer = an_issuer(actor_from="azp", clients=clients, **what)
    return a_world(issuer, keys=keys_of("nhi:planner", "nhi:other"))


async def test_a_listed_client_is_a_link() -> None:
    assert await with_clients().chain(minted(azp="planner-app")) == ["user:alice", "nhi:planner"]


async def test_a_direct_client_is_no_link() -> None:
    assert await with_clients().chain(minted(azp="vscode")) == ["user:alice"]


@pytest.mark.parametrize("client", [None, "unlisted", "", "nhi:planner", 7, ["vscode"], "VSCODE"])
async def test_an_unlisted_client_is_refused(client: Any) -> None:
    await with_clients().refused(minted(azp=client), Reason.CLIENT_UNKNOWN)


async def test_where_no_client_is_asked_for_azp_says_nothing(world: World) -> None:
    assert await world.chain(minted(azp="planner-app", client_id="x")) == ["user:alice"]


async def test_actor_and_client_must_be_the_same_workload() -> None:
    world = with_clients()
    assert await world.chain(minted(azp="planner-app", act=acting("nhi:planner"))) == ["user:alice", "nhi:planner"]
    assert await world.chain(minted(azp="vscode", act=acting("nhi:planner"))) == ["user:alice", "nhi:planner"]
    await world.refused(minted(azp="planner-app", act=acting("nhi:other")), Reason.CREDENTIAL_CONFLICT)


async def test_a_client_that_is_the_subject_is_one_link() -> None:
    assert await with_clients().chain(minted(sub="nhi:planner", azp="planner-app")) == ["nhi:planner"]
    assert await with_clients().chain(minted(sub="nhi:other", azp="planner-app")) == ["nhi:other", "nhi:planner"]


# A user's token together with a workload's credential


WORKLOADS = {"local listener": {"local": "nhi:planner"}, "API key": {"key": api_key("nhi:planner")}}


@pytest.mark.parametrize("how", WORKLOADS)
async def test_a_users_token_and_a_workload_give_user_then_workload(world: World, how: str) -> None:
    assert await world.chain(minted(), **WORKLOADS[how]) == ["user:alice", "nhi:planner"]


@pytest.mark.parametrize("how", WORKLOADS)
async def test_the_newest_actor_must_be_that_workload(world: World, how: str) -> None:
    good = minted(act=acting("nhi:first", "nhi:planner"))
    assert await world.chain(good, **WORKLOADS[how]) == ["user:alice", "nhi:first", "nhi:planner"]
    for actors in (("nhi:other",), ("nhi:planner", "nhi:other")):
        await world.refused(minted(act=acting(*actors)), Reason.CREDENTIAL_CONFLICT, **WORKLOADS[how])


@pytest.mark.parametrize("how", WORKLOADS)
async def test_the_client_of_the_table_must_be_that_workload_too(how: str) -> None:
    world = with_clients()
    assert await world.chain(minted(azp="planner-app"), **WORKLOADS[how]) == ["user:alice", "nhi:planner"]
    assert await world.chain(minted(azp="vscode"), **WORKLOADS[how]) == ["user:alice", "nhi:planner"]
    await world.refused(minted(azp="planner-app"), Reason.CREDENTIAL_CONFLICT, local="nhi:other")


@pytest.mark.parametrize("how", WORKLOADS)
@pytest.mark.parametrize("subject", ["nhi:planner", "nhi:other"])
async def test_a_workloads_token_and_a_workload_claim_one_place(world: World, how: str, subject: str) -> None:
    await world.refused(minted(sub=subject), Reason.CREDENTIAL_CONFLICT, **WORKLOADS[how])


async def test_a_token_and_a_users_key_claim_one_place(world: World) -> None:
    await world.refused(minted(), Reason.CREDENTIAL_CONFLICT, key=api_key("user:alice"))


# A token lent to a workload


@pytest.mark.parametrize("how", WORKLOADS)
async def test_a_token_for_a_workload_presented_by_it_is_delegation(world: World, how: str) -> None:
    lent = minted(aud="nhi:planner", act=acting("nhi:front"))
    assert await world.chain(lent, **WORKLOADS[how]) == ["user:alice", "nhi:front", "nhi:planner"]
    assert await world.chain(minted(sub="nhi:front", aud="nhi:planner"), **WORKLOADS[how]) == [
        "nhi:front",
        "nhi:planner",
    ]


@pytest.mark.parametrize("how", [{}, {"local": "nhi:other"}, {"key": api_key("nhi:other")}])
async def test_a_token_lent_to_one_workload_is_worth_nothing_to_another(world: World, how: dict[str, str]) -> None:
    await world.refused(minted(aud="nhi:planner"), **how)


async def test_a_users_key_is_not_the_workload_that_a_token_was_lent_to(world: World) -> None:
    await world.refused(minted(aud="user:alice"), Reason.CREDENTIAL_CONFLICT, key=api_key("user:alice"))


async def test_a_chain_does_not_pass_one_workload_twice(world: World) -> None:
    lent = minted(aud="nhi:planner", act=acting("nhi:planner", "nhi:front"))
    await world.refused(lent, local="nhi:planner")


async def test_a_token_for_the_route_and_for_a_workload_serves_both_ways(world: World) -> None:
    both = minted(aud=[GITHUB, "nhi:planner"])
    assert await world.chain(both) == ["user:alice"]
    assert await world.chain(both, local="nhi:planner") == ["user:alice", "nhi:planner"]
    assert await world.chain(both, local="nhi:other") == ["user:alice", "nhi:other"]


# Audiences


AUDIENCES = [
    ("https://gw.acme.example", True),
    ("acme-gateway", True),
    (GITHUB, True),
    ("https://gw.acme.example/mcp/jira", False),
    ("https://GW.acme.example/mcp/jira", False),
    ("https://gw.acme.example/mcp", False),
    ("https://gw.acme.example/agents/x", False),
    ("https://gw.acme.example/a2a/tasks", False),
    ("https://gw.acme.example:443/agents/x", False),
    ("https://gw.acme.example//mcp/jira", False),
    ("https://gw.acme.example/prefix/mcp/jira", False),
    ("https://gw.acme.example/mcp/github/", False),
    ("https://other.example/mcp/jira", True),
    ("unlisted", False),
]


@pytest.mark.parametrize(("audience", "accepted"), AUDIENCES)
async def test_a_configured_audience_opens_a_route_unless_it_is_another_route(audience: str, accepted: bool) -> None:
    listed = tuple(name for name, _ in AUDIENCES if name != "unlisted")
    world = a_world(an_issuer(audiences=listed))
    if accepted:
        assert await world.chain(minted(aud=["elsewhere", audience])) == ["user:alice"]
    else:
        await world.refused(minted(aud=["elsewhere", audience]))


async def test_a_token_for_one_server_opens_it_and_no_other() -> None:
    jira = Audience("https://gw.acme.example/mcp/jira")
    world = a_world(an_issuer(audiences=(GITHUB, jira.resource)))
    token = minted()
    assert await world.chain(token) == ["user:alice"]
    await world.refused(token, at=jira)
    assert await world.chain(minted(aud=jira.resource), at=jira) == ["user:alice"]


# Roles and scopes


GROUPS = RoleClaim("groups", "corp")


async def roles(issuer: TrustedIssuer, **changes: Any) -> list[set[str]]:
    caller = await a_world(issuer).ask(f"Bearer {minted(**changes)}")
    return [set(principal.roles) for principal in caller.chain]


async def test_roles_go_to_the_sub_and_to_nobody_else_in_the_chain() -> None:
    given = await roles(an_issuer(roles_from=GROUPS), groups=["eng", "ops"], act=acting("nhi:planner"))
    assert given == [{"role:corp/eng", "role:corp/ops"}, set()]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("eng", {"role:corp/eng"}),
        (["eng", "eng"], {"role:corp/eng"}),
        (["Domain Users", "a,b", "a|b", "*", "", "x" * 300, 7, None, "é", "ok"], {"role:corp/ok"}),
        (["/eng/payments"], {"role:corp//eng/payments"}),
        (["role:admin"], {"role:corp/role:admin"}),
        ([], set()),
        (None, set()),
        ({"eng": True}, set()),
        (7, set()),
    ],
)
async def test_values_become_roles_of_the_namespace_or_nothing(value: Any, expected: set[str]) -> None:
    assert await roles(an_issuer(roles_from=GROUPS), groups=value) == [expected]


async def test_only_listed_values_become_roles() -> None:
    source = RoleClaim("groups", "corp", only=("eng", "team-*"))
    assert await roles(an_issuer(roles_from=source), groups=["eng", "english", "team-a", "x-team-a", "admin"]) == [
        {"role:corp/eng", "role:corp/team-a"}
    ]


async def test_a_claim_is_found_by_its_name_before_it_is_a_path() -> None:
    path = RoleClaim("realm_access.roles", "corp")
    assert await roles(an_issuer(roles_from=path), realm_access={"roles": ["a"]}) == [{"role:corp/a"}]
    named = RoleClaim("https://acme.example/groups", "corp")
    assert await roles(an_issuer(roles_from=named), **{"https://acme.example/groups": ["a"]}) == [{"role:corp/a"}]


@pytest.mark.parametrize("value", [None, 7, {"x": 1}, True])
async def test_a_required_claim_that_is_not_there_is_401(value: Any) -> None:
    world = a_world(an_issuer(roles_from=RoleClaim("groups", "corp", required=True)))
    await world.refused(minted(groups=value))
    assert await world.chain(minted(groups=[])) == ["user:alice"]


@pytest.mark.parametrize(
    "bearing", [{"scope": "a b"}, {"scp": "a b"}, {"scp": ["a", "b"]}, {"scope": "a", "scp": ["b"]}]
)
async def test_scopes_are_read_in_every_spelling(world: World, bearing: dict[str, Any]) -> None:
    caller = await world.ask(f"Bearer {minted(**bearing)}")
    assert caller.first.scopes == {"a", "b"}


@pytest.mark.parametrize("bearing", [{"scope": 7}, {"scp": {"a": 1}}, {"scope": True}])
async def test_scopes_that_cannot_be_read_are_401(world: World, bearing: dict[str, Any]) -> None:
    await world.refused(minted(**bearing))


# What a caller is, told to the rest


async def test_a_caller_ends_with_its_first_credential_to_end(world: World) -> None:
    caller = await world.ask(f"Bearer {minted()}", local="nhi:planner", at=ROUTE)
    assert caller.expires_at == claims()["exp"]
    assert [(c.kind, c.issuer) for c in caller.credentials] == [("jwt", IDP), ("local", "local")]


async def test_a_refreshed_token_belongs_to_the_same_session(world: World) -> None:
    first = await world.ask(f"Bearer {minted()}")
    second = await world.ask(f"Bearer {minted(jti='another')}")
    assert first.binding == second.binding


async def test_a_namesake_and_another_chain_belong_to_other_sessions(world: World) -> None:
    callers = [
        await world.ask(f"Bearer {minted()}"),
        await world.ask(key=api_key("user:alice")),
        await world.ask(f"Bearer {minted(act=acting('nhi:planner'))}"),
        await world.ask(f"Bearer {minted()}", local="nhi:planner"),
    ]
    assert len({caller.binding for caller in callers}) == 4
