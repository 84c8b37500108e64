"""Is it the commit that was meant, as it was committed, whoever may push too or stands on the way?"""

import asyncio
import base64
import os
import shlex
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import web

from sidecar.app.policy_sources import git
from sidecar.app.policy_sources.git import GitOrigin, _trouble
from sidecar.app.policy_sources.stored_revisions import SourceError, StoredRevisions
from sidecar.settings.load import load_settings
from sidecar.settings.stored_policy import StoredPolicy
from sidecar.upstreams.processes.launcher import Processes
from tests.unit.identity.authority import authority

ROW = "p, nhi:planner, tool:github/search_code, use, -, -, -, allow\n"
GUARD = "p, *, tool:github/delete_*, use, -, -, -, deny\n"
BRANCH, TAG = "refs/heads/prod", "refs/tags/prod"


def run(folder: Path, *arguments: str, said: str | None = None) -> str:
    env = {
        "PATH": os.environ["PATH"],
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
        "HOME": str(folder),
    }
    who = ("-c", "user.name=a", "-c", "user.email=a@acme.example", "-c", "init.defaultBranch=main")
    options = {"cwd": folder, "env": env, "input": said}
    done = subprocess.run(["git", *who, *arguments], **options, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit(folder: Path, **files: str) -> str:
    """A commit of the policy, and of these."""
    for name, text in {"policies/agent_to_tool.csv": ROW, "policies/guardrails.csv": GUARD, **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text.encode())
    run(folder, "add", "-A")
    run(folder, "commit", "-q", "--allow-empty", "-m", "policy")
    return run(folder, "rev-parse", "HEAD")


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "repo.git"
    folder.mkdir()
    run(folder, "init", "-q")
    commit(folder)
    return folder


async def taken(folder: Path, path: str = os.environ["PATH"], **source: str) -> tuple[StoredPolicy, dict[str, bytes]]:
    """What one look takes, and its files."""
    settings_path = folder / "sidecar.yaml"
    lines = "".join(f"      {key}: {value}\n" for key, value in source.items())
    settings_path.write_text(f"version: 1\npolicy:\n  source:\n    git:\n{lines}")
    settings = load_settings(settings_path, {}, check_files=False)
    processes = Processes({"PATH": path})
    try:
        kept = await GitOrigin(time.time, processes).look(settings)
    finally:
        await processes.close()
    assert kept is not None
    root = StoredRevisions(settings).folder / kept.name
    return kept, {str(one.relative_to(root)): one.read_bytes() for one in root.rglob("*") if one.is_file()}


async def test_of_a_branch_and_a_tag_of_one_name_neither_is_guessed_and_both_can_be_meant(
    repo: Path, tmp_path: Path
) -> None:
    """Git takes the tag; who may push tags need not be who may push to the branch."""
    good = run(repo, "rev-parse", "HEAD")
    run(repo, "branch", "prod")
    evil = commit(repo, **{"policies/agent_to_tool.csv": ROW * 2})
    run(repo, "tag", "prod")
    with pytest.raises(SourceError, match=f"write {BRANCH} or {TAG}") as refused:
        await taken(tmp_path, url=f"file://{repo}", ref="prod")
    assert refused.value.refused
    for ref, expected in ((BRANCH, good), (TAG, evil)):
        assert (await taken(tmp_path, url=f"file://{repo}", ref=ref))[0].name == expected


async def test_what_was_committed_serves_byte_for_byte_whatever_attributes_say(repo: Path, tmp_path: Path) -> None:
    marked = "p, nhi:x, tool:a/b, use, -, -, -, allow # $Format:%H$ $Id$\n"
    attributes = "guardrails.csv export-ignore\nb.csv export-subst ident\nagent_to_tool.csv text eol=crlf\n"
    commit(repo, **{"policies/b.csv": marked, "policies/.gitattributes": attributes})
    _, files = await taken(tmp_path, url=f"file://{repo}")
    assert files == {
        "policies/agent_to_tool.csv": ROW.encode(),
        "policies/guardrails.csv": GUARD.encode(),
        "policies/b.csv": marked.encode(),
    }


async def test_from_a_folder_that_is_named_relatively_it_is_taken_too(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `sidecar serve` reads `sidecar.yaml` of its working folder, with the `data: data` that `init` writes."""
    monkeypatch.chdir(tmp_path)
    kept, files = await taken(Path(), url=f"file://{repo}")
    assert kept.name == run(repo, "rev-parse", "HEAD")
    assert files["policies/agent_to_tool.csv"] == ROW.encode()


async def test_rules_in_a_submodule_are_not_left_out_in_silence(repo: Path, tmp_path: Path) -> None:
    commit(repo, **{"policies/later/.gitkeep": ""})
    await taken(tmp_path, url=f"file://{repo}")
    run(repo, "update-index", "--add", "--cacheinfo", f"160000,{run(repo, 'rev-parse', 'HEAD')},policies/team")
    run(repo, "commit", "-q", "-m", "submodule")
    with pytest.raises(SourceError, match="policies/team' is a submodule"):
        await taken(tmp_path, url=f"file://{repo}")


async def test_a_small_repository_that_holds_a_large_archive_is_stopped(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git, "MAX_ON_DISK", 4 * 2**20)
    monkeypatch.setattr(git, "LOOK_AT_DISK_S", 0.001)
    commit(repo, **{"policies/0.csv": "#" * 2**20})
    blob = run(repo, "rev-parse", "HEAD:policies/0.csv")
    for name in ("a", "b"):  # a hundred files that are one
        tree = "".join(f"100644 blob {blob}\t{number}.csv\n" for number in range(100))
        made = run(repo, "mktree", said=tree)
        run(repo, "read-tree", f"--prefix=policies/{name}/", made)
    run(repo, "commit", "-q", "-m", "bomb")
    with pytest.raises(SourceError, match="larger than 4 MiB"):
        await taken(tmp_path, url=f"file://{repo}")


@dataclass
class GitServer:
    """`git http-backend` behind https. `sent` are the Authorization headers; `elsewhere` is where it sends us."""

    root: Path
    elsewhere: str = ""
    sent: list[str] = field(default_factory=list)
    url: str = ""

    async def serve(self, request: web.Request) -> web.Response:
        self.sent.append(request.headers.get("Authorization", ""))
        if self.elsewhere:
            raise web.HTTPFound(self.elsewhere + request.path_qs)
        env = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(self.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_CONFIG_NOSYSTEM": "1",
            "HOME": str(self.root),
            "PATH_INFO": request.path,
            "QUERY_STRING": request.query_string,
            "REQUEST_METHOD": request.method,
            "CONTENT_TYPE": request.headers.get("Content-Type", ""),
            "HTTP_CONTENT_ENCODING": request.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": request.headers.get("Git-Protocol", ""),
        }
        pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
        process = await asyncio.create_subprocess_exec("git", "http-backend", env=env, **pipes)
        said, _ = await process.communicate(await request.read())
        head, _, body = said.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        return web.Response(status=int(headers.pop("Status", "200")[:3]), body=body, headers=headers)


@asynccontextmanager
async def served(root: Path, certificate: Sequence[Path], elsewhere: str = "") -> AsyncIterator[GitServer]:
    server = GitServer(root, elsewhere)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", server.serve)
    runner = web.AppRunner(app, shutdown_timeout=0.1, auto_decompress=False)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    server.url = f"https://127.0.0.1:{runner.addresses[0][1]}/repo.git"
    try:
        yield server
    finally:
        await runner.cleanup()


async def test_over_https_it_shows_its_token_to_whom_it_trusts_and_follows_nobody_elsewhere(
    repo: Path, tmp_path: Path
) -> None:
    ours, strangers = authority("ours"), authority("strangers")
    (tmp_path / "ca.pem").write_text(ours.own.pem)
    (tmp_path / "token").write_text("s3cret\n")
    good = ours.issue(address="127.0.0.1").write(tmp_path, "good")
    amiss = {
        "strangers": strangers.issue(address="127.0.0.1").write(tmp_path, "strangers"),
        "another": ours.issue(address="127.0.0.2").write(tmp_path, "another"),
    }
    trust = {"ca_path": "ca.pem", "token_path": "token"}
    async with served(tmp_path, good) as server:
        kept, files = await taken(tmp_path, url=server.url, **trust)
        assert kept.name == run(repo, "rev-parse", "HEAD") and files["policies/guardrails.csv"] == GUARD.encode()
        assert set(server.sent) == {"Basic " + base64.b64encode(b"x-access-token:s3cret").decode()}
        heard = len(server.sent)
        async with served(tmp_path, good, elsewhere=server.url.removesuffix("/repo.git")) as redirecting:
            with pytest.raises(SourceError, match="returned error: 302"):
                await taken(tmp_path, url=redirecting.url, **trust)
            assert len(server.sent) == heard
    for certificate in amiss.values():
        async with served(tmp_path, certificate) as server:
            with pytest.raises(SourceError, match=r"(?i)certificate"):
                await taken(tmp_path, url=server.url, **trust)
            assert not server.sent, "nothing is said to a stranger"


async def test_over_ssh_only_the_key_that_is_named_is_shown_and_only_to_hosts_that_are_known(
    repo: Path, tmp_path: Path
) -> None:
    """What `ssh` is told, and that git speaks through it. That it does as it is told was tried with a real server."""
    (tmp_path / "bin").mkdir()
    told = tmp_path / "told"
    (tmp_path / "bin" / "ssh").write_text(
        f'#!/bin/sh\nprintf \'%s\\n\' "$@" > {shlex.quote(str(told))}\nfor last; do :; done\neval "exec $last"\n'
    )
    (tmp_path / "bin" / "ssh").chmod(0o700)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    files = {"ssh_key_path": "it's a key", "known_hosts_path": "known"}
    kept, _ = await taken(tmp_path, path, url=f"ssh://git@git.acme.example:2222{repo}", **files)
    assert kept.name == run(repo, "rev-parse", "HEAD")
    words = told.read_text().splitlines()
    options = {words[at + 1] for at, word in enumerate(words) if word == "-o"}
    assert words[:2] == ["-F", "none"] and words[words.index("-i") + 1] == str(tmp_path / "it's a key")
    assert options >= {
        "BatchMode=yes",
        "StrictHostKeyChecking=yes",
        "ForwardAgent=no",
        "IdentitiesOnly=yes",
        f"UserKnownHostsFile={tmp_path / 'known'}",
        "GlobalKnownHostsFile=/dev/null",
    }
    assert words[-2:] == ["git@git.acme.example", f"git-upload-pack '{repo}'"]


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (
            b"Host key verification failed.\r\nfatal: Could not read from remote repository.\n\n"
            b"Please make sure you have the correct access rights\nand the repository exists.\n",
            "Host key verification failed; fatal: Could not read from remote repository",
        ),
        (b"fatal: couldn't find remote ref x\n", "fatal: couldn't find remote ref x"),
        (b"error: one\nerror: \x1b[31mtwo\n", "error: one; error: [31mtwo"),
        (b"", ""),
    ],
)
def test_what_went_wrong_is_what_was_fatal(told: bytes, expected: str) -> None:
    assert _trouble(told) == expected


async def test_a_missing_git_says_how_to_get_it(repo: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"no program git is on PATH.*--target git"):
        await taken(tmp_path, path=str(tmp_path / "empty"), url=f"file://{repo}")
