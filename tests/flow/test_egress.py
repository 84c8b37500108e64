"""Everything that leaves the sidecar goes through the proxy: to names that only the proxy knows, under a private CA."""

import asyncio
import json
import os
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from aiohttp import web
from grpc import aio

from sidecar.app.application import Application
from sidecar.app.loader import check_files
from sidecar.app.policy_sources.bundle import build, sign
from sidecar.app.policy_sources.git import GitOrigin
from sidecar.app.policy_sources.stored_revisions import SourceError
from sidecar.errors import ConfigError
from sidecar.http.client import NotAllowed
from sidecar.http.signing_keys import generate
from sidecar.protocols.a2a.wire import WIRES
from sidecar.settings.load import load_settings
from sidecar.settings.shipped_files import shipped
from sidecar.upstreams.processes.launcher import Processes
from tests.a2a.world import HELLO, ScriptedAgent, ask, task
from tests.flow.forks import sidecar
from tests.flow.idp import Idp, bearer
from tests.flow.names_proxy import names_proxy
from tests.flow.world import PATIENCE_S, Upstream, listening, request, started
from tests.receiver import Receiver
from tests.unit.app.policy_sources.test_git import commit, run, served
from tests.unit.http.client.connect_proxy import connect_proxy
from tests.unit.identity.authority import authority
from tests.unit.upstreams.token_endpoint import Issuing

CREDENTIALS = "me:it's a secret"
RULES = {
    "agent_to_tool.csv": "p, user:alice, tool:github/search_code, use, -, -, -, allow\n",
    "user_to_nhi.csv": "p, user:alice, nhi:*, use, -, -, -, allow\n",
}


@dataclass
class CorporateNetwork:
    """One TLS server that is every service of `*.corp.test`, each at its own name, and a gRPC agent."""

    idp: Idp = field(default_factory=Idp)
    tools: Upstream = field(default_factory=Upstream)
    tokens: Issuing = field(default_factory=Issuing)
    agent: ScriptedAgent = field(default_factory=ScriptedAgent)
    logs: Receiver = field(default_factory=Receiver)
    bundle: bytes = b""
    hooks: int = 0
    port: int = 0
    grpc_port: int = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        match request.host.partition(":")[0].removesuffix(".corp.test"):
            case "tools":
                return await self.tools.handle(request)
            case "agent":
                return await self.agent.handle(request)
            case "logs":
                return await self.logs.handle(request)
            case "idp" if request.method == "POST":
                return await self.tokens.handle(request)
            case "idp":
                return web.Response(text=self.idp.key.jwks(), content_type="application/json")
            case "policy":
                return web.Response(body=self.bundle)
            case "hooks":
                self.hooks += 1
                return web.Response(status=204)
        return web.Response(status=404)

    async def send_message(self, _request: bytes, _context: Any) -> bytes:
        return WIRES["1.0"].encode("SendMessageResponse", {"task": task("over-grpc")})


@asynccontextmanager
async def corporate_network(folder: Path) -> AsyncIterator[CorporateNetwork]:
    network = CorporateNetwork()
    network.tokens.gate.set()
    certificate, key = authority("corp").issue(dns=["*.corp.test"]).write(folder, "corp-server")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", network.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.2)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    network.port = runner.addresses[0][1]
    handler = grpc.unary_unary_rpc_method_handler(network.send_message)
    over_grpc = aio.server()
    over_grpc.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("lf.a2a.v1.A2AService", {"SendMessage": handler}),)
    )
    shown = grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])
    network.grpc_port = over_grpc.add_secure_port("127.0.0.1:0", shown)
    await over_grpc.start()
    try:
        yield network
    finally:
        await over_grpc.stop(0)
        await runner.cleanup()


