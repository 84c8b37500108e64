"""Does a policy from a bundle or a git ref serve as one from a folder does, and does the last good one serve on?"""

import hashlib
import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp import web

from sidecar.app.policy_sources import git
from sidecar.app.policy_sources.bundle import build, sign
from sidecar.errors import ConfigError
from sidecar.http.signing_keys import SigningKey, generate
from tests.flow.world import RULES, Upstream, World, listening, started, until, write_folder

SEARCH = {"repo": "acme/site"}
MORE = RULES + "p, nhi:planner, tool:github/delete_repo, use, -, -, -, allow\n"
SUITE = """\
suite: ours
tests:
  - {name: planner deletes nothing, as: nhi:planner, calls: tool:github/delete_repo, action: tools/call, expect: deny}
"""


@dataclass
class Shop:
    """Where bundles are published. `asked` are the ETags that we were asked with."""

    folder: Path
    key: SigningKey = field(default_factory=lambda: generate("EdDSA"))
    raw: bytes = b""
    status: int = 200
    asked: list[str] = field(default_factory=list)
    url: str = ""

    def publish(self, rules: str, version: int, key: SigningKey | None = None, **files: str) -> bytes:
        made = self.folder / f"v{version}"
        (made / "policies" / "tests").mkdir(parents=True, exist_ok=True)
        (made / "policies" / "agent_to_tool.csv").write_text(rules)
        for name, text in files.items():
            (made / "policies" / "tests" / f"{name}.yaml").write_text(text)
        self.raw = sign(build(made, name="policy", version=version, created_at=0.0), key or self.key)
        return self.raw

    async def serve(self, request: web.Request) -> web.Response:
        etag = f'"{hashlib.sha256(self.raw).hexdigest()[:16]}"'
        self.asked.append(request.headers.get("If-None-Match", ""))
        if self.status == 200 and self.asked[-1] == etag:
            return web.Response(status=304, headers={"ETag": etag})
        return web.Response(status=self.status, body=self.raw, headers={"ETag": etag})


@asynccontextmanager
async def shop(folder: Path) -> AsyncIterator[Shop]:
    one = Shop(folder / "shop")
    async with listening(one.serve) as base:
        one.url = f"{base}/policy.tar.gz"
        (folder / "keys.json").write_text(one.key.jwks())
        yield one


@asynccontextmanager
async def served(folder: Path, source: dict[str, Any]) -> AsyncIterator[World]:
    """A sidecar that has its policy from there."""
    stub = Upstream()
    async with listening(stub.handle) as base:
        stub.url = f"{base}/mcp"
        settings = yaml.safe_dump({"policy": {"source": source}})
        write_folder(folder, stub.url, "p, nobody, looks, here\n", settings=settings)
        app = await started(folder, {"PATH": "/usr/bin:/bin"})
        try:
            async with aiohttp.ClientSession() as http:
                ports = [listener.port for listener in app.listeners]
                yield World(folder, stub, app, http, f"http://127.0.0.1:{ports[1]}", f"http://127.0.0.1:{ports[2]}")
        finally:
            await app.stop()


async def may(world: World, tool: str) -> bool:
    status, _, _ = await world.call(tool, SEARCH)
    return status == 200


def controls(world: World) -> list[dict[str, Any]]:
    lines = (world.folder / "data" / "audit" / "audit.jsonl").read_bytes().splitlines()
    return [one["control"] for one in map(json.loads, lines) if one["event"] == "control"]


async def test_a_bundle_serves_and_the_next_takes_its_place(tmp_path: Path) -> None:
    async with shop(tmp_path) as at:
        at.publish(RULES, 1)
        bundle = {"url": at.url, "keys_path": "keys.json", "every": "50ms"}
        async with served(tmp_path, {"bundle": bundle}) as world:
            assert await may(world, "search_code") and not await may(world, "delete_repo")
            await until(lambda: len(at.asked) > 3)
            assert at.asked[0] == "" and all(at.asked[1:])  # nothing is sent twice
            at.publish(MORE, 2)
            await until(lambda: world.app.status()["policy"]["source"].get("version") == 2)
            assert await may(world, "delete_repo")
            reload = next(one for one in controls(world) if one["what"] == "reload")
            assert (reload["by"], reload["policy_version"]) == ("policy source", 2)
            text = await (await world.http.get(f"{world.admin_url}/metrics")).text()
            assert "sidecar_policy_source_up 1.0" in text and "sidecar_policy_source_version 2.0" in text
            assert not list((tmp_path / "data" / "policy").glob(".aside-*"))


async def test_what_may_not_serve_changes_nothing_and_is_told(tmp_path: Path) -> None:
    async with shop(tmp_path) as at:
        good = at.publish(RULES, 5)
        bundle = {"url": at.url, "keys_path": "keys.json", "every": "20ms"}
        async with served(tmp_path, {"bundle": bundle}) as world:
            for publish, why in (
                (lambda: at.publish(RULES, 4), "older"),
                (lambda: at.publish(MORE, 5), "same version"),
                (lambda: at.publish(MORE, 6, generate("EdDSA")), "none of its signatures"),
                (lambda: at.publish("p, nhi:planner, *, *, -, -, -, allow\n", 6), "less than half"),
                (lambda: at.publish(MORE + "p, x\n", 7), "error[P"),
                (lambda: at.publish(MORE, 8, suite=SUITE), "planner deletes nothing"),
                (lambda: setattr(at, "raw", b"garbage"), "damaged"),
                (lambda: setattr(at, "status", 500), "status 500"),
            ):
                publish()
                world.app.follower.hint()
                await until(lambda why=why: any(why in one for one in world.app.follower.trouble))  # type: ignore[misc]
                _, told = world.app.readiness()
                assert told["status"] == "degraded" and any(why in one for one in world.app.banners())
                assert await may(world, "search_code") and not await may(world, "delete_repo")
            at.raw, at.status = sign(good, generate("EdDSA")), 200  # one more vouches for it: it says the same
            world.app.follower.hint()
            await until(lambda: not world.app.follower.trouble)
            assert world.app.readiness()[1]["status"] == "ready"


