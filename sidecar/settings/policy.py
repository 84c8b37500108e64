"""Settings of models, rules and enforcement."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from time import time
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from sidecar.settings.field_types import Many, PathField, Section, Word
from sidecar.settings.sources import PolicySourceSettings
from sidecar.settings.timestamps import Moment, rfc3339
from sidecar.settings.uris import normal_object
from sidecar.settings.validation_errors import Finding

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