def write_files(folder: Path, network: CorporateNetwork, egress: str) -> None:
    """A sidecar whose every neighbour is in the corporate network; its policy lies there too."""
    made, key, port = folder / "made", generate("EdDSA"), network.port
    (made / "policies").mkdir(parents=True)
    (made / "models").mkdir()
    for name, text in RULES.items():
        (made / "policies" / name).write_text(text)
    for model in shipped("models").glob("*.conf"):
        (made / "models" / model.name).write_text(model.read_text())
    network.bundle = sign(build(made, name="policy", version=1, created_at=0.0), key)
    (folder / "keys.json").write_text(key.jwks())
    (folder / "corp.pem").write_text(authority("corp").own.pem)
    for name, secret in (("proxy.secret", CREDENTIALS), ("client.secret", "of-theirs")):
        (folder / name).write_text(secret)
        (folder / name).chmod(0o600)
    grant = f'token_url: "https://idp.corp.test:{port}/token", client_id: me, secret_path: client.secret'
    issuer = (
        f'issuer: "https://idp.acme.example", jwks_url: "https://idp.corp.test:{port}/keys", audiences: [everything]'
    )
    (folder / "sidecar.yaml").write_text(f"""\
version: 1
server: {{listen: "127.0.0.1:0"}}
admin: {{listen: "127.0.0.1:0"}}
egress: {egress}
identity: {{issuers: [{{{issuer}, algorithms: [ES256], kinds: [user, nhi]}}]}}
policy: {{source: {{bundle: {{url: "https://policy.corp.test:{port}/policy.tar.gz", keys_path: keys.json}}}}}}
audit: {{sink: otlp, otlp: {{url: "https://logs.corp.test:{port}/v1/logs"}}}}
callbacks: {{allow: ["*.corp.test:*"]}}
upstreams:
  github: {{mcp: {{url: "https://tools.corp.test:{port}/mcp"}}, credential: {{client_credentials: {{{grant}}}}}}}
  researcher: {{a2a: {{url: "https://agent.corp.test:{port}/a2a"}}}}
  analyst: {{a2a: {{url: "grpcs://grpc.corp.test:{network.grpc_port}", version: "1.0"}}}}
""")


def rewrite_line(path: Path, section: str, line: str) -> None:
    """Puts another line in the place of a section's."""
    lines = path.read_text().splitlines()
    path.write_text("\n".join(line if one.startswith(f"{section}:") else one for one in lines))


@dataclass(frozen=True)
class Reachable:
    """A sidecar, as its callers see it."""

    app: Application
    http: aiohttp.ClientSession

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.app.listeners[0].port}"

    async def call_tool(self, who: Mapping[str, str]) -> tuple[int, str]:
        body = {"arguments": {"repo": "acme/site"}}
        async with self.http.post(f"{self.url}/mcp/github/tools/search_code", json=body, headers=who) as answer:
            return answer.status, await answer.text()


async def test_every_kind_of_connection_leaves_through_the_proxy(tmp_path: Path) -> None:
    """The proxy is proxy.py. Nothing is reached without it: no resolver knows the names."""
    async with corporate_network(tmp_path) as network:
        with names_proxy(tmp_path, CREDENTIALS) as proxy:
            through = f'{{url: "{proxy.url}", credentials_path: proxy.secret, resolves_callbacks: true}}'
            write_files(tmp_path, network, f"{{ca_path: corp.pem, proxy: {through}}}")
            app = await started(tmp_path)
            try:
                async with aiohttp.ClientSession() as http:
                    sidecar = Reachable(app, http)
                    alice = bearer(network.idp.token("user:alice", "everything"))
                    status, body = await sidecar.call_tool(alice)
                    assert status == 200 and "done" in body, body
                    for agent in ("researcher", "analyst"):
                        answer = await ask(sidecar, "1.0", "jsonrpc", "message/send", {"message": HELLO}, alice, agent)
                        assert answer.error is None, answer
                hook = f"https://hooks.corp.test:{network.port}/done"
                assert (await app.callbacks.guard.post(hook, (), b"{}")).status == 204
            finally:
                await app.stop()
            hosts = {"tools", "idp", "agent", "grpc", "policy", "logs", "hooks"}
            assert proxy.targets() == {f"{host}.corp.test" for host in hosts}
    assert network.tools.seen[-1][0]["Authorization"].startswith("Bearer granted-")
    assert b'"stop"' in network.logs.lines[-2] + network.logs.lines[-1]
    assert network.hooks == 1 and network.agent.methods() == ["SendMessage"]


async def test_without_the_proxy_no_start_finds_its_policy(tmp_path: Path) -> None:
    async with corporate_network(tmp_path) as network, connect_proxy() as proxy:
        write_files(tmp_path, network, "{ca_path: corp.pem}")
        rewrite_line(tmp_path / "sidecar.yaml", "audit", "")
        with pytest.raises(ConfigError, match="no policy: it cannot be fetched"):
            await started(tmp_path)
        app = await started(tmp_path, {"HTTPS_PROXY": proxy.url})  # the variable alone is enough
        await app.stop()
        assert f"policy.corp.test:{network.port}" in proxy.targets


async def test_a_reload_moves_every_connection_to_the_new_proxy(tmp_path: Path) -> None:
    async with corporate_network(tmp_path) as network, connect_proxy() as first, connect_proxy() as second:
        write_files(tmp_path, network, f'{{ca_path: corp.pem, proxy: {{url: "{first.url}"}}}}')
        config = tmp_path / "sidecar.yaml"
        app = await started(tmp_path)
        try:
            async with aiohttp.ClientSession() as http:
                sidecar = Reachable(app, http)
                alice = bearer(network.idp.token("user:alice", "everything"))
                assert (await sidecar.call_tool(alice))[0] == 200
                config.write_text(config.read_text().replace(first.url, second.url))
                await app.reload("test")
                seen = len(first.targets)
                assert (await sidecar.call_tool(alice))[0] == 200
                calls = [target for target in second.targets if target.startswith("tools.")]
                assert calls and not any(target.startswith("tools.") for target in first.targets[seen:])
                # A proxy that is gone is said by its name, to the operator alone.
                config.write_text(config.read_text().replace(second.url, "http://127.0.0.1:1"))
                await app.reload("test")
                status, body = await sidecar.call_tool(alice)
                assert status == 502 and "proxy" not in body
        finally:
            await app.stop()


