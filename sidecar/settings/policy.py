"""Settings of models, rules, their sources, and enforcement."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from time import time
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Discriminator, Field, JsonValue, PrivateAttr, Tag, WithJsonSchema

from sidecar.settings.field_types import Many, PathField, Seconds, Section, Slug, Word, https_url, named, split_url
from sidecar.settings.timestamps import Moment, rfc3339
from sidecar.settings.uris import normal_object
from sidecar.settings.validation_errors import Finding, reject

_REF: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+-]{0,199}")
_INSIDE: Final = r"([A-Za-z0-9_][A-Za-z0-9_.+-]*(/[A-Za-z0-9_][A-Za-z0-9_.+-]*)*)?"
_SSH: Final = re.compile(r"ssh://(?:[A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]{1,5})?/[!-~]+")
_FILE: Final = re.compile(r"file:///[!-~]+")
_CLASS: Final = r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*[.:][A-Za-z_][A-Za-z0-9_]*"
_SECRET_NAME: Final = r"[A-Za-z_][A-Za-z0-9_]*"
SECRET_PLACE: Final = re.compile(rf"\$\{{({_SECRET_NAME})\}}")
"""The placeholder for the content of a secret's file in the arguments of an adapter."""
_DIGEST: Final = r"[0-9a-f]{40}([0-9a-f]{24})?"
_DIGEST_HINT: Final = "the SHA-256 that `sidecar policy bundle verify` prints, or a whole commit id"


def _git_url(text: str) -> str:
    if _SSH.fullmatch(text) or _FILE.fullmatch(text):
        return text
    split_url(text, "https")
    return text


def _ref(text: str) -> str:
    if not _REF.fullmatch(text) or ".." in text or "//" in text or text.endswith(("/", ".lock", ".")):
        reject("this is not a git ref", hint="a branch, a tag, or a whole commit id")
    return text


class _Source(Section):
    """The settings common to all policy sources."""

    every: Seconds = 30.0
    """Interval at which the sidecar checks the source. It also checks as soon as another replica has loaded a new
    version."""
    timeout_s: Seconds = 60.0
    """Maximum duration of one check."""
    accept: Annotated[str, named(_DIGEST, "digest", _DIGEST_HINT)] | None = None
    """SHA-256 of the bundle, or the commit, to accept even if it is older, another bundle of the same version, or less
    than half as large."""


class BundleSource(_Source):
    """A bundle: a signed archive of policy files at a URL."""

    url: Annotated[str, Field(max_length=2048), https_url("a bundle needs an https URL")]
    """URL of the bundle: https, or http on this machine. Redirects are not followed."""
    keys_path: PathField
    """File with the Ed25519 keys whose signatures are accepted, as a JWKS (`sidecar token keygen --algorithm EdDSA`) or
    PEM."""
    name: Slug = "policy"
    """Required name of the policy (`bundle build --name`). A bundle that was signed under another name is refused."""
    ca_path: PathField | None = None
    """PEM file with the authorities to trust for https, instead of those of the system."""
    bearer_path: PathField | None = None
    """File with a bearer token for the URL."""


class GitSource(_Source):
    """The files that a git ref names. The program `git` must be installed."""

    url: Annotated[str, Field(max_length=2048), AfterValidator(_git_url)]
    """URL of the repository: `https://`, `ssh://` or `file:///`."""
    ref: Annotated[str, AfterValidator(_ref)] = "refs/heads/main"
    """Branch, tag or commit. A short name that is both a branch and a tag is refused: write the full name."""
    path: Annotated[
        str, Field(max_length=512), named(_INSIDE, "folder of a repository", "such as teams/platform/policy")
    ] = ""
    """Folder of the repository that contains `policies/` and optionally `models/`. Default: the top folder."""
    signers_path: PathField | None = None
    """Allowed signers file (SSH). One of its keys must have signed the commit. Without it, everyone who can write the
    ref decides the policy."""
    ca_path: PathField | None = None
    """PEM file with the authorities to trust for https, instead of those of the system."""
    token_path: PathField | None = None
    """File with a token for https."""
    ssh_key_path: PathField | None = None
    """File with a private key for ssh. No other key is offered."""
    known_hosts_path: PathField | None = None
    """File with the keys of hosts for ssh. The sidecar does not connect to other hosts."""


