"""Fetches a policy from a git ref.

The program `git` fetches one commit into a private bare repository and packs the wanted folder as a tar archive, which
is unpacked like any other archive. It is bounded in time and disk space, and runs with no configuration of the machine
or the user, no hooks, submodules, prompts or redirects, and no transport but the configured URL's.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import re
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sidecar.app.policy_sources.stored_revisions import GIT, SourceError, StoredRevisions, objection
from sidecar.app.policy_sources.tarball import members, write_member
from sidecar.errors import SettingsError
from sidecar.http.client import egress_from, parse_origin
from sidecar.http.tls import trusted_pem
from sidecar.settings.egress import EgressSettings
from sidecar.settings.policy import GitSource
from sidecar.settings.programs import executable_of
from sidecar.settings.secrets import read_secret
from sidecar.settings.sidecar_file import Settings
from sidecar.settings.stored_policy import StoredPolicy, kept_for
from sidecar.upstreams.processes.launcher import Processes, Program, StartFailed, output_of

MAX_SAID: Final = 64 * 1024
MAX_ON_DISK: Final = 256 * 2**20
LOOK_AT_DISK_S: Final = 0.25
TRUSTED: Final = "authorities.pem"
COMMIT: Final = re.compile("[0-9a-f]{40}([0-9a-f]{24})?")
CANDIDATE: Final = "refs/sidecar/policy"
AS_COMMITTED: Final = "* !export-ignore !export-subst -text !eol !ident !filter !working-tree-encoding\n"
"""Overrides the repository's own attributes, so that the archive holds the exact bytes that were reviewed."""
_INHERITED: Final = ("PATH", "TMPDIR", "SSH_AUTH_SOCK")
_SETTINGS: Final = (
    "core.hooksPath=/dev/null", "core.fsmonitor=false", "core.attributesFile=/dev/null", "credential.helper=",
    "gc.auto=0", "maintenance.auto=false", "http.followRedirects=false", "protocol.allow=never",
    "transfer.fsckObjects=true", "transfer.bundleURI=false", "gpg.format=ssh",
)  # fmt: skip


@dataclass(slots=True)
class GitOrigin:
    """A git ref. `_refused` maps refused commits, with the settings at that time, to the reasons."""

    clock: Callable[[], float]
    processes: Processes
    _refused: dict[tuple[str, GitSource], str] = field(default_factory=dict)
    _looked_at: tuple[str, GitSource] | None = None
    rest_s: float = 0.0

    async def look(self, settings: Settings) -> StoredPolicy | None:
        chosen = settings.policy.source.git if settings.policy.source else None
        assert chosen is not None
        try:
            async with asyncio.timeout(chosen.timeout_s):
                return await self._look(settings, chosen)
        except TimeoutError:
            raise SourceError(f"git took longer than {chosen.timeout_s:g} s") from None
        except OSError as error:
            raise SourceError(f"it cannot be stored: {error}") from None

    def refuse(self, why: str) -> None:
        if self._looked_at is not None:
            self._refused = {self._looked_at: why}

    def forget(self) -> None:
        self._refused = {}

    async def close(self) -> None:
        """No part of it runs between two polls."""

    async def _look(self, settings: Settings, chosen: GitSource) -> StoredPolicy | None:
        shelf, old = StoredRevisions(settings), await asyncio.to_thread(kept_for, settings)
        git = await _GitRunner.at(shelf.folder / GIT, chosen, settings.egress, self.processes)
        commit = await git.fetched()
        if old is not None and (old.kind, old.name, old.of) == ("git", commit, _of(chosen)):
            return None
        self._looked_at = (commit, chosen)
        if why := self._refused.get(self._looked_at):
            raise SourceError(why, refused=True)
        try:
            return await self._take(git, shelf, old, commit)
        except SourceError as error:
            if error.refused:
                self._refused = {self._looked_at: str(error)}
            raise

    async def _take(
        self, git: _GitRunner, shelf: StoredRevisions, old: StoredPolicy | None, commit: str
    ) -> StoredPolicy:
        signer = await git.signer(commit)
        made_at = int(await git.line("show", "--no-patch", "--format=%ct", commit))
        with shelf.aside() as made:
            packed = made / "packed.tar"
            await git.pack(commit, packed)
            root = made / "policy"
            size = await asyncio.to_thread(_unpacked, packed, root)
            new = StoredPolicy(commit, "git", _of(git.chosen), made_at, size, signer, float(made_at), self.clock())
            if why := objection(new, old, git.chosen.accept):
                raise SourceError(f"{why} (commit {commit})", refused=True)
            await asyncio.to_thread(shelf.name, root, commit)
            return new


