"""Chooses the runner that makes the attempts of an agent."""

from __future__ import annotations

from collections.abc import Mapping

from sidecar.settings.agents import CliAgent
from sidecar.tasks.programs.attempt import Objection, ProgramRunner, no_objection
from sidecar.tasks.programs.command_line import command_from
from sidecar.tasks.programs.conversation_start import is_talked_with, talking_runner_from
from sidecar.tasks.programs.conversations import Endings
from sidecar.tasks.programs.one_shot import OneShot
from sidecar.upstreams.processes import Processes


def runner_from(
    name: str,
    definition: CliAgent,
    processes: Processes,
    environ: Mapping[str, str],
    *,
    objection: Objection = no_objection,
    endings: Endings | None = None,
) -> ProgramRunner:
    """Returns the runner of an agent; starts nothing yet. `environ` is the sidecar's own. `objection` says which
    callers may not continue a conversation, and `endings` remembers why conversations ended, also for the runner of a
    later definition. Raises SettingsError if the program is not found, or its `env_path` cannot be read."""
    command = command_from(name, definition, environ)
    if is_talked_with(definition):
        return talking_runner_from(name, command, processes, objection, Endings() if endings is None else endings)
    return OneShot(name, command, processes)
