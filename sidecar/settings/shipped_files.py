"""Finds the models and policies that ship with the release."""

from pathlib import Path
from typing import Literal

_PACKAGE = Path(__file__).resolve().parents[1]


def shipped(name: Literal["models", "policies"]) -> Path:
    """The folder of that name in the installed package, or at the top of a source checkout."""
    installed = _PACKAGE / "_shipped" / name
    return installed if installed.is_dir() else _PACKAGE.parent / name
