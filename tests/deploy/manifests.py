"""Renders the chart into plain manifests: `make manifests` writes deploy/kubernetes/*.yaml."""

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.deploy import DEPLOY, TOOLS

CHART = DEPLOY / "helm" / "sidecar"
MANIFESTS = DEPLOY / "kubernetes"
VALUES = MANIFESTS / "values"
NAMES = ("gateway", "agent")
HEAD = """\
# Rendered from deploy/helm/sidecar with the values in values/{name}.yaml, by `make manifests`. Change those
# values, not this file. Without Helm: kubectl create namespace agents, then kubectl apply -f this file.
"""
_OF_HELM = re.compile(r"^ *(app\.kubernetes\.io/managed-by|helm\.sh/chart): .*\n", re.MULTILINE)


def helm(**request: Any) -> Any:
    """What Helm's library answers."""
    command = [str(TOOLS / "python"), str(Path(__file__).with_name("helm.py")), str(CHART)]
    done = subprocess.run(command, input=json.dumps(request), capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


def values_of(name: str) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load((VALUES / f"{name}.yaml").read_text())
    return values


def rendered(values: Mapping[str, Any]) -> dict[str, str]:
    """Template name → its manifests. Those that render to nothing are left out."""
    manifests = helm(values=values)["manifests"]
    named = {path.rpartition("/")[2]: text for path, text in manifests.items() if path.endswith(".yaml")}
    return {name: text for name, text in sorted(named.items()) if any(yaml.safe_load_all(text))}


def manifest(name: str) -> str:
    """The text of deploy/kubernetes/<name>.yaml."""
    parts = (_OF_HELM.sub("", text).strip("\n") for text in rendered(values_of(name)).values())
    return HEAD.format(name=name) + "".join(f"---\n{part}\n" for part in parts)


def main() -> None:
    for name in NAMES:
        (MANIFESTS / f"{name}.yaml").write_text(manifest(name))


if __name__ == "__main__":
    main()
