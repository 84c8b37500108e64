"""Which runner makes the tries of an agent?"""

from __future__ import annotations

from collections.abc import Mapping

from sidecar.agents.commands import command_from
from sidecar.agents.one_shot import OneShot
from sidecar.agents.running import Objection, Runner, no_objection
from sidecar.agents.sessions import Endings
from sidecar.agents.talking import is_talked_with, talking_runner_from
from sidecar.processes import Processes
from sidecar.settings.agents import CliAgent


def runner_from(
    name: str,
    definition: CliAgent,
    processes: Processes,
    environ: Mapping[str, str],
    *,
    objection: Objection = no_objection,
    endings: Endings | None = None,
) -> Runner:
    """The runner of an agent. Nothing is started yet. `environ` is the sidecar's own; `objection` says who may not go
    on with a conversation, and `endings` remembers why one ended, also for the runner of a later definition. Raises
    SettingsError where there is no such program, or its `env_path` cannot be read."""
    command = command_from(name, definition, environ)
    if is_talked_with(definition):
        return talking_runner_from(name, command, processes, objection, Endings() if endings is None else endings)
    return OneShot(name, command, processes)