_Argument = Annotated[JsonValue, WithJsonSchema({})]


class PythonClass(Section):
    """A class of an installed package, and its arguments."""

    name: Annotated[str, Field(max_length=256), named(_CLASS, "class", "write module.Class, or module:Class")] = Field(
        alias="class"
    )
    """Class, or function that returns the object: `casbin_sqlalchemy_adapter.Adapter`, or `module:Class`."""
    arguments: Annotated[
        Annotated[Many[_Argument], Tag("<list>")] | Annotated[Mapping[str, _Argument], Tag("<by name>")],
        Discriminator(lambda value: "<by name>" if isinstance(value, Mapping) else "<list>"),
    ] = ()
    """Arguments of the class: a list, or a mapping of keyword arguments. In a text, `${name}` is replaced by the secret
    of that name."""


class AdapterSource(PythonClass, _Source):
    """The rows of a pycasbin adapter, such as a database table. Models and the rest of the policy remain in the folders
    `models` and `path`."""

    every: Seconds = 0.5
    """Interval at which the sidecar reads the rows. It also reads them as soon as the watcher or another replica
    reports a change."""
    timeout_s: Seconds = 30.0
    """Maximum duration of one read."""
    accept: Annotated[str, named("[0-9a-f]{64}", "digest", "the SHA-256 that the refusal names")] | None = None
    """SHA-256 of the rows to accept even if they are half as many, or fewer."""
    secrets: Mapping[Annotated[str, named(_SECRET_NAME, "name", "letters, digits and underscores")], PathField] = Field(
        default_factory=dict
    )
    """Files with secrets, by the name that `arguments` use."""
    watcher: PythonClass | None = None
    """A pycasbin watcher that reports changes."""
    cwd: PathField = Field(default=".", validate_default=True)
    """Working folder, at which relative paths in arguments start. Default: the folder of `sidecar.yaml`."""

    def _faults(self) -> Iterator[Finding]:
        for at, arguments in (((), self.arguments), (("watcher",), self.watcher.arguments if self.watcher else ())):
            for name in sorted(_secrets_named(arguments) - set(self.secrets)):
                hint = f"write secrets: {{{name}: PATH}}"
                yield Finding(f"${{{name}}} is not defined under secrets", "Y103", hint, (*at, "arguments"))


def _secrets_named(value: object) -> set[str]:
    match value:
        case str():
            return set(SECRET_PLACE.findall(value))
        case Mapping():
            return {name for entry in value.values() for name in _secrets_named(entry)}
        case tuple() | list():
            return {name for entry in value for name in _secrets_named(entry)}
    return set()


class PolicySourceSettings(Section):
    """The source of models and rules, instead of `models` and `path`. An `adapter` supplies only the rows of
    `model.conf`."""

    bundle: BundleSource | None = None
    """A bundle: a signed archive of policy files."""
    git: GitSource | None = None
    """A git ref."""
    adapter: AdapterSource | None = None
    """A pycasbin adapter."""

    def _faults(self) -> Iterator[Finding]:
        if sum(one is not None for one in (self.bundle, self.git, self.adapter)) != 1:
            yield Finding("set exactly one source: bundle, git or adapter")

    @property
    def chosen(self) -> BundleSource | GitSource | AdapterSource:
        chosen = self.bundle or self.git or self.adapter
        assert chosen is not None
        return chosen

    @property
    def kind(self) -> str:
        return "bundle" if self.bundle is not None else "git" if self.git is not None else "adapter"


DAY_S = 86_400
MAX_SHADOW_S = 30 * DAY_S
"""Shadow mode must end, because no policy is enforced in it."""


class PolicyScope(Section):
    """What the rows of some files may name. A row outside of it is an error. An empty list permits nothing."""

    files: Word
    """Files, relative to the folder of the rules: `teams/payments/**`."""
    subjects: Many[Word] = ()
    """Subjects that their rows may name. `*` matches any run of characters."""
    objects: Many[Annotated[Word, AfterValidator(normal_object)]] = ()
    """Objects that their rows may name."""
    roles: Many[Word] = ()
    """Roles to which their rows may add members."""