async def test_the_operators_word_for_one_bundle_overrules_its_version(tmp_path: Path) -> None:
    async with shop(tmp_path) as at:
        at.publish(RULES, 5)
        bundle = {"url": at.url, "keys_path": "keys.json", "every": "20ms"}
        async with served(tmp_path, {"bundle": bundle}) as world:
            digest = hashlib.sha256(at.publish(MORE, 4)).hexdigest()
            await until(lambda: bool(world.app.follower.trouble))
            path = tmp_path / "sidecar.yaml"
            settings = yaml.safe_load(path.read_text())
            settings["policy"]["source"]["bundle"]["accept"] = digest
            path.write_text(yaml.safe_dump(settings))
            await world.app.reload("test")
            await until(lambda: not world.app.follower.trouble)
            assert await may(world, "delete_repo")


async def test_a_source_that_is_out_stops_no_start_but_the_first(tmp_path: Path) -> None:
    async with shop(tmp_path) as at:
        at.publish(RULES, 1)
        source = {"bundle": {"url": at.url, "keys_path": "keys.json"}}
        at.status = 503
        with pytest.raises(ConfigError, match="S161"):
            async with served(tmp_path, source):
                pass
        at.status = 200
        async with served(tmp_path, source):
            pass
        at.status = 503
        async with served(tmp_path, source) as world:
            assert await may(world, "search_code")
            assert any("503" in one for one in world.app.banners())
        at.status = 200
        at.publish(MORE + "p, x\n", 2)  # bad when we come back: what was good serves on
        async with served(tmp_path, source) as world:
            assert await may(world, "search_code") and not await may(world, "delete_repo")
        at.publish(MORE, 3)  # and what is good then serves from the first call on
        async with served(tmp_path, source) as world:
            assert await may(world, "delete_repo")


def run(folder: Path, *arguments: str) -> str:
    env = {"PATH": "/usr/bin:/bin", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "HOME": str(folder)}
    who = ("-c", "user.name=a", "-c", "user.email=a@acme.example", "-c", "init.defaultBranch=main")
    done = subprocess.run(["git", *who, *arguments], cwd=folder, env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit(folder: Path, rules: str, *more: str) -> str:
    (folder / "p" / "policies").mkdir(parents=True, exist_ok=True)
    (folder / "p" / "policies" / "agent_to_tool.csv").write_text(rules)
    (folder / "p" / "policies" / ".gitignore").write_text("*.swp\n")
    run(folder, "add", "-A")
    run(folder, *more, "commit", "-q", "-m", "policy")
    return run(folder, "rev-parse", "HEAD")


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    folder.mkdir()
    run(folder, "init", "-q")
    return folder


async def test_a_git_ref_serves_and_its_next_commit_takes_its_place(repo: Path, tmp_path: Path) -> None:
    first = commit(repo, RULES)
    source = {"git": {"url": f"file://{repo}", "path": "p", "every": "100ms"}}
    async with served(tmp_path, source) as world:
        assert world.app.status()["policy"]["source"]["name"] == first
        assert await may(world, "search_code") and not await may(world, "delete_repo")
        second = commit(repo, MORE)
        await until(lambda: world.app.status()["policy"]["source"].get("name") == second)
        assert await may(world, "delete_repo")
        (repo / "p" / "policies" / "link.csv").symlink_to("/etc/passwd")
        commit(repo, MORE)
        await until(lambda: any("not a regular file" in one for one in world.app.follower.trouble))
        assert await may(world, "delete_repo")


async def test_only_a_commit_that_somebody_signed_who_may_is_taken(repo: Path, tmp_path: Path) -> None:
    keys = {}
    for who in ("alice", "mallory"):
        made = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", who, "-f", str(tmp_path / who)]
        subprocess.run(made, check=True)
        keys[who] = ("-c", "gpg.format=ssh", "-c", f"user.signingkey={tmp_path / who}", "-c", "commit.gpgsign=true")
    (tmp_path / "signers").write_text(f"alice@acme.example {(tmp_path / 'alice.pub').read_text()}")
    commit(repo, RULES, *keys["alice"])
    source = {"git": {"url": f"file://{repo}", "path": "p", "every": "100ms", "signers_path": "signers"}}
    async with served(tmp_path, source) as world:
        assert world.app.status()["policy"]["source"]["signer"] == "alice@acme.example"
        for by in (keys["mallory"], ()):
            commit(repo, MORE + f"# {len(by)}\n", *by)
            world.app.follower.trouble = ()
            world.app.follower.hint()
            await until(lambda: any("no allowed signer" in one for one in world.app.follower.trouble))
            assert not await may(world, "delete_repo")


async def test_git_may_not_fill_the_disk_nor_take_for_ever_and_its_words_are_told(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(repo, RULES)
    at = {"url": f"file://{repo}", "path": "p"}
    for source, most, told in (
        (at | {"ref": "nowhere"}, git.MAX_ON_DISK, "couldn't find remote ref"),
        (at | {"timeout_s": 0.001}, git.MAX_ON_DISK, "longer than"),
        (at, 1000, "larger than"),
    ):
        monkeypatch.setattr(git, "MAX_ON_DISK", most)
        with pytest.raises(ConfigError, match=told):
            async with served(tmp_path, {"git": source}):
                pass
