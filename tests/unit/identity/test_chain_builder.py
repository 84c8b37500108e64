"""Through whom does a call come? Every way to name a chain, honest and forged."""

from collections.abc import Callable
from typing import Any

import pytest

from sidecar.errors import Reason
from sidecar.identity import ApiKeys, Audience, KindRule
from sidecar.identity.api_keys import KeyRecord, digest_of
from sidecar.settings.identity import RolesFromSettings
from tests.tables import tables
from tests.unit.identity.world import GITHUB, IDP, ROUTE, World, a_world, acting, an_issuer, claims, minted, signing_key

TABLES = tables("identity/chain_builder")

PEPPER = b"0123456789abcdef0123456789abcdef"
PARTNER = "https://partner.example"
ALICE, PLANNER, OTHER = "user:alice", "nhi:planner", "nhi:other"
BAD, CONFLICT, UNKNOWN = Reason.BAD_CREDENTIAL, Reason.CREDENTIAL_CONFLICT, Reason.CLIENT_UNKNOWN


def api_key(name: str) -> str:
    return f"sck_{name.translate(str.maketrans('', '', ':-/'))[:32]}_{'a' * 43}"


def keys_of(*principals: str) -> ApiKeys:
    records = [KeyRecord(api_key(name).split("_")[1], name, digest_of(api_key(name), PEPPER)) for name in principals]
    return ApiKeys(records, PEPPER)


def roles_from(claim: str, namespace: str, only: tuple[str, ...] = (), required: bool = False) -> RolesFromSettings:
    return RolesFromSettings(claim=claim, namespace=namespace, only=only, required=required)


# The worlds: of the identity provider with typed names, and of others


def plain(**what: Any) -> World:
    return a_world(an_issuer(**what), keys=keys_of(PLANNER, OTHER, ALICE))


def of_users() -> World:
    return plain(kinds=("user",))


def of_workloads() -> World:
    return plain(kinds=("nhi",))


def by_claim() -> World:
    return plain(kind_rules=(KindRule("user", "kind", "user"), KindRule("nhi", "kind", "nhi")))


def two_issuers() -> World:
    world = a_world(an_issuer(), an_issuer(PARTNER, namespace="partner"))
    world.server.serve(PARTNER, signing_key("partner"))
    return world


def with_clients() -> World:
    return plain(actor_from="azp", clients={"vscode": "direct", "planner-app": PLANNER})


def from_partner(**changes: Any) -> str:
    return minted(signing_key("partner"), iss=PARTNER, **changes)


AUDIENCES = TABLES["audiences"]
JIRA = Audience("https://gw.acme.example/mcp/jira")


def listing_audiences() -> World:
    return plain(audiences=tuple(AUDIENCES))


FORGED_ACTS: dict[str, Any] = {**TABLES["forged_acts"], "nine actors": acting(*(f"nhi:a{n}" for n in range(9)))}
EIGHT = [f"nhi:a{n}" for n in range(8)]
NAMES = (ALICE, PLANNER, "user:a", "user:" + "a" * 256, "nhi:spiffe://td/ns/x")
NO_NAMES = ("alice", "role:admin", "anonymous", "User:alice", "group:x", ":alice", "user:", "user:" + "a" * 257)
BY_ACTOR, BY_FIRST = minted(act=acting(PLANNER)), minted(act=acting("nhi:first", PLANNER))
LENT, LENT_ON = minted(aud=PLANNER), minted(aud=PLANNER, act=acting("nhi:front"))
BOTH_WAYS = minted(aud=[GITHUB, PLANNER])
APP, VSCODE = minted(azp="planner-app"), minted(azp="vscode")

