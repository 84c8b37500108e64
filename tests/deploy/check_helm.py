"""The chart renders, with Helm's own library, into what Kubernetes takes and a sidecar serves from."""

import asyncio
import os
import re
import secrets
import signal
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from sidecar import __version__
from sidecar.cli.free_ports import free_ports
from tests.deploy import DEPLOY, TOOLS
from tests.deploy.manifests import CHART, MANIFESTS, NAMES, helm, manifest, rendered, values_of
from tests.flow.world import PATIENCE_S, PATIENT

pytestmark = pytest.mark.skipif(not TOOLS.exists(), reason="no tools: make deploy-check")
OLDEST, NEWEST = "1.29", "1.37"
CUSTOM = "monitoring.coreos.com/v1"  # of the Prometheus operator: Kubernetes has no schema for it
EVERYTHING = {
    "tls": {"secret": "gw-tls"},
    "grpc": {"enabled": True},
    "autoscaling": {"enabled": True},
    "persistence": {"enabled": False},
    "serviceMonitor": {"enabled": True},
    "prometheusRule": {"enabled": True},
    "dashboards": {"enabled": True},
    "podAnnotations": {"a.example/b": "c"},
    "serviceAccount": {"annotations": {"a.example/b": "c"}},
    "service": {"annotations": {"a.example/b": "c"}},
    "imagePullSecrets": [{"name": "pull"}],
    "priorityClassName": "high",
    "image": {"digest": f"sha256:{'0' * 64}"},
    "env": [{"name": "SIDECAR_LIMITS", "value": "x"}],
    "envFrom": [{"secretRef": {"name": "more"}}],
    "nodeSelector": {"kubernetes.io/arch": "arm64"},
    "tolerations": [{"key": "agents", "operator": "Exists"}],
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
    ],
    "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
    "extraVolumeMounts": [{"name": "ca", "mountPath": "/etc/ca"}],
}


def objects(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [one for text in rendered(values).values() for one in yaml.safe_load_all(text) if one]


def of_kind(found: list[dict[str, Any]], *kinds: str) -> list[dict[str, Any]]:
    return [one for one in found if one["kind"] in kinds]


def workload(found: list[dict[str, Any]]) -> dict[str, Any]:
    (one,) = of_kind(found, "Deployment", "StatefulSet")
    return one


def test_the_chart_passes_its_linter() -> None:
    for values in ({}, *map(values_of, NAMES), {**values_of("gateway"), **EVERYTHING}):
        found = helm(lint=True, values=values)
        assert found["errors"] == []
        assert {one["error"] for one in found["messages"]} <= {"icon is recommended"}


def test_the_chart_has_the_version_of_the_sidecar() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__


@pytest.mark.parametrize("name", NAMES)
def test_the_plain_manifests_are_current(name: str) -> None:
    assert (MANIFESTS / f"{name}.yaml").read_text() == manifest(name), "make manifests"


def test_kubernetes_takes_what_is_rendered(tmp_path: Path) -> None:
    variants = {
        **{name: values_of(name) for name in NAMES},
        "all": {**values_of("gateway"), **EVERYTHING},
        "agent-all": {**values_of("agent"), **EVERYTHING, "autoscaling": {"enabled": False}},
    }
    count = 0
    for name, values in variants.items():
        known = [one for one in objects(values) if one["apiVersion"] != CUSTOM]
        count += len(known)
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump_all(known))
    for version in (OLDEST, NEWEST):
        command = [str(TOOLS / "kubernetes-validate"), "--strict", "-k", version, *map(str, tmp_path.iterdir())]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        said = done.stdout + done.stderr
        assert (done.returncode, said.count(" passed for resource ")) == (0, count), said


def test_a_wrong_manifest_is_noticed(tmp_path: Path) -> None:
    broken = workload(objects(values_of("gateway")))
    broken["spec"]["template"]["spec"]["containers"][0]["securityContexts"] = {}
    (tmp_path / "broken.yaml").write_text(yaml.safe_dump(broken))
    command = [str(TOOLS / "kubernetes-validate"), "--strict", "-k", NEWEST, str(tmp_path / "broken.yaml")]
    assert subprocess.run(command, capture_output=True, timeout=60).returncode != 0


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"replicas": 2}, "additional properties 'replicas' not allowed"),
        ({"replicaCount": 2}, "set storeUrl.secret, or config.store.url"),
        ({**values_of("agent"), "replicaCount": 2}, "set storeUrl.secret, or config.store.url"),
        ({"autoscaling": {"enabled": True}}, "set storeUrl.secret, or config.store.url"),
        ({"drainDelaySeconds": 4}, "shorter than the 5 s that the readiness probe takes"),
        ({"mode": "agent"}, "mode agent needs agent.image and agent.principal"),
        ({"mode": "beside"}, "mode"),
        ({"agent": {"principal": "user:alice"}}, "principal"),
        ({"files": {"../policies/a.csv": ""}}, "propert"),
        ({"image": {"digest": "latest"}}, "digest"),
        ({"networkPolicy": {"servers": [{"name": "notes", "podSelector": {}, "ports": [1]}]}}, "podSelector"),
    ],
)
def test_values_that_cannot_work_are_refused(values: dict[str, Any], error: str) -> None:
    assert error in helm(values=values)["error"]


