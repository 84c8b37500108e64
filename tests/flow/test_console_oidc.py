"""Logging in at an OpenID provider, and what does not log anybody in."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from yarl import URL

from sidecar.admin.console import oidc, sessions
from sidecar.admin.console.registry import page
from sidecar.admin.console.request import ConsoleRequest
from sidecar.http.signing_keys import generate
from tests.flow.openid import SECRET, OpenIdProvider, openid_provider
from tests.flow.test_console import FILES, HTML, JSON, SETTINGS, Browser
from tests.flow.world import World, world

OIDC = """\
enabled: true, oidc: {issuer: "%s", client_id: console%s, algorithms: [ES256],
    roles: {viewer: [support, "sre-*"], operator: [platform]}}"""


@page("probe-person", title="Probe", template="fault.html")
async def probe_person(asked: ConsoleRequest) -> Mapping[str, Any]:
    person = asked.person
    return {
        "by": asked.by,
        "role": asked.role,
        "person": person and person.name,
        "roles": sorted(person.roles) if person else [],
    }


@asynccontextmanager
async def providing(
    folder: Path, more: str = "", secret: str = SECRET, **said: Any
) -> AsyncIterator[tuple[World, Browser, OpenIdProvider]]:
    """A sidecar whose console logs people in at a provider."""
    async with openid_provider(secret=secret, **said) as provider:
        named = ", client_secret_path: client.key" if secret else ""
        settings = SETTINGS.replace("enabled: true", OIDC % (provider.url, named)) + more.format(issuer=provider.url)
        async with world(folder, settings=settings, files={**FILES, "client.key": secret or SECRET}) as running:
            browser = Browser(running)
            try:
                yield running, browser, provider
            finally:
                await browser.http.close()


async def sent_to(browser: Browser, next_path: str = "/console/now") -> str:
    """Where the login page's link leads: an address of the provider."""
    _, shown, _ = await browser.get(f"/console/login?next={next_path}")
    link = re.search(r'href="(/console/oidc/login[^"]+)"', shown)
    assert link
    status, _, headers = await browser.get(link[1])
    assert status == 303, shown
    return str(headers["Location"])


async def sent_back(browser: Browser, address: str) -> str:
    """Where the provider sends the browser: the path and the query of our own address."""
    async with browser.http.get(address, allow_redirects=False) as response:
        assert response.status == 302
        back = URL(response.headers["Location"])
        assert str(back.origin()) == browser.base and back.path == "/console/oidc/callback"
        return back.raw_path_qs


async def logged_in(browser: Browser, next_path: str = "/console/now") -> tuple[int, str, Any]:
    return await browser.get(await sent_back(browser, await sent_to(browser, next_path)))


async def whoever(browser: Browser) -> Any:
    status, said, _ = await browser.get("/console/probe-person", **JSON)
    return json.loads(said) if status == 200 else status


def controls(running: World) -> list[dict[str, Any]]:
    return [one["control"] for one in running.records() if one["event"] == "control"][1:]


async def test_a_person_is_logged_in_with_the_role_of_a_group(tmp_path: Path) -> None:
    async with providing(tmp_path) as (running, browser, provider):
        address = await sent_to(browser, "/console/now?span=1h")
        asked = URL(address).query
        assert asked["redirect_uri"] == f"{browser.base}/console/oidc/callback"
        assert len({asked["state"], asked["nonce"], asked["code_challenge"]}) == 3
        status, shown, headers = await browser.get(await sent_back(browser, address))
        assert status == 200 and 'content="0; url=/console/now?span=1h"' in shown
        cookies = headers.getall("Set-Cookie")
        assert any("SameSite=Strict" in one and "HttpOnly" in one for one in cookies)
        assert any(one.startswith(f"sidecar-console-{URL(browser.base).port}-login=;") for one in cookies)
        assert await whoever(browser) == {"by": "oidc:alice", "role": "operator", "person": None, "roles": []}
        assert provider.refused == []
        for groups, expected in (
            ("support", "viewer"),
            (["x", "sre-berlin"], "viewer"),
            (["support", "platform"], "operator"),
        ):
            provider.claims = {"groups": groups}
            await logged_in(browser)
            assert (await whoever(browser))["role"] == expected, groups
        assert [(one["what"], one["by"]) for one in controls(running)] == [("console-login", "oidc:alice")] * 4
        assert (await browser.log_in())[0] == 303  # a key still works
        assert (await whoever(browser))["by"] == "admin:olga"


async def test_a_public_client_has_no_secret(tmp_path: Path) -> None:
    async with providing(tmp_path, secret="") as (_, browser, provider):
        await logged_in(browser)
        assert (await whoever(browser))["by"] == "oidc:alice" and provider.refused == []


IDENTITY = """\
identity:
  issuers:
    - issuer: "{issuer}"
      jwks_path: jwks.json
      algorithms: [ES256]
      audiences: ["x"]
      roles_from: {{claim: groups, namespace: corp}}
"""


