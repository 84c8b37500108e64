"""Does each place in a chain take one credential, and is a bad one never nobody?"""

from typing import Any

import pytest

from sidecar.errors import Reason, Refusal
from sidecar.identity import Audience, Presented
from sidecar.vocabulary import Credential
from tests.tables import tables
from tests.unit.identity.test_chain_builder import api_key, keys_of
from tests.unit.identity.world import GITHUB, World, a_world, minted

OPEN = Audience(GITHUB, anonymous=True)
LINES = {
    "user token": f"Bearer {minted()}",
    "workload token": f"Bearer {minted(sub='nhi:planner')}",
    "user key": f"Bearer {api_key('user:alice')}",
    "workload key": f"Bearer {api_key('nhi:planner')}",
}


@pytest.fixture
def world() -> World:
    return a_world(keys=keys_of("nhi:planner", "nhi:other", "user:alice"))


# Authorization × X-API-Key × local listener: who it is, or why not.


@pytest.mark.parametrize(("line", "key", "local", "expected"), tables("identity/credentials")["matrix"])
async def test_credentials_together(world: World, line: str, key: str, local: str, expected: Any) -> None:
    how = {"key": api_key(key) if key else "", "local": local}
    lines = (LINES[line],) if line else ()
    if isinstance(expected, str):
        assert (await world.refusal(*lines, **how)).reason == expected
    else:
        assert [principal.name for principal in (await world.ask(*lines, **how)).chain] == expected


@pytest.mark.parametrize("local", ["", "nhi:planner"])
async def test_a_token_goes_on_with_its_caller_only_where_the_route_needs_it(world: World, local: str) -> None:
    token = LINES["user token"]
    needs_it = Audience(GITHUB, keeps_token=True)
    for at, kept in ((OPEN, ""), (needs_it, token.removeprefix("Bearer ")), (OPEN, "")):  # and is not remembered
        caller = await world.ask(token, local=local, at=at)
        assert caller.token == kept
        assert token.rpartition(".")[2] not in repr(caller)
    assert (await world.ask(LINES["workload key"], at=needs_it)).token == ""  # a key is no token


BAD_LINES = {
    **tables("identity/credentials")["bad_lines"], "no scheme": minted(), "DPoP": f"DPoP {minted()}",
    "two in one line": f"Bearer {minted()}, Bearer {minted()}", "a tab for a blank": f"Bearer\t{minted()}",
    "a parameter": f"Bearer token={minted()}", "quoted": f'Bearer "{minted()}"', "cut": f"Bearer {minted()[:-3]}",
    "a lone surrogate": "Bearer a.b.\udc80", "huge": "Bearer " + "a" * 40_000,
    "a key of no known id": f"Bearer sck_nobody1_{'a' * 43}",
    "a key with another secret": f"Bearer {api_key('nhi:planner')[:-1]}b",
    "a key cut": f"Bearer {api_key('nhi:planner')[:-1]}",
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_LINES)
async def test_a_bad_credential_is_never_anonymous_nor_made_good_by_another(world: World, name: str) -> None:
    for how in ({}, {"at": OPEN}, {"local": "nhi:planner"}):
        assert (await world.refusal(BAD_LINES[name], **how)).reason is Reason.BAD_CREDENTIAL


PLANNERS = api_key("nhi:planner")
BAD_KEYS = [("",), (" ",), ("x",), (PLANNERS + " ",), (f"Bearer {PLANNERS}",), (minted(),), (PLANNERS, PLANNERS)]


@pytest.mark.parametrize("keys", BAD_KEYS)
async def test_a_bad_api_key_or_one_that_is_there_twice_is_never_anonymous(world: World, keys: tuple[str, ...]) -> None:
    with pytest.raises(Refusal, match="bad-credential"):
        await world.identity.identify(Presented(api_key=keys), OPEN)


@pytest.mark.parametrize("name", LINES)
async def test_a_header_that_is_there_twice_is_refused_even_if_it_says_the_same(world: World, name: str) -> None:
    assert (await world.refusal(LINES[name], LINES[name])).reason is Reason.BAD_CREDENTIAL
    assert (await world.refusal(LINES[name], "")).reason is Reason.BAD_CREDENTIAL


async def test_the_scheme_has_no_case(world: World) -> None:
    for scheme in ("bearer", "BEARER", "bEaReR", "Bearer ", "Bearer  "):
        assert (await world.ask(f"{scheme} {minted()}")).last.name == "user:alice"


# Nobody


async def test_without_a_credential_one_is_needed_except_where_the_upstream_names_anonymous(world: World) -> None:
    refusal = await world.refusal()
    assert (refusal.reason, refusal.challenge) == (Reason.UNAUTHENTICATED, "")
    caller = await world.ask(at=OPEN)
    assert (caller.last.name, caller.last.kind, caller.last.id) == ("anonymous", "anonymous", "")
    assert (caller.credentials, caller.expires_at) == ((Credential("anonymous"),), None)
    refusal = await world.refusal(at=Audience(GITHUB, anonymous=True, scopes=("read",)))
    assert (refusal.reason, refusal.challenge) == (Reason.UNAUTHENTICATED, 'scope="read"')


# Scopes

SCOPED = Audience(GITHUB, scopes=("read", "write"))


async def test_a_token_bears_the_scopes_that_the_route_asks_for(world: World) -> None:
    caller = await world.ask(f"Bearer {minted(scope='write read more')}", at=SCOPED)
    assert caller.last.scopes == {"read", "write", "more"}


@pytest.mark.parametrize("scope", [None, "read", "READ WRITE", "read,write"])
async def test_a_missing_scope_is_403_and_names_all_that_are_needed_each_time(world: World, scope: str | None) -> None:
    token = f"Bearer {minted(scope=scope)}"
    await world.ask(token)
    for _ in range(2):
        refusal = await world.refusal(token, at=SCOPED)
        assert (refusal.reason, refusal.answer.http) == (Reason.INSUFFICIENT_SCOPE, 403)
        assert refusal.challenge == 'error="insufficient_scope", scope="read write"'


async def test_the_users_scopes_count_when_a_workload_presents_them(world: World) -> None:
    good = await world.ask(f"Bearer {minted(scope='read write')}", local="nhi:planner", at=SCOPED)
    assert good.last.scopes == frozenset()
    refusal = await world.refusal(f"Bearer {minted()}", local="nhi:planner", at=SCOPED)
    assert refusal.reason is Reason.INSUFFICIENT_SCOPE


async def test_a_key_bears_its_scopes_and_the_local_listener_needs_none(world: World) -> None:
    assert (await world.refusal(key=api_key("nhi:planner"), at=SCOPED)).reason is Reason.INSUFFICIENT_SCOPE
    assert (await world.ask(local="nhi:planner", at=SCOPED)).last.name == "nhi:planner"


# What evidence may name


@pytest.mark.parametrize(
    ("presented", "kinds"),
    [
        (Presented(), ("anonymous",)),
        (Presented(authorization=("Bearer x.y.z",)), ("jwt",)),
        (Presented(authorization=("bearer  sck_x",)), ("api_key",)),
        (Presented(authorization=("garbage",), api_key=("x",), local="nhi:a"), ("jwt", "api_key", "local")),
        (Presented(authorization=("",)), ("jwt",)),
    ],
)
def test_the_kinds_that_were_seen_are_named_good_or_bad(presented: Presented, kinds: tuple[str, ...]) -> None:
    assert presented.kinds == kinds