@pytest.mark.parametrize("name", NAMES)
def test_the_pods_run_without_privileges_and_end_in_time(name: str) -> None:
    for values in (values_of(name), {**values_of(name), "persistence": {"enabled": False}}):
        spec = workload(objects(values))["spec"]["template"]["spec"]
        (container,) = (one for one in spec["containers"] + spec.get("initContainers", []) if one["name"] == "sidecar")
        confined = container["securityContext"]
        assert confined["runAsNonRoot"] and confined["readOnlyRootFilesystem"]
        assert (confined["runAsUser"], confined["allowPrivilegeEscalation"]) == (65532, False)
        assert confined["capabilities"] == {"drop": ["ALL"]}
        assert confined["seccompProfile"] == {"type": "RuntimeDefault"} == spec["securityContext"]["seccompProfile"]
        assert spec["automountServiceAccountToken"] is False
        config = settings_of(objects(values))["server"]
        takes_s = config.get("drain_delay_s", 0) + config["shutdown_grace_s"]
        assert spec["terminationGracePeriodSeconds"] >= takes_s + 10
        writable = {one["mountPath"] for one in container["volumeMounts"] if not one.get("readOnly")}
        assert writable == {"/var/lib/sidecar", "/tmp"}
    if name == "agent":
        assert container["restartPolicy"] == "Always" and spec["initContainers"] == [container]


def test_only_the_sidecar_reaches_the_servers() -> None:
    for name in NAMES:
        found = objects(values_of(name))
        policies = of_kind(found, "NetworkPolicy")
        ours = workload(found)["spec"]["template"]["metadata"]["labels"]
        server, other = {"app": "notes"}, {"app": "planner"}
        assert admitted(policies, ("agents", ours), ("tools", server), 9100)
        assert not admitted(policies, ("agents", ours), ("tools", server), 9101)
        assert not admitted(policies, ("agents", other), ("tools", server), 9100)
        assert not admitted(policies, ("tools", ours), ("tools", server), 9100), "another namespace, the same labels"
        assert admitted(policies, ("agents", other), ("agents", ours), "http") is (name == "gateway")
        assert admitted(policies, ("monitoring", other), ("agents", ours), "metrics")
        assert not admitted(policies, ("monitoring", other), ("agents", ours), "http")