Kind = Literal["user_to_nhi", "nhi_to_nhi", "agent_to_tool"]
MatchFunctionName = Literal[
    "keyMatch", "keyMatch2", "keyMatch3", "keyMatch4", "keyMatch5", "globMatch", "regexMatch", "ipMatch"
]


class ModelFiles(Section):
    """The Casbin model of one kind, and its rows."""

    model: PathField
    """File with the model (`.conf`)."""
    policy: Many[PathField]
    """Files with its rows (`.csv`): `p` and `g` rows of every type."""
    use: Annotated[int, Field(strict=True, ge=1, le=9)] = 1
    """Number of the definitions of the model to use: 2 for `r2`, `p2` and `m2`."""


CasbinText = Annotated[str, Field(max_length=512), named(r"[^\x00-\x1f\x7f]+", "value", "printable characters")]


class ObjectTarget(Section):
    """The object and the action in a Casbin policy."""

    obj: CasbinText
    """Object."""
    act: CasbinText
    """Action, regardless of the action of the request."""


_SAME: Final[Mapping[str, str]] = {"*": "*"}
_Target = Annotated[
    Annotated[CasbinText, Tag("<object>")] | Annotated[ObjectTarget, Tag("<object and action>")],
    Discriminator(lambda value: "<object>" if isinstance(value, str) else "<object and action>"),
]


class CasbinNames(Section):
    """Map from the sidecar's names, exact or as patterns, to names in a Casbin policy. The first entry that matches
    applies. In a value, `*` is the text that the first `*` matched, and `*2` that of the second. Names without an entry
    are denied."""

    subjects: Mapping[Word, CasbinText] = _SAME
    """Principals: `"user:*": "*"`."""
    objects: Mapping[Word, _Target] = _SAME
    """Tools, prompts, resources and agents: `"tool:data/*": "/data/*"`, `"tool:*/*": {obj: "*", act: "*2"}`."""
    actions: Mapping[Word, CasbinText] = _SAME
    """Actions: `tools/call: read`."""
    domains: Mapping[Word, CasbinText] = _SAME
    """Namespaces of principals. `-` stands for none."""
    roles: Mapping[Word, CasbinText] = _SAME
    """Roles that tokens grant: `"role:*": "*"`."""


class RoleFunctions(Section):
    """The functions that a Casbin program sets in code for a role definition."""

    match: MatchFunctionName | None = None
    """Function that matches names with patterns in its rows (`add_named_matching_func`)."""
    match_domain: MatchFunctionName | None = None
    """Function that matches domains (`add_named_domain_matching_func`)."""
    condition: Literal["timeMatch"] | None = None
    """Condition of links with parameters (`add_named_link_condition_func`)."""


_REQUEST_KEY: Final = r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?"
_REQUEST_PATH: Final = r"(principal|origin|object|call|args)(\.[A-Za-z_][A-Za-z0-9_-]*)+"
_REQUEST_HINT: Final = "principal.<attribute>, origin.<attribute>, object.<attribute>, call.<field> or args.<name>"


class CasbinSettings(Section):
    """How the sidecar evaluates Casbin models other than its own."""

    names: CasbinNames = Field(default_factory=CasbinNames)
    """Map from the sidecar's names to names in the rows of Casbin models."""
    roles: Mapping[Annotated[str, named("g[0-9]*", "role definition", "g, g2, g3 and so on")], RoleFunctions] = Field(
        default_factory=dict
    )
    """Matching functions and conditions of role definitions."""
    request: Mapping[
        Annotated[str, named(_REQUEST_KEY, "value of a request", "a field, or an attribute of one: sub.Age")],
        Annotated[str, named(_REQUEST_PATH, "path", _REQUEST_HINT)],
    ] = Field(default_factory=dict)
    """Fields of a request other than subject, domain, object and action, and attributes from arguments: `obj.Owner:
    args.owner`."""
    default: Literal["deny", "allow"] = "deny"
    """`allow` permits models that allow every request that no row denies (`!some(where (p.eft == deny))`)."""
    engine: Literal["compiled", "casbin", "both"] = "compiled"
    """Engine that decides. `compiled`: the sidecar's compiled matchers, with pycasbin only for models that are not
    compiled. `casbin`: always pycasbin. `both`: both engines; calls on which they differ are refused."""
    casbin_max_rows: Annotated[int, Field(strict=True, ge=1, le=100_000)] = 1_000
    """Maximum number of rows of one kind that pycasbin may evaluate. A row takes up to 20 µs (80 µs with `eval`),
    during which calls wait."""

    _rows: Path | None = PrivateAttr(default=None)

    @property
    def rows(self) -> Path | None:
        """The file with the rows from an adapter; None without an adapter."""
        return self._rows

    def with_rows(self, path: Path) -> Self:
        """These settings with the file of the rows from an adapter."""
        policy = self.model_copy()
        policy._rows = path
        return policy


