"""Runs Helm's own library, in the environment that has it: reads one JSON request from standard input.

{"values": {…}}       {"manifests": {template: text}} or {"error": text}
{"lint": true, …}     the messages of `helm lint --strict`
{"package": folder}   {"path": archive}
"""

import json
import sys

import helm_python  # type: ignore[import-not-found,unused-ignore]


def main(chart: str) -> None:
    request = json.load(sys.stdin)
    values = request.get("values") or {}
    try:
        if request.get("lint"):
            answer = helm_python.lint(chart, values, strict=True, namespace="agents", kube_version="v1.33.0")
        elif folder := request.get("package"):
            answer = {"path": helm_python.package(chart, destination=folder)}
        else:
            with helm_python.Chart.load(chart) as loaded:
                loaded.validate_schema(values)
                answer = {"manifests": loaded.render(values, name="sidecar", namespace="agents")}
    except helm_python.HelmError as error:
        answer = {"error": str(error)}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
