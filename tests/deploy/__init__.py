"""Holds what stands under deploy/, and the Dockerfile, against the tools of their makers: `make deploy-check`."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
TOOLS = ROOT / ".venv-deploy" / "bin"