# which world, which token, and who it is or why not
Row = tuple[Callable[[], World], str, list[str] | Reason]
ALONE: dict[str, Row] = {
    **{f"a principal is a user or an NHI: {name}": (plain, minted(sub=name), [name]) for name in NAMES},
    **{f"anything else is 401: {name}": (plain, minted(sub=name), BAD) for name in NO_NAMES},
    **{f"no name has {sign!r}": (plain, minted(sub=f"user:a{sign}b"), BAD) for sign in " \t\n\"',|*\x7f\x00é"},
    "an issuer of users": (of_users, minted(sub="alice"), [ALICE]),
    "an issuer of workloads": (of_workloads, minted(sub="planner"), [PLANNER]),
    "an issuer of users names no actor": (of_users, minted(sub="alice", act=acting("planner")), BAD),
    **{f"where ids are bare: {name}": (of_users, minted(sub=name), BAD) for name in (ALICE, PLANNER, *NO_NAMES[1:3])},
    "a kind claim of users": (by_claim, minted(sub="alice", kind="user"), [ALICE]),
    "a kind claim of workloads": (by_claim, minted(sub="alice", kind="nhi"), ["nhi:alice"]),
    **{f"a kind {kind!r}": (by_claim, minted(sub="alice", kind=kind), BAD) for kind in (None, "role", "", 7, ["user"])},
    # Namespaces
    "into its namespace": (two_issuers, from_partner(sub=ALICE), ["user:partner/alice"]),
    "actors too": (two_issuers, from_partner(act=acting("bot")), ["user:partner/alice", "nhi:partner/bot"]),
    "without a namespace": (two_issuers, minted(sub=ALICE), [ALICE]),
    **{
        f"into another's namespace: {name}": (two_issuers, minted(sub=name), BAD)
        for name in ("user:partner/alice", "nhi:partner/bot", "user:partner/")
    },
    "an actor of another's namespace": (two_issuers, minted(act=acting("nhi:partner/bot")), BAD),
    "twice": (two_issuers, from_partner(sub="user:partner/alice"), ["user:partner/partner/alice"]),
    "out of its namespace": (two_issuers, from_partner(sub="user:../alice"), ["user:partner/../alice"]),
    "slashes of no namespace": (two_issuers, minted(sub="user:eng/alice"), ["user:eng/alice"]),
    "another issuer's key": (two_issuers, minted(signing_key("partner")), BAD),
    "another issuer's name": (two_issuers, minted(iss=PARTNER), BAD),
    # act
    "the outermost is the newest": (plain, BY_FIRST, [ALICE, "nhi:first", PLANNER]),
    "an actor bare: it can only be an NHI": (plain, minted(act=acting("planner")), [ALICE, PLANNER]),
    "a workload for a workload": (plain, minted(sub="nhi:a", act=acting("nhi:b")), ["nhi:a", "nhi:b"]),
    "eight actors": (plain, minted(act=acting(*EIGHT)), [ALICE, *EIGHT]),
    "for itself": (plain, minted(sub=PLANNER, act=acting(PLANNER)), BAD),
    **{
        f"an act that is no chain: {name}": (plain, signing_key().sign({**claims(), "act": act}), BAD)
        for name, act in FORGED_ACTS.items()
    },
    # The client table
    "a listed client is a link": (with_clients, APP, [ALICE, PLANNER]),
    "a direct client is none": (with_clients, VSCODE, [ALICE]),
    **{
        f"an unlisted client: {client!r}": (with_clients, minted(azp=client), UNKNOWN)
        for client in (None, "unlisted", "", PLANNER, 7, ["vscode"], "VSCODE")
    },
    "azp, where no client is asked for": (plain, minted(azp="planner-app", client_id="x"), [ALICE]),
    "actor and client": (with_clients, minted(azp="planner-app", act=acting(PLANNER)), [ALICE, PLANNER]),
    "actor and direct client": (with_clients, minted(azp="vscode", act=acting(PLANNER)), [ALICE, PLANNER]),
    "actor or client": (with_clients, minted(azp="planner-app", act=acting(OTHER)), CONFLICT),
    "a client that is the subject": (with_clients, minted(sub=PLANNER, azp="planner-app"), [PLANNER]),
    "a client of a workload": (with_clients, minted(sub=OTHER, azp="planner-app"), [OTHER, PLANNER]),
    # Audiences
    **{
        f"audience {name}": (listing_audiences, minted(aud=["elsewhere", name]), [ALICE] if opens else BAD)
        for name, opens in {**AUDIENCES, "unlisted": False}.items()
    },
    "lent, presented by itself": (plain, LENT, BAD),
    "for a route and lent": (plain, BOTH_WAYS, [ALICE]),
}
# the same, beside the planner's own credential
BESIDE_THE_PLANNERS: dict[str, Row] = {
    "a user": (plain, minted(), [ALICE, PLANNER]),
    "the newest actor": (plain, BY_FIRST, [ALICE, "nhi:first", PLANNER]),
    "another actor": (plain, minted(act=acting(OTHER)), CONFLICT),
    "an older actor": (plain, minted(act=acting(PLANNER, OTHER)), CONFLICT),
    "the client": (with_clients, APP, [ALICE, PLANNER]),
    "a direct client": (with_clients, VSCODE, [ALICE, PLANNER]),
    "its own token": (plain, minted(sub=PLANNER), CONFLICT),
    "another workload's token": (plain, minted(sub=OTHER), CONFLICT),
    "lent": (plain, LENT_ON, [ALICE, "nhi:front", PLANNER]),
    "lent by a workload": (plain, minted(sub="nhi:front", aud=PLANNER), ["nhi:front", PLANNER]),
    "a chain that passes it twice": (plain, minted(aud=PLANNER, act=acting(PLANNER, "nhi:front")), BAD),
    "for a route and lent": (plain, BOTH_WAYS, [ALICE, PLANNER]),
}
BESIDE_ANOTHERS: dict[str, Row] = {
    "the client": (with_clients, APP, CONFLICT),
    "lent": (plain, LENT, BAD),
    "for a route and lent": (plain, BOTH_WAYS, [ALICE, OTHER]),
}


