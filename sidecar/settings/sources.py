"""Settings of policy sources: git and signed bundles."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from sidecar.settings.field_types import PathField, Seconds, Section, Slug, https_url, named, split_url
from sidecar.settings.validation_errors import Finding, reject

_REF: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+-]{0,199}")
_INSIDE: Final = r"([A-Za-z0-9_][A-Za-z0-9_.+-]*(/[A-Za-z0-9_][A-Za-z0-9_.+-]*)*)?"
_SSH: Final = re.compile(r"ssh://(?:[A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]{1,5})?/[!-~]+")
_FILE: Final = re.compile(r"file:///[!-~]+")
_DIGEST: Final = r"[0-9a-f]{40}([0-9a-f]{24})?"
_DIGEST_HINT: Final = "the SHA-256 that `sidecar policy bundle verify` prints, or a whole commit id"


def _git_url(text: str) -> str:
    if _SSH.fullmatch(text) or _FILE.fullmatch(text):
        return text
    split_url(text, "https")
    return text


def _ref(text: str) -> str:
    if not _REF.fullmatch(text) or ".." in text or "//" in text or text.endswith(("/", ".lock", ".")):
        reject("this is no git ref", hint="a branch, a tag, or a whole commit id")
    return text


class _Source(Section):
    """The settings common to all policy sources."""

    every: Seconds = 30.0
    """How often it is looked at; also as soon as another replica has loaded something new."""
    timeout_s: Seconds = 60.0
    """How long one look may take."""
    accept: Annotated[str, named(_DIGEST, "digest", _DIGEST_HINT)] | None = None
    """The one bundle (its SHA-256) or commit that is taken although it is older, or less than half as large."""


class BundleSource(_Source):
    """A policy in one signed file, at an address."""

    url: Annotated[str, Field(max_length=2048), https_url("bundles are fetched over https only")]
    """Where it lies: https, or http on this machine. No redirect is followed."""
    keys_path: PathField
    """Who may vouch for it: Ed25519 keys, as a JWKS (`sidecar token keygen --algorithm EdDSA`) or PEM."""
    name: Slug = "policy"
    """Whose policy it must be (`build --name`): one that was signed for another place is not taken here."""
    ca_path: PathField | None = None
    """Certificates to trust instead of the system's."""
    bearer_path: PathField | None = None
    """A token that the address wants to see."""


class GitSource(_Source):
    """The files that a git ref names. Needs the program `git`."""

    url: Annotated[str, Field(max_length=2048), AfterValidator(_git_url)]
    """The repository: https://, ssh:// or file:///."""
    ref: Annotated[str, AfterValidator(_ref)] = "refs/heads/main"
    """A branch, a tag, or a commit. A short name that is both a branch's and a tag's is refused: write all of it."""
    path: Annotated[
        str, Field(max_length=512), named(_INSIDE, "folder of a repository", "such as teams/platform/policy")
    ] = ""
    """The folder in it that holds `policies/` and perhaps `models/`; by default its top."""
    signers_path: PathField | None = None
    """Who must have signed the commit: an allowed signers file (SSH). Without it, every writer of the ref decides."""
    ca_path: PathField | None = None
    """Certificates to trust for https instead of the system's."""
    token_path: PathField | None = None
    """A token for https."""
    ssh_key_path: PathField | None = None
    """A private key for ssh. No other is offered."""
    known_hosts_path: PathField | None = None
    """The keys of hosts for ssh; a host that is not in it is not talked to."""


class PolicySourceSettings(Section):
    """Where models and rules come from, instead of `models` and `path`."""

    bundle: BundleSource | None = None
    """A signed file at an address."""
    git: GitSource | None = None
    """A git ref."""

    def _faults(self) -> Iterator[Finding]:
        if (self.bundle is None) is (self.git is None):
            yield Finding("a policy comes from one source: bundle or git")

    @property
    def chosen(self) -> BundleSource | GitSource:
        chosen = self.bundle or self.git
        assert chosen is not None
        return chosen

    @property
    def kind(self) -> str:
        return "git" if self.bundle is None else "bundle"
