"""Settings of models, rules, their sources, and enforcement."""

import re
from collections.abc import Iterator
from pathlib import Path
from time import time
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from sidecar.settings.field_types import Many, PathField, Seconds, Section, Slug, Word, https_url, named, split_url
from sidecar.settings.timestamps import Moment, rfc3339
from sidecar.settings.uris import normal_object
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


DAY_S = 86_400
MAX_SHADOW_S = 30 * DAY_S
"""Shadow mode must end: without an end there would be no policy at all (CONTRACT 4)."""


class PolicyScope(Section):
    """What some files may say: a row outside is an error. An empty list permits nothing."""

    files: Word
    """Which files, from the folder of the rules: `teams/payments/**`."""
    subjects: Many[Word] = ()
    """Subjects that their rows may name; `*` matches any run of characters."""
    objects: Many[Annotated[Word, AfterValidator(normal_object)]] = ()
    """Objects that their rows may name."""
    roles: Many[Word] = ()
    """Roles that their rows may fill."""


class PolicySettings(Section):
    """Policy as code."""

    models: PathField = Field(default="models", validate_default=True)
    """Folder of the Casbin models, one per permission kind."""
    path: PathField = Field(default="policies", validate_default=True)
    """Folder of the rules."""
    source: PolicySourceSettings | None = None
    """Where both come from that lie in no folder of this machine: a signed bundle, or a git ref."""
    mode: Literal["enforce", "shadow"] = "enforce"
    """`shadow`: what policy or a limit would refuse is recorded and let pass, until `shadow_until`."""
    shadow_until: Moment | None = None
    """When shadow mode ends and policy is enforced, with or without a restart: at most 30 days ahead."""
    self_test: Annotated[bool, Field(strict=True)] = True
    """Run the policy tests under `path` before a policy is taken into use; one that fails its own tests is not."""
    watch: Annotated[bool, Field(strict=True)] = True
    """Reload when the files change. Without it: SIGHUP, or `POST /api/reload`."""
    scopes: Many[PolicyScope] = ()
    """What the files of a folder may say; a file that no scope names may say anything."""

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders in which operators edit models and rules. A policy from a source changes only with its source."""
        return () if self.source is not None else (self.models, self.path)

    def _faults(self) -> Iterator[Finding]:
        for name in ("models", "path") if self.source is not None else ():
            if name in self.model_fields_set:
                hint = "remove it, or the source; a source holds policies/, and models/ or the shipped ones"
                yield Finding("models and rules come from policy.source", "S160", hint, (name,))
        if self.mode == "shadow" and self.shadow_until is None:
            two_weeks = rfc3339((time() // DAY_S + 14) * DAY_S)
            hint = f"write when it ends, at most 30 days ahead: shadow_until: {two_weeks}"
            yield Finding('shadow mode needs the key "shadow_until"', "S140", hint, ("mode",))
        elif self.mode == "shadow" and self.shadow_until is not None and self.shadow_until > time() + MAX_SHADOW_S:
            yield Finding("shadow mode lasts 30 days at most", "S141", "choose an earlier time", ("shadow_until",))