async def test_a_person_is_the_principal_that_the_same_issuer_names_in_calls(tmp_path: Path) -> None:
    (tmp_path / "jwks.json").write_text(generate().jwks())
    async with providing(tmp_path, IDENTITY) as (_, browser, provider):
        await logged_in(browser)
        assert await whoever(browser) == {
            "by": "oidc:alice",
            "role": "operator",
            "person": "user:alice",
            "roles": ["role:corp/platform"],
        }
        provider.person = "al|ce"  # no id of a principal
        await logged_in(browser)
        assert (await whoever(browser))["person"] is None


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no group": ({"claims": {"groups": ["sales"]}}, "role"),
    "no claim": ({"claims": {"groups": None}}, "role"),
    "groups of another form": ({"claims": {"groups": {"platform": 1}}}, "role"),
    "another nonce": ({"claims": {"nonce": "x"}}, "nonce"),
    "no nonce": ({"claims": {"nonce": None}}, "nonce"),
    "another audience": ({"claims": {"aud": "shop"}}, "audience"),
    "another party": ({"claims": {"azp": "shop"}}, "audience"),
    "several audiences": ({"claims": {"aud": ["console", "shop"]}}, "audience"),
    "expired": ({"claims": {"iat": 1_000_000_000, "exp": 1_000_000_300}}, "id-token"),
    "another issuer": ({"claims": {"iss": "https://evil.example"}}, "id-token"),
    "another key": ({"signer": generate()}, "id-token"),
    "a name with blanks": ({"person": "alice smith"}, "name"),
    "an error": ({"answer": {"error": "access_denied"}}, "access_denied"),
    "a hostile error": ({"answer": {"error": "<img src=x>"}}, "error"),
    "another state": ({"answer": {"state": "x"}}, "state"),
    "another provider": ({"answer": {"iss": "https://evil.example"}}, "issuer"),
    "an unknown code": ({"answer": {"code": "x"}}, "invalid_grant"),
    "no tokens": ({"broken": {"/token"}}, "provider-out"),
}


async def test_nobody_is_logged_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests) -> None:
    monkeypatch.setattr(sessions, "ATTEMPTS_PER_PEER", len(REFUSED) + 1)
    async with providing(tmp_path) as (running, browser, provider):
        await logged_in(browser)  # so that the provider's keys are known
        usual = {name: getattr(provider, name) for said, _ in REFUSED.values() for name in said}
        for case, (said, reason) in REFUSED.items():
            browser.http.cookie_jar.clear()
            for name, value in {**usual, **said}.items():
                setattr(provider, name, value)
            with subtests.test(msg=case):
                status, shown, headers = await logged_in(browser)
                assert status in (400, 403, 502) and "<img src=x" not in shown
                assert [one for one in headers.getall("Set-Cookie", ()) if "-login=" not in one] == []
                assert await whoever(browser) == 401
                told = controls(running)[-1]
                assert (told["what"], told["why"]) == ("console-login-refused", reason)


async def test_without_the_keys_of_the_provider_nobody_is_logged_in(tmp_path: Path) -> None:
    async with providing(tmp_path, broken={"/keys"}) as (_, browser, _):
        assert (await logged_in(browser))[0] == 403


DOCUMENTS: list[dict[str, Any]] = [
    {"issuer": "https://evil.example"},
    {"token_endpoint": "http://10.0.0.1/token"},
    {"jwks_uri": None},
    {"authorization_endpoint": "javascript:alert(1)"},
]


async def test_a_provider_that_says_what_cannot_be_used_sends_nobody_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oidc, "RETRY_S", 0.0)
    async with providing(tmp_path) as (_, browser, provider):
        for document in DOCUMENTS:
            provider.document = document
            status, shown, headers = await browser.get("/console/oidc/login")
            assert status == 502 and "Location" not in headers and "identity provider" in shown, document
        provider.document = {}
        assert (await browser.get("/console/oidc/login"))[0] == 303


async def test_a_provider_that_is_out_is_not_asked_for_each_login(tmp_path: Path) -> None:
    async with providing(tmp_path, broken={"/.well-known/openid-configuration"}) as (_, browser, provider):
        assert [(await browser.get("/console/oidc/login"))[0] for _ in range(3)] == [502] * 3
        assert provider.asked == ["/.well-known/openid-configuration"]


async def test_logins_that_begin_at_once_wait_for_one_request(tmp_path: Path) -> None:
    async with providing(tmp_path) as (_, browser, provider):
        begun = await asyncio.gather(*(browser.get("/console/oidc/login") for _ in range(3)))
        assert [status for status, *_ in begun] == [303] * 3
        assert provider.asked == ["/.well-known/openid-configuration"]


async def test_a_login_is_of_the_browser_that_began_it_and_holds_once(tmp_path: Path) -> None:
    """Another person's code and state, in a link, log nobody in (login CSRF)."""
    async with providing(tmp_path) as (running, browser, _):
        mallory = Browser(running)
        back = await sent_back(mallory, await sent_to(mallory))
        assert (await browser.get(back))[0] == 400  # without a login of its own
        await sent_to(browser)
        assert (await browser.get(back))[0] == 400  # with one
        assert await whoever(browser) == 401
        held = next(cookie for cookie in mallory.http.cookie_jar if cookie.key.endswith("-login"))
        assert (await mallory.get(back))[0] == 200
        assert (await mallory.get(back))[0] == 400
        assert await browser.with_cookie(f"{held.key}={held.value}", back) == 400  # not even with its cookie
        await mallory.http.close()
        for path in ("/console/oidc/login", "/console/oidc/callback"):
            assert (await browser.post(path, {}))[0] == 405


async def test_failed_logins_at_the_provider_are_bounded_too(tmp_path: Path) -> None:
    async with providing(tmp_path) as (_, browser, _):
        found = [(await browser.get("/console/oidc/callback?state=x&code=y"))[0] for _ in range(12)]
        assert found == [400] * 10 + [429] * 2
        assert (await browser.get("/console/oidc/login"))[0] == 429


async def test_without_a_provider_there_are_no_such_addresses(tmp_path: Path) -> None:
    async with world(tmp_path, settings=SETTINGS, files=FILES) as running:
        browser = Browser(running)
        for path in ("/console/oidc/login", "/console/oidc/callback"):
            status, _, headers = await browser.get(path, **HTML)
            assert (status, headers["Location"].partition("?")[0]) == (303, "/console/login")
        await browser.http.close()