@pytest.mark.parametrize("name", ALONE)
async def test_a_token_is_its_chain(name: str) -> None:
    make, token, expected = ALONE[name]
    await make().says(token, expected)


@pytest.mark.parametrize("how", [{"local": PLANNER}, {"key": api_key(PLANNER)}])
@pytest.mark.parametrize("name", BESIDE_THE_PLANNERS)
async def test_a_token_beside_a_workloads_credential_gives_user_then_workload(name: str, how: dict[str, str]) -> None:
    make, token, expected = BESIDE_THE_PLANNERS[name]
    await make().says(token, expected, **how)
    if name in BESIDE_ANOTHERS:
        make, token, expected = BESIDE_ANOTHERS[name]
        await make().says(token, expected, **{kind: text.replace("planner", "other") for kind, text in how.items()})


async def test_a_token_and_a_users_key_claim_one_place() -> None:
    for token in (minted(), minted(aud=ALICE)):
        await plain().says(token, CONFLICT, key=api_key(ALICE))


async def test_a_token_for_one_server_opens_it_and_no_other() -> None:
    world = plain(audiences=(GITHUB, JIRA.resource))
    token = minted()
    await world.says(token, [ALICE])
    await world.says(token, BAD, at=JIRA)
    await world.says(minted(aud=JIRA.resource), [ALICE], at=JIRA)


# Roles and scopes
GROUPS, PATH = roles_from("groups", "corp"), roles_from("realm_access.roles", "corp")
NAMED, SOME = roles_from("https://acme.example/groups", "corp"), roles_from("groups", "corp", only=("eng", "team-*"))
ROLES: list[tuple[RolesFromSettings, str, Any, set[str]]] = [
    (GROUPS, "groups", ["eng", "ops"], {"eng", "ops"}),
    (GROUPS, "groups", "eng", {"eng"}),
    (GROUPS, "groups", ["eng", "eng"], {"eng"}),
    (GROUPS, "groups", ["Domain Users", "a,b", "a|b", "*", "", "x" * 300, 7, None, "é", "ok"], {"ok"}),
    (GROUPS, "groups", ["/eng/payments"], {"/eng/payments"}),
    (GROUPS, "groups", ["role:admin"], {"role:admin"}),
    (GROUPS, "groups", [], set()),
    (GROUPS, "groups", None, set()),
    (GROUPS, "groups", {"eng": True}, set()),
    (GROUPS, "groups", 7, set()),
    (SOME, "groups", ["eng", "english", "team-a", "x-team-a", "admin"], {"eng", "team-a"}),
    (PATH, "realm_access", {"roles": ["a"]}, {"a"}),  # a claim is found by its name before it is a path
    (NAMED, "https://acme.example/groups", ["a"], {"a"}),
]


@pytest.mark.parametrize(("source", "claim", "value", "expected"), ROLES)
async def test_values_become_roles_of_the_namespace_and_of_the_sub_alone(
    source: RolesFromSettings, claim: str, value: Any, expected: set[str]
) -> None:
    token = minted(**{claim: value}, act=acting(PLANNER))
    caller = await plain(roles_from=source).ask(f"Bearer {token}")
    assert [principal.roles for principal in caller.chain] == [{f"role:corp/{name}" for name in expected}, set()]


async def test_a_required_claim_that_is_not_there_is_401() -> None:
    world = plain(roles_from=roles_from("groups", "corp", required=True))
    for value in (None, 7, {"x": 1}, True):
        await world.refused(minted(groups=value))
    await world.says(minted(groups=[]), [ALICE])


async def test_scopes_are_read_in_every_spelling_or_401() -> None:
    for bearing in ({"scope": "a b"}, {"scp": "a b"}, {"scp": ["a", "b"]}, {"scope": "a", "scp": ["b"]}):
        assert (await plain().ask(f"Bearer {minted(**bearing)}")).first.scopes == {"a", "b"}
    for bearing in ({"scope": 7}, {"scp": {"a": 1}}, {"scope": True}):
        await plain().refused(minted(**bearing))


# What a caller is, told to the rest


async def test_a_caller_ends_with_its_first_credential_to_end() -> None:
    caller = await plain().ask(f"Bearer {minted()}", local=PLANNER, at=ROUTE)
    assert caller.expires_at == claims()["exp"]
    assert [(c.kind, c.issuer) for c in caller.credentials] == [("jwt", IDP), ("local", "local")]


async def test_a_session_is_of_one_chain_of_one_issuer_whatever_its_token() -> None:
    world = plain()
    bindings = [
        (await world.ask(f"Bearer {minted()}")).binding,
        (await world.ask(key=api_key(ALICE))).binding,
        (await world.ask(f"Bearer {BY_ACTOR}")).binding,
        (await world.ask(f"Bearer {minted()}", local=PLANNER)).binding,
    ]
    assert len(set(bindings)) == 4
    assert (await world.ask(f"Bearer {minted(jti='another')}")).binding == bindings[0]
