"""Do the presets read what Keycloak, Entra and Okta really send, and refuse their other tokens?"""

import json
from pathlib import Path
from typing import Any

import pytest
from jwt import encode

from sidecar.errors import Reason
from sidecar.identity import Audience, TrustedIssuer, with_preset
from tests.unit.identity.test_chain_builder import roles_from
from tests.unit.identity.world import World, a_world, an_issuer, signing_key

RESOURCE = "https://gw.acme.example/mcp/github"
KEYCLOAK, OKTA = "https://sso.acme.example/realms/acme", "https://acme.okta.com/oauth2/default"
TENANT = "3338040d-6c67-4c5b-b112-36a304b66dad"
ENTRA = f"https://login.microsoftonline.com/{TENANT}/v2.0"
API = "6e74172b-be56-4843-9ff4-e66a39bb12e3"
PLANNER_APP = "0b0b6b52-5d3f-4a55-a4a5-53d1bd2f7c66"

# What the products send, at NOW.
TOKENS = json.loads((Path(__file__).parents[2] / "golden" / "identity" / "tokens.json").read_text())
KEYCLOAK_USER, KEYCLOAK_SERVICE = TOKENS["KEYCLOAK_USER"], TOKENS["KEYCLOAK_SERVICE"]
ENTRA_USER, ENTRA_APP = TOKENS["ENTRA_USER"], TOKENS["ENTRA_APP"]
OKTA_USER, OKTA_SERVICE = TOKENS["OKTA_USER"], TOKENS["OKTA_SERVICE"]


def without(claims: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in claims.items() if name not in names}


CLIENTS = {
    "keycloak": {"vscode": "direct", "planner-app": "nhi:planner"},
    "entra": {PLANNER_APP: "nhi:planner"},
    "okta": {"0oa1vscode": "direct", "0oa9planner": "nhi:planner"},
}
ISSUERS = {"keycloak": KEYCLOAK, "entra": ENTRA, "okta": OKTA}
ROLES = {"keycloak": "realm_access.roles", "entra": "roles", "okta": "groups"}
TYP = {"keycloak": "JWT", "entra": "JWT", "okta": None}


def issuer_of(preset: str, **what: Any) -> TrustedIssuer:
    audiences = (API,) if preset == "entra" else ()
    known = {"algorithms": ("RS256",), "audiences": audiences, "roles_from": roles_from(ROLES[preset], "corp"), **what}
    return with_preset(an_issuer(ISSUERS[preset], **known), preset)


def key_of() -> Any:
    return signing_key("product", "RS256")


def world_of(preset: str, **what: Any) -> World:
    world = a_world(issuer_of(preset, **what))
    world.server.serve(ISSUERS[preset], key_of())
    return world


def sent(preset: str, claims: dict[str, Any], **header: Any) -> str:
    """As the product signs it: RS256, its own header type or none."""
    head = {"kid": key_of().kid, "typ": TYP[preset], **header}
    return encode(claims, key_of().private, "RS256", headers=head)


HONEST = [
    ("keycloak", KEYCLOAK_USER, ["user:f3d1a0b2-7c64-4b7e-8c3f-0d9f7a6b5c4d"]),
    ("keycloak", {**KEYCLOAK_USER, "azp": "planner-app"}, ["user:f3d1a0b2-7c64-4b7e-8c3f-0d9f7a6b5c4d", "nhi:planner"]),
    ("keycloak", KEYCLOAK_SERVICE, ["nhi:planner"]),
    ("keycloak", {**without(KEYCLOAK_SERVICE, "client_id"), "clientId": "planner-app"}, ["nhi:planner"]),
    ("entra", ENTRA_USER, ["user:HKZpfaHyWadeOouYlitjrI-KffTm222X5rrV3xDqfKQ", "nhi:planner"]),
    ("entra", ENTRA_APP, ["nhi:planner"]),
    ("okta", OKTA_USER, ["user:alice@acme.example"]),
    ("okta", OKTA_SERVICE, ["nhi:planner"]),
]


@pytest.mark.parametrize(("preset", "claims", "chain"), HONEST)
async def test_access_tokens_give_their_chain(preset: str, claims: dict[str, Any], chain: list[str]) -> None:
    world = world_of(preset, clients=CLIENTS[preset])
    assert await world.chain(sent(preset, claims), at=Audience(RESOURCE)) == chain