async def test_addresses_that_rules_refuse_are_refused_through_the_proxy(tmp_path: Path) -> None:
    async with corporate_network(tmp_path) as network, connect_proxy() as proxy:
        resolves = f'{{ca_path: corp.pem, proxy: {{url: "{proxy.url}", resolves_callbacks: true}}}}'
        write_files(tmp_path, network, resolves)
        config = tmp_path / "sidecar.yaml"
        config.write_text(config.read_text().replace('["*.corp.test:*"]', '["*:*"]'))
        app = await started(tmp_path)
        try:
            for address in ("169.254.169.254", "10.0.0.1", "[fd00::1]", "168.63.129.16"):
                assert ip_address(address.strip("[]"))
                with pytest.raises(NotAllowed):
                    await app.callbacks.guard.post(f"https://{address}:8443/", (), b"{}")
            assert not any(target.endswith(":8443") for target in proxy.targets)
        finally:
            await app.stop()


async def test_grpc_names_the_proxy_that_it_cannot_pass(tmp_path: Path) -> None:
    async with corporate_network(tmp_path) as network:
        write_files(tmp_path, network, '{ca_path: corp.pem, proxy: {url: "https://proxy.corp.test:3128"}}')
        config = tmp_path / "sidecar.yaml"
        rewrite_line(config, "policy", "policy: {models: made/models, path: made/policies}")
        with pytest.raises(ConfigError, match=r"upstreams.analyst.a2a.url: error\[S137\]: gRPC passes no proxy"):
            await asyncio.to_thread(check_files, config, {})


@pytest.mark.parametrize("credentials", ["me:it's", ""])
async def test_git_goes_through_the_proxy_too(tmp_path: Path, credentials: str) -> None:
    repo = tmp_path / "repo.git"
    repo.mkdir()
    run(repo, "init", "-q")
    commit(repo)
    (tmp_path / "corp.pem").write_text(authority("corp").own.pem)
    (tmp_path / "proxy.secret").write_text("me:it's")
    (tmp_path / "proxy.secret").chmod(0o600)
    certificate = authority("corp").issue(dns=["git.corp.test"]).write(tmp_path, "git")
    async with served(tmp_path, certificate) as server, connect_proxy(credentials="me:it's") as proxy:
        url = server.url.replace("127.0.0.1", "git.corp.test")
        shown = "credentials_path: proxy.secret" if credentials else ""
        (tmp_path / "sidecar.yaml").write_text(
            f'version: 1\negress: {{ca_path: corp.pem, proxy: {{url: "{proxy.url}", {shown}}}}}\n'
            f'policy: {{source: {{git: {{url: "{url}"}}}}}}\n'
        )
        settings = load_settings(tmp_path / "sidecar.yaml", {}, check_files=False)
        processes = Processes({"PATH": os.environ["PATH"]})
        try:
            if credentials:
                kept = await GitOrigin(time.time, processes).look(settings)
                assert kept is not None and kept.name == run(repo, "rev-parse", "HEAD")
                assert {target.partition(":")[0] for target in proxy.targets} == {"git.corp.test"}
            else:
                with pytest.raises(SourceError, match="407"):
                    await GitOrigin(time.time, processes).look(settings)
                assert not server.sent
        finally:
            await processes.close()


async def test_connect_goes_through_the_proxy_that_variables_name(tmp_path: Path) -> None:
    server = Upstream()
    async with listening(server.handle) as base, connect_proxy() as proxy:
        url = base.replace("127.0.0.1", "tools.corp.test") + "/mcp"
        program = await asyncio.create_subprocess_exec(
            *(sidecar(), "connect", url),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={"PATH": os.environ["PATH"], "http_proxy": proxy.url},
        )
        assert program.stdin is not None and program.stdout is not None
        program.stdin.write(json.dumps(request("tools/list")).encode() + b"\n")
        async with asyncio.timeout(PATIENCE_S):
            answer = json.loads(await program.stdout.readline())
            program.stdin.close()
            await program.wait()
        assert [tool["name"] for tool in answer["result"]["tools"]] == [tool["name"] for tool in server.tools]
        assert {target.partition(":")[0] for target in proxy.targets} == {"tools.corp.test"}
