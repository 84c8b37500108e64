"""Where do the models and the rules lie, and are they in force?"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from sidecar.settings.fields import Many, PathField, Section, Word, not_yet


class PolicyScope(Section):
    """What some files may say: a row outside is an error. An empty list permits nothing."""

    files: Word
    """Which files, from the folder of the rules: `teams/payments/**`."""
    subjects: Many[Word] = ()
    """Subjects that their rows may name; `*` matches any run of characters."""
    objects: Many[Word] = ()
    """Objects that their rows may name."""
    roles: Many[Word] = ()
    """Roles that their rows may fill."""


class PolicySettings(Section):
    """Policy as code."""

    models: PathField = Field(default="models", validate_default=True)
    """Folder of the Casbin models, one per permission kind."""
    path: PathField = Field(default="policies", validate_default=True)
    """Folder of the rules."""
    mode: Annotated[Literal["enforce", "shadow"], not_yet("shadow mode", "shadow")] = "enforce"
    """`enforce`. `shadow` is not supported by this version."""
    self_test: Annotated[bool, Field(strict=True), not_yet("self_test", True)] = False
    """Run the policy tests before a policy is taken into use. Not supported by this version."""
    shadow_until: Annotated[Word | None, not_yet("shadow mode")] = None
    """When shadow mode ends. Not supported by this version."""
    scopes: Many[PolicyScope] = ()
    """What the files of a folder may say; a file that no scope names may say anything."""
