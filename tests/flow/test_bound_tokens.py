"""Is a stolen token worth nothing on the whole way, at every replica, whatever the thief knows beside it?"""

import time
from pathlib import Path
from typing import Any

import pytest

from sidecar.identity.certificate_names import thumbprint_of
from tests.flow.idp import bearer
from tests.flow.talk import Talk, reason_of
from tests.flow.test_identity_flow import GOOD, IDP, gateway
from tests.flow.test_mutual_tls import ACME, CERTIFICATES, PLANNER, calling, guarded, shows
from tests.flow.world import World
from tests.unit.identity.test_bound_tokens import HOLDER, THIEF, proof
from tests.valkey import running_valkey


def planners(running: World, **cnf: str) -> str:
    return IDP.token("nhi:planner", f"{running.app.base_url}/mcp/github", claims={"cnf": cnf})


def proven(running: World, token: str, **changes: Any) -> dict[str, str]:
    claims = {"htu": f"{running.url}/mcp/github", "iat": int(time.time()), **changes}
    return {"Authorization": f"DPoP {token}", "DPoP": proof(token, **claims)}


async def test_a_bound_token_goes_the_whole_way_with_its_proof_and_nowhere_without(tmp_path: Path) -> None:
    async with gateway(tmp_path) as running:
        token = planners(running, jkt=HOLDER.kid)
        good = proven(running, token)
        assert (await Talk(running, "stateless", good).call("search_code", GOOD))[0] == 200
        assert running.ends()[-1]["credential"][0]["kind"] == "jwt"
        session = Talk(running, "session")
        session.headers = proven(running, token)
        assert (await session.open())[0] == 200
        session.headers = proven(running, token)
        assert (await session.call("search_code", GOOD))[0] == 200
        proof_of = 'DPoP resource_metadata="', 'error="invalid_dpop_proof"'
        stolen: dict[str, tuple[dict[str, str], tuple[str, str]]] = {
            "as a bearer token": (bearer(token), ('DPoP resource_metadata="', 'error="invalid_token"')),
            "as a bearer token with a proof": (
                bearer(token) | {"DPoP": good["DPoP"]},
                ('Bearer resource_metadata="', 'error="invalid_token"'),
            ),
            "with a proof that was seen": (good, proof_of),
            "without a proof": ({"Authorization": f"DPoP {token}"}, proof_of),
            "with the thief's own key": (proven(running, token, by=THIEF), proof_of),
            "with a proof for another server": (proven(running, token, htu=f"{running.url}/mcp/jira"), proof_of),
        }
        for how, (headers, (begins, says)) in stolen.items():
            answer = await Talk(running, "stateless", headers).call("search_code", GOOD)
            assert (answer[0], reason_of(answer)) == (401, "bad-credential"), how
            assert answer[2]["WWW-Authenticate"].startswith(begins) and says in answer[2]["WWW-Authenticate"], how
        assert len(running.upstream.calls()) == 2
        assert all("DPoP" not in headers for headers, _ in running.upstream.seen)
        metadata = f"{running.url}/.well-known/oauth-protected-resource/mcp/github"
        async with running.http.get(metadata) as answer:
            assert "ES256" in (await answer.json())["dpop_signing_alg_values_supported"]
        await running.app.reload("test")
        assert (await Talk(running, "stateless", good).call("search_code", GOOD))[0] == 401


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost"])
async def test_a_proof_is_for_the_name_that_its_maker_called(address: str, tmp_path: Path) -> None:
    async with gateway(tmp_path, local="nhi:planner") as running:
        port = running.app.listeners[0].port
        token = IDP.token("user:alice", f"{running.app.base_url}/mcp/github", claims={"cnf": {"jkt": HOLDER.kid}})
        url = f"http://{address}:{port}/mcp/github"
        headers = proven(running, token, htu=url)
        answer = await Talk(running, "stateless", headers, url=f"http://{address}:{port}").call("get_file", {})
        assert answer[0] == 200, answer


async def test_a_proof_that_one_replica_saw_is_seen_by_all(tmp_path: Path) -> None:
    with running_valkey() as valkey:
        settings = f'store: {{url: "{valkey.url}"}}\n'
        async with (
            gateway(tmp_path / "a", settings=settings) as one,
            gateway(tmp_path / "b", settings=settings) as other,
        ):
            audiences = [f"{running.app.base_url}/mcp/github" for running in (one, other)]
            token = IDP.token("nhi:planner", audiences, claims={"cnf": {"jkt": HOLDER.kid}})
            here = proven(one, token, jti="the same")
            there = proven(other, token, jti="the same")
            assert (await Talk(one, "stateless", here).call("search_code", GOOD))[0] == 200
            assert (await Talk(other, "stateless", there).call("search_code", GOOD))[0] == 401
            assert (await Talk(other, "stateless", proven(other, token)).call("search_code", GOOD))[0] == 200
            with valkey.client() as client:
                kept = [key for key in client.keys("*") if "dpop" in key]
                assert len(kept) == 2 and all(0 < client.pttl(key) <= 200_000 for key in kept)
            with valkey.frozen():
                answer = await Talk(other, "stateless", proven(other, token)).call("search_code", GOOD)
                assert (answer[0], reason_of(answer)) == (503, "store-unavailable")


async def test_a_token_bound_to_a_certificate_is_one_with_it(tmp_path: Path) -> None:
    planner, thief = ACME.issue(uris=[PLANNER]), ACME.issue(uris=["spiffe://acme.example/ns/prod/sa/thief"])
    async with guarded(tmp_path, identity=CERTIFICATES) as running:
        bound = bearer(planners(running, **{"x5t#S256": thumbprint_of(planner.der)}))
        async with calling(running, shows(tmp_path, planner)):
            assert (await Talk(running, "stateless", bound).call("search_code", GOOD))[0] == 200
            assert running.ends()[-1]["chain"] == ["nhi:planner"]
            assert [one["kind"] for one in running.ends()[-1]["credential"]] == ["jwt", "certificate"]
        for context in (shows(tmp_path, thief), shows(tmp_path, None)):
            async with calling(running, context):
                answer = await Talk(running, "stateless", bound).call("search_code", GOOD)
                assert (answer[0], reason_of(answer)) == (401, "bad-credential")
                assert answer[2]["WWW-Authenticate"].startswith("Bearer resource_metadata=")
        async with calling(running, shows(tmp_path, None)):
            metadata = f"{running.url}/.well-known/oauth-protected-resource/mcp/github"
            async with running.http.get(metadata) as found:
                assert (await found.json())["tls_client_certificate_bound_access_tokens"] is True
