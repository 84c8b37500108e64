"""Which runner makes the tries of an agent?"""

from __future__ import annotations

from collections.abc import Mapping

from sidecar.agents.commands import command_from
from sidecar.agents.one_shot import OneShot
from sidecar.agents.running import Runner
from sidecar.errors import SettingsError, fault_in
from sidecar.processes import Processes
from sidecar.settings.agents import CliAgent


def runner_from(name: str, definition: CliAgent, processes: Processes, environ: Mapping[str, str]) -> Runner:
    """The runner of an agent. Nothing is started yet. `environ` is the sidecar's own environment. Raises SettingsError
    where there is no such program, or its `env_path` cannot be read."""
    command = command_from(name, definition, environ)
    if definition.keeps_processes or definition.patterns.input == "json-rpc":
        what = "conversations and JSON-RPC are not supported by this version"
        raise SettingsError([fault_in(f"agents.{name}", what, code="S105")])
    return OneShot(name, command, processes)