@pytest.mark.parametrize(
    ("preset", "claims", "name"),
    [
        ("keycloak", KEYCLOAK_SERVICE, "nhi:1f4db6ad-5e75-479c-b289-b8096ec1f4f4"),
        ("entra", ENTRA_APP, "nhi:5b5d1a4e-8f1e-4d3a-9c53-1f5d1e2c3b4a"),
        ("okta", OKTA_SERVICE, "nhi:0oa9planner"),
    ],
)
async def test_without_a_client_table_a_workload_has_the_products_own_id(
    preset: str, claims: dict[str, Any], name: str
) -> None:
    assert await world_of(preset).chain(sent(preset, claims)) == [name]


OTHER_TOKENS = {
    "a Keycloak ID token": ("keycloak", {**KEYCLOAK_USER, "typ": "ID"}),
    "a Keycloak refresh token": ("keycloak", {**KEYCLOAK_USER, "typ": "Refresh"}),
    "a Keycloak logout token": ("keycloak", {**KEYCLOAK_USER, "typ": "Logout"}),
    "a Keycloak token without a type": ("keycloak", without(KEYCLOAK_USER, "typ")),
    "a Keycloak lightweight token": ("keycloak", without(KEYCLOAK_USER, "sub")),
    "an Entra ID token": ("entra", {**without(ENTRA_USER, "scp", "azp", "azpacr"), "nonce": "12345"}),
    "an Entra app token that does not say so": ("entra", without(ENTRA_APP, "idtyp")),
    "an Entra token of another tenant": ("entra", {**ENTRA_USER, "iss": ENTRA.replace("3338", "4448")}),
    "an Entra token for Graph": ("entra", {**ENTRA_USER, "aud": "00000003-0000-0000-c000-000000000000"}),
    "an Okta ID token": ("okta", {**without(OKTA_USER, "cid", "uid", "scp"), "at_hash": "fPlsvVszI29LU2UhDyJ9vg"}),
    "an Okta ID token without at_hash": ("okta", without(OKTA_USER, "cid", "uid", "scp")),
    "an Okta token of the organisation": ("okta", {**OKTA_USER, "aud": "https://acme.okta.com"}),
}


@pytest.mark.parametrize("name", OTHER_TOKENS)
async def test_the_products_other_tokens_are_refused(name: str) -> None:
    preset, claims = OTHER_TOKENS[name]
    await world_of(preset).refused(sent(preset, claims))


@pytest.mark.parametrize(
    ("preset", "claims"),
    [("keycloak", {**KEYCLOAK_USER, "azp": "new-app"}), ("entra", {**ENTRA_USER, "azp": API}), ("okta", OKTA_USER)],
)
async def test_an_app_that_is_not_in_the_table_is_refused(preset: str, claims: dict[str, Any]) -> None:
    clients = {name: target for name, target in CLIENTS[preset].items() if target != "direct"}
    await world_of(preset, clients=clients).refused(sent(preset, claims), Reason.CLIENT_UNKNOWN)


@pytest.mark.parametrize(
    ("preset", "claims", "expected"),
    [
        ("keycloak", KEYCLOAK_USER, {"default-roles-acme", "offline_access", "engineer"}),
        ("entra", ENTRA_USER, {"Engineer"}),
        ("okta", OKTA_USER, {"Everyone", "eng"}),
    ],
)
async def test_roles_are_where_the_product_keeps_them(preset: str, claims: dict[str, Any], expected: set[str]) -> None:
    caller = await world_of(preset).ask(f"Bearer {sent(preset, claims)}")
    assert caller.first.roles == {f"role:corp/{name}" for name in expected}


SERVICES = [("keycloak", KEYCLOAK_SERVICE), ("entra", ENTRA_APP), ("okta", OKTA_SERVICE)]


@pytest.mark.parametrize(("preset", "claims"), SERVICES)
async def test_an_issuer_of_users_names_no_workload_by_any_preset(preset: str, claims: dict[str, Any]) -> None:
    await world_of(preset, kinds=("user",)).refused(sent(preset, claims))


async def test_what_the_operator_wrote_wins_over_the_preset() -> None:
    strict = with_preset(an_issuer(OKTA, algorithms=("RS256",), typ=("at+jwt",)), "okta")
    world = a_world(strict)
    world.server.serve(OKTA, key_of())
    await world.refused(sent("okta", OKTA_USER))
    assert await world.chain(sent("okta", OKTA_USER, typ="at+jwt")) == ["user:alice@acme.example"]


async def test_a_login_name_cannot_choose_a_kind() -> None:
    for name in ("nhi:planner", "user:root", "role:admin"):
        await world_of("okta").refused(sent("okta", {**OKTA_USER, "sub": name}))