class PolicySettings(CasbinSettings):
    """Location and evaluation of the policy."""

    models: Annotated[
        Annotated[PathField, Tag("<folder>")] | Annotated[Mapping[Kind, ModelFiles], Tag("<files>")],
        Discriminator(lambda value: "<files>" if isinstance(value, Mapping) else "<folder>"),
    ] = Field(default="models", validate_default=True)
    """Folder of the Casbin models: one for each permission kind, or `model.conf` for all. Or a map from kinds to a
    model and its rows. A kind without a model uses the model that comes with the sidecar."""
    path: PathField = Field(default="policies", validate_default=True)
    """Folder of the rules."""
    source: PolicySourceSettings | None = None
    """Source of models and rules outside of local folders: a bundle or a git ref; or a pycasbin adapter, for rows
    only."""
    mode: Literal["enforce", "shadow"] = "enforce"
    """`shadow` forwards calls that policy or a limit would refuse, and records the refusal, until `shadow_until`."""
    shadow_until: Moment | None = None
    """End of shadow mode, at most 30 days ahead. From then on, policy is enforced, with or without a restart."""
    self_test: Annotated[bool, Field(strict=True)] = True
    """Whether to run the policy tests under `path` before a policy is activated. A policy that fails its own tests is
    not activated."""
    watch: Annotated[bool, Field(strict=True)] = True
    """Whether to reload when files change. If not, reload with SIGHUP or `POST /api/reload`."""
    scopes: Many[PolicyScope] = ()
    """What the files of a folder may contain. A file that no scope names may contain anything."""

    @property
    def is_fetched(self) -> bool:
        """Whether models and all rules come from a source."""
        return self.source is not None and self.source.adapter is None

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders in which operators edit models and rules; none if a source has them."""
        if self.is_fetched:
            return ()
        return (self.models, self.path) if isinstance(self.models, Path) else (self.path,)

    @property
    def files(self) -> tuple[Path, ...]:
        """The files of models and rows that `models` names."""
        if isinstance(self.models, Path):
            return ()
        named = (path for files in self.models.values() for path in (files.model, *files.policy))
        return tuple(dict.fromkeys(named))

    def _faults(self) -> Iterator[Finding]:
        if self.source is not None and self.source.adapter is not None and not isinstance(self.models, Path):
            hint = "name a folder with model.conf, which decides every kind that has no model there"
            yield Finding("an adapter supplies the rows of model.conf only", "S160", hint, ("models",))
        for name in ("models", "path") if self.is_fetched else ():
            if name in self.model_fields_set:
                hint = "remove it, or policy.source, which contains policies/ and optionally models/"
                yield Finding("models and rules come from policy.source", "S160", hint, (name,))
        if self.mode == "shadow" and self.shadow_until is None:
            two_weeks = rfc3339((time() // DAY_S + 14) * DAY_S)
            hint = f"write its end, at most 30 days ahead: shadow_until: {two_weeks}"
            yield Finding('shadow mode needs the key "shadow_until"', "S140", hint, ("mode",))
        elif self.mode == "shadow" and self.shadow_until is not None and self.shadow_until > time() + MAX_SHADOW_S:
            yield Finding("shadow mode lasts 30 days at most", "S141", "choose an earlier time", ("shadow_until",))