def test_prometheus_finds_the_metrics_the_rules_and_the_dashboards() -> None:
    found = objects({**values_of("gateway"), **EVERYTHING})
    (monitor,), (rule,) = of_kind(found, "ServiceMonitor"), of_kind(found, "PrometheusRule")
    (service,) = (one for one in of_kind(found, "Service") if one["spec"].get("clusterIP") == "None")
    assert selects(monitor["spec"]["selector"], service["metadata"]["labels"])
    assert monitor["spec"]["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    files = sorted((DEPLOY / "prometheus" / "rules").glob("*.yml"))
    assert rule["spec"]["groups"] == [group for path in files for group in yaml.safe_load(path.read_text())["groups"]]
    (dashboards,) = (one for one in of_kind(found, "ConfigMap") if one["metadata"]["name"].endswith("-dashboards"))
    files = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
    assert len(files) >= 4 and dashboards["data"] == {path.name: path.read_text() for path in files}
    assert sum(map(len, dashboards["data"].values())) < 900_000, "a ConfigMap holds 1 MiB"


def admitted(
    policies: list[dict[str, Any]],
    source: tuple[str, Mapping[str, str]],
    target: tuple[str, Mapping[str, str]],
    port: int | str,
) -> bool:
    """Whether a pod's ingress is open to another: it is if no policy selects it, or one that does admits the other."""
    selecting = [
        one
        for one in policies
        if one["metadata"]["namespace"] == target[0]
        and "Ingress" in one["spec"]["policyTypes"]
        and selects(one["spec"]["podSelector"], target[1])
    ]
    rules = [rule for one in selecting for rule in one["spec"].get("ingress", []) if {"port": port} in rule["ports"]]
    return not selecting or any(is_peer(peer, source, target[0]) for rule in rules for peer in rule["from"])


def is_peer(peer: Mapping[str, Any], source: tuple[str, Mapping[str, str]], namespace: str) -> bool:
    home = peer.get("namespaceSelector")
    at_home = source[0] == namespace if home is None else selects(home, {"kubernetes.io/metadata.name": source[0]})
    return at_home and selects(peer.get("podSelector", {}), source[1])


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    assert set(selector) <= {"matchLabels"}
    wanted: Mapping[str, str] = selector.get("matchLabels", {})
    return wanted.items() <= labels.items()


# --- what the kubelet would mount and probe ---------------------------------------------------------------------------


def settings_of(found: list[dict[str, Any]]) -> dict[str, Any]:
    (config,) = (one for one in of_kind(found, "ConfigMap") if "sidecar.yaml" in one["data"])
    settings: dict[str, Any] = yaml.safe_load(config["data"]["sidecar.yaml"])
    return settings


def mount(folder: Path, found: list[dict[str, Any]], version: int) -> Path:
    """Writes the projected volume as the kubelet does: files in a folder of their own, `..data` that leads there, and
    links beside it. Returns the path of sidecar.yaml."""
    (config,) = (one for one in of_kind(found, "ConfigMap") if "sidecar.yaml" in one["data"])
    (volume,) = (one for one in workload(found)["spec"]["template"]["spec"]["volumes"] if one["name"] == "config")
    real = folder / f"..2026_{version}"
    for source in volume["projected"]["sources"]:
        for kind, one in source.items():
            assert kind == "secret" or one["name"] == config["metadata"]["name"]
            for item in one["items"]:
                path = real / item["path"]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(config["data"][item["key"]] if kind == "configMap" else secrets.token_hex(32))
                path.chmod(volume["projected"]["defaultMode"])
    (folder / "..data.new").symlink_to(real.name)
    (folder / "..data.new").replace(folder / "..data")
    for path in real.iterdir():
        if not (folder / path.name).is_symlink():
            (folder / path.name).symlink_to(f"..data/{path.name}")
    return folder / "sidecar.yaml"


def on_loopback(folder: Path, port: int) -> dict[str, str]:
    """The places of the pod, where this machine has them."""
    return {**os.environ, **PATIENT, "SIDECAR_DATA": str(folder), "SIDECAR_METRICS__LISTEN": f"127.0.0.1:{port}"}


def test_a_gateway_accepts_its_files(tmp_path: Path) -> None:
    for number, more in enumerate(({}, {"publicUrl": "", "replicaCount": 1}, {"grpc": {"enabled": True}})):
        folder = tmp_path / str(number)
        folder.mkdir()
        config = mount(folder, objects({**values_of("gateway"), **more}), 1)
        environ = {**on_loopback(tmp_path / "data", 9091), "SIDECAR_STORE__URL": "redis://valkey:6379/0"}
        command = [sys.executable, "-m", "sidecar", "check", "-c", str(config)]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "S138" not in done.stdout + done.stderr, "replicas have their keys in common"


async def test_an_agents_sidecar_serves_is_probed_and_takes_a_new_config_map(tmp_path: Path) -> None:
    values = values_of("agent")
    found = objects(values)
    config = mount(tmp_path, found, 1)
    (container,) = workload(found)["spec"]["template"]["spec"]["initContainers"]
    metrics, data = free_ports(2)
    environ = {**on_loopback(tmp_path / "data", metrics), "SIDECAR_SERVER__LISTEN": f"127.0.0.1:{data}"}
    environ["SIDECAR_ADMIN__LISTEN"] = "127.0.0.1:0"
    text = config.read_text()
    config.resolve().chmod(0o640)
    config.resolve().write_text(text.replace("127.0.0.1:8070", f"127.0.0.1:{free_ports(1)[0]}"))
    args = [str(config) if one == "/etc/sidecar/sidecar.yaml" else one for one in container["args"]]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "sidecar", *args, env=environ, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with aiohttp.ClientSession() as http, asyncio.timeout(PATIENCE_S):
            ports = {one["name"]: one["containerPort"] for one in container["ports"]}
            assert settings_of(found)["metrics"]["listen"] == f"0.0.0.0:{ports['metrics']}"
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                asked = container[probe]["httpGet"]
                assert asked["port"] == "metrics"
                while await status_of(http, f"http://127.0.0.1:{metrics}{asked['path']}") != 200:
                    await asyncio.sleep(0.05)
            before = await revision_of(http, metrics)
            values["files"]["policies/agent_to_tool.csv"] = "p, nhi:planner, tool:notes/*, use, -, 60, -, allow\n"
            changed = objects(values)
            assert annotations_of(changed) == annotations_of(found), "a change of policy rolls no pods"
            mount(tmp_path, changed, 2)
            while await revision_of(http, metrics) == before:
                await asyncio.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def annotations_of(found: list[dict[str, Any]]) -> Any:
    return workload(found)["spec"]["template"]["metadata"]["annotations"]


async def status_of(http: aiohttp.ClientSession, url: str) -> int:
    try:
        async with http.get(url) as response:
            return response.status
    except aiohttp.ClientConnectionError:
        return 0


async def revision_of(http: aiohttp.ClientSession, port: int) -> str:
    async with http.get(f"http://127.0.0.1:{port}/metrics") as response:
        revision = re.search(r'sidecar_policy_info\{revision="(\w+)"\} 1', await response.text())
    assert revision
    return revision[1]


def test_the_package_holds_what_the_chart_needs(tmp_path: Path) -> None:
    archive = helm(package=str(tmp_path))["path"]
    with tarfile.open(archive) as packed:
        names = {one.removeprefix("sidecar/") for one in packed.getnames()}
        assert not any(member.issym() for member in packed.getmembers())
    assert {"Chart.yaml", "values.yaml", "values.schema.json", "templates/workload.yaml"} <= names
    for kind, suffix in (("dashboards", "json"), ("rules", "yml")):
        ours = {f"files/{kind}/{path.name}" for path in (CHART / "files" / kind).glob(f"*.{suffix}")}
        assert ours <= names
