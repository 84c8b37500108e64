"""Finds the models and rows that a command works on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, Field

from sidecar.errors import SettingsError, fault_in
from sidecar.limits import Budgets, load_budgets
from sidecar.limits.budgets import entries_of
from sidecar.limits.plan import BudgetRule
from sidecar.policy import PolicySource, load_policy
from sidecar.policy.source import NO_CASBIN, Models
from sidecar.settings.load import load_settings
from sidecar.settings.policy import CasbinSettings, PolicyScope, PolicySettings
from sidecar.settings.shipped_files import shipped
from sidecar.settings.sidecar_file import Settings
from sidecar.settings.yaml_document import read_document

POLICIES: Literal["policies"] = "policies"
MODELS: Literal["models"] = "models"
CONFIG: Final = "sidecar.yaml"
BUDGETS_FILE: Final = "budgets.yaml"


@dataclass(frozen=True, slots=True)
class PolicyLocation:
    """One policy on disk. `names` are the existing upstreams; None if they are unknown. `programs` are further agents,
    `offers` the limits of agents in sidecar.yaml, and `agent_ids` the names of agents by UUID. `config` is the
    sidecar.yaml that names the policy."""

    models: Models
    policies: Path
    scopes: Sequence[PolicyScope] = ()
    names: frozenset[str] | None = None
    programs: frozenset[str] = frozenset()
    offers: tuple[BudgetRule, ...] = ()
    agent_ids: Mapping[str, str] = field(default_factory=dict)
    casbin: CasbinSettings = NO_CASBIN
    config: Path | None = None

    @property
    def own_models(self) -> Path:
        """The folder of the models that decide kinds without a Casbin model of their own."""
        return self.models if isinstance(self.models, Path) else shipped(MODELS)

    def load(self) -> PolicySource:
        return load_policy(
            self.models,
            self.policies,
            scopes=self.scopes,
            names=self.names,
            agent_ids=self.agent_ids,
            casbin=self.casbin,
        )

    def budgets(self) -> Budgets:
        """Returns all limits other than those of rows, as they apply when this policy serves. Raises PolicyError for an
        invalid budgets.yaml."""
        return replace(load_budgets(self.policies / BUDGETS_FILE), offers=self.offers)


def configured(path: Path, environ: Mapping[str, str]) -> PolicyLocation:
    """Returns the policy that the sidecar.yaml at `path` names; if there is no such file, the policy in its folder.
    Raises SettingsError for invalid settings."""
    if not path.exists() and (path.parent / POLICIES).is_dir():
        return in_folder(path.parent)
    return replace(location_of(load_settings(path, environ, check_files=False)), config=path)


def location_of(settings: Settings) -> PolicyLocation:
    """Returns the policy that the settings name."""
    policy, offers = settings.policy, {name: offer for name, _, offer in settings.offers()}
    names, programs = frozenset(settings.upstreams), frozenset(settings.agents)
    limits = entries_of(offers)
    ids = settings.agent_ids
    return PolicyLocation(policy.models, policy.path, policy.scopes, names, programs, limits, ids, policy)


def in_folder(folder: Path) -> PolicyLocation:
    """Returns the policy in a folder with `policies/` and optionally `models/`, or in a folder of rows. A sidecar.yaml
    next to them has the settings of Casbin models. Raises SettingsError if the folder does not exist, or these settings
    are invalid."""
    if not folder.is_dir():
        raise SettingsError([fault_in(folder, "this folder does not exist", code="P001")])
    policies = folder / POLICIES if (folder / POLICIES).is_dir() else folder
    models = policies.parent / MODELS
    place = PolicyLocation(models if models.is_dir() else shipped(MODELS), policies)
    policy = _policy_beside(policies.parent)
    if policy is None:
        return place
    files = place.models if isinstance(policy.models, Path) else policy.models
    return replace(place, models=files, casbin=policy, config=policies.parent / CONFIG)


def files_named(folder: Path) -> list[Path]:
    """Returns the models and rows that a sidecar.yaml in this folder names one by one; none without that file. Raises
    SettingsError if it is invalid."""
    policy = _policy_beside(folder)
    return [] if policy is None else list(policy.files)


def _policy_beside(folder: Path) -> PolicySettings | None:
    config = folder / CONFIG
    if not config.is_file():
        return None
    return read_document(config, error=SettingsError).validate(_PolicyAlone, {"folder": folder}).policy


class _PolicyAlone(BaseModel):
    """The section of sidecar.yaml with the settings of Casbin models."""

    policy: PolicySettings = Field(default_factory=PolicySettings)