def _of(chosen: GitSource) -> str:
    return f"{chosen.url}#{chosen.ref}:{chosen.path}"


def _unpacked(packed: Path, root: Path) -> int:
    """The total size of all files in bytes. Raises SourceError if there are no rules among them."""
    root.mkdir(mode=0o700)
    size = rules = 0
    with packed.open("rb") as archive:
        for member in members(archive, by_git=True):
            write_member(root, member)
            size += member.size
            rules += member.size if member.name.startswith("policies/") else 0
    if not rules:
        raise SourceError("it has no rules", refused=True)
    return size


@dataclass(frozen=True, slots=True)
class _GitRunner:
    program: str
    folder: Path
    env: Mapping[str, str]
    chosen: GitSource
    processes: Processes

    @classmethod
    async def at(cls, folder: Path, chosen: GitSource, egress: EgressSettings, processes: Processes) -> _GitRunner:
        """The repository for this URL, created if it is missing, which deletes those of other URLs. Raises
        SourceError."""
        program = executable_of("git", {}, processes.environ)
        if program is None:
            raise SourceError("no program git is on PATH: install it, or take the image with it (--target git)")
        own = folder / hashlib.sha256(chosen.url.encode()).hexdigest()[:16]
        trusted, env = await asyncio.to_thread(_environment, chosen, egress, own / TRUSTED, processes.environ)
        git = cls(program, own, env, chosen, processes)
        if not (own / "HEAD").is_file():
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            own.mkdir(parents=True, mode=0o700)
            await git.line("init", "--quiet", "--bare", str(own))
        (own / "info").mkdir(exist_ok=True)
        (own / "info" / "attributes").write_text(AS_COMMITTED, encoding="ascii")  # overrides those in the commit
        (own / TRUSTED).write_text(trusted, encoding="ascii")
        return git

    async def fetched(self) -> str:
        """Fetches the ref. Returns the id of its commit. Raises SourceError."""
        wanted = f"+{await self._whole_ref()}:{CANDIDATE}"
        options = ("--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules", "--no-auto-maintenance")
        await self.line("fetch", *options, "--", self.chosen.url, wanted)
        return await self.line("rev-parse", "--verify", "--quiet", f"{CANDIDATE}^{{commit}}")

    async def _whole_ref(self) -> str:
        """Returns the full ref of a short name. A name of both a branch and a tag is refused, because permissions to
        push them differ."""
        short = self.chosen.ref
        if short == "HEAD" or short.startswith("refs/") or COMMIT.fullmatch(short):
            return short
        branch, tag = f"refs/heads/{short}", f"refs/tags/{short}"
        listed = await self.line("ls-remote", "--quiet", "--", self.chosen.url, branch, tag)
        named = {line.partition("\t")[2] for line in listed.splitlines()}
        if {branch, tag} <= named:
            raise SourceError(f"there is a branch {short} and a tag {short}: write {branch} or {tag}", refused=True)
        return tag if tag in named else branch

    async def signer(self, commit: str) -> str:
        """The signer of the commit according to the operator's list; "" without a list. Raises SourceError."""
        if self.chosen.signers_path is None:
            return ""
        signers = ("-c", f"gpg.ssh.allowedSignersFile={self.chosen.signers_path.absolute()}")
        try:
            said = await self.line("show", "--no-patch", "--format=%G? %GS", commit, before=signers)
        except SourceError as error:
            raise SourceError("no allowed signer has signed the commit", refused=error.refused) from None
        verdict, _, signer = said.partition(" ")
        if verdict != "G" or not signer:
            raise SourceError("no allowed signer has signed the commit", refused=True)
        return signer

    async def pack(self, commit: str, packed: Path) -> None:
        top = f"{commit}:{self.chosen.path}" if self.chosen.path else f"{commit}^{{tree}}"
        try:
            listed = (await self.line("ls-tree", "-d", "--name-only", top)).split("\n")
        except SourceError:
            raise SourceError(f"there is no folder {self.chosen.path} in it", refused=True) from None
        wanted = [name for name in ("policies", "models") if name in listed]
        if "policies" not in wanted:
            raise SourceError("it has no folder policies/ there", refused=True)
        await self.line("archive", "--format=tar", f"--output={packed}", top, "--", *wanted, writes=packed)

    async def line(self, *arguments: str, before: Sequence[str] = (), writes: Path | None = None) -> str:
        """Runs git and returns its output. `writes` is a file that it writes outside its folder. Raises SourceError."""
        chosen = [*_SETTINGS, f"protocol.{self.chosen.url.partition(':')[0]}.allow=always"]
        if self.chosen.ca_path is not None:
            chosen.append(f"http.sslCAInfo={self.chosen.ca_path.absolute()}")
        argv = [self.program, *(word for one in chosen for word in ("-c", one)), *before]
        program = Program(self.program, [*argv, *arguments], self.env, str(self.folder))
        running = asyncio.create_task(output_of(self.processes, program, most=MAX_SAID))
        watch = asyncio.create_task(self._too_much_on_disk(writes))
        try:
            await asyncio.wait({running, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                raise SourceError(f"it is larger than {MAX_ON_DISK // 2**20} MiB", refused=True)
        finally:
            watch.cancel()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        try:
            said, told, ended = running.result()
        except StartFailed as error:
            raise SourceError(f"git cannot be started: {error}") from None
        if ended.code != 0:
            raise SourceError(f"git {arguments[0]} failed: {_trouble(told) or ended}")
        return said.decode("utf-8", "replace").strip()

    async def _too_much_on_disk(self, also: Path | None) -> None:
        """Returns when git uses too much disk space, because a small repository can contain a large archive."""
        while True:
            if await asyncio.to_thread(_bytes_under, self.folder, also) > MAX_ON_DISK:
                return
            await asyncio.sleep(LOOK_AT_DISK_S)


def _environment(
    chosen: GitSource, settings: EgressSettings, trusted_path: Path, environ: Mapping[str, str]
) -> tuple[str, Mapping[str, str]]:
    """The authorities (PEM) to write to `trusted_path`, and the environment of git. Raises SourceError."""
    ssh = ["ssh", "-F", "none", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-o", "ForwardAgent=no"]
    if chosen.ssh_key_path is not None:
        ssh += ["-o", "IdentitiesOnly=yes", "-i", shlex.quote(str(chosen.ssh_key_path.absolute()))]
    if chosen.known_hosts_path is not None:
        ssh += ["-o", f"UserKnownHostsFile={shlex.quote(str(chosen.known_hosts_path.absolute()))}"]
        ssh += ["-o", "GlobalKnownHostsFile=/dev/null"]
    env = {name: environ[name] for name in _INHERITED if name in environ}
    env |= {
        "HOME": "/nonexistent",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_SSH_COMMAND": " ".join(ssh),
        "LC_ALL": "C",
    }
    try:
        egress = egress_from(settings, environ)
        trusted = trusted_pem(egress.authorities)
        secret = "" if chosen.token_path is None else read_secret(chosen.token_path, "theirs")
    except SettingsError as error:
        raise SourceError(f"its files cannot be used: {error}") from None
    # Passed in the environment, which only this user can read; arguments are visible to all users.
    options = dict.fromkeys(("http.sslCAInfo", "http.proxySSLCAInfo"), str(trusted_path)) if trusted else {}
    if secret:
        basic = base64.b64encode(f"x-access-token:{secret}".encode()).decode()
        options[f"http.{chosen.url}.extraHeader"] = f"Authorization: Basic {basic}"
    if chosen.url.startswith("https://") and (proxy := egress.proxy_for(parse_origin(chosen.url))) is not None:
        options |= {"http.proxy": proxy.url_with_login, "http.proxyAuthMethod": "basic"}
    env["GIT_CONFIG_COUNT"] = str(len(options))
    for number, (key, value) in enumerate(options.items()):
        env |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return trusted, env


def _trouble(told: bytes) -> str:
    """The fatal error of git or of the `ssh` that it started, without the advice for interactive users."""
    lines = [line.strip() for line in told.decode("utf-8", "replace").splitlines() if line.strip()]
    fatal = next((at for at, line in enumerate(lines) if line.startswith("fatal:")), len(lines) - 1)
    said = "; ".join(line.rstrip(".") for line in lines[max(0, fatal - 2) : fatal + 1])
    return "".join(character for character in said if character.isprintable())[:300]


def _bytes_under(folder: Path, also: Path | None) -> int:
    files = [Path(root) / name for root, _, names in os.walk(folder) for name in names]
    total = 0
    for path in files if also is None else (*files, also):
        with suppress(OSError):
            total += path.lstat().st_size
    return total
