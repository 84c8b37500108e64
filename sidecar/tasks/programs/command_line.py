"""Builds a program's command line, environment and working folder from a prompt.

A caller's choices have been checked (`prompts.py`) and are used only where the operator allows it, as values of
options. The prompt is an argument only if the agent is configured so, and then behind `--` or in place of `{prompt}`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sidecar.errors import SettingsError, fault_in
from sidecar.settings.agents import INPUT_FILE, OUTPUT_FILE, PROMPT, CliAgent, Resources
from sidecar.settings.programs import environment_of, executable_of, variables_in_file
from sidecar.tasks.programs.attempt import Prompt
from sidecar.tasks.programs.output_cleaner import CleaningRules
from sidecar.upstreams.processes.launcher import Program


@dataclass(frozen=True, slots=True)
class PromptFiles:
    folder: str
    input: str
    output: str


@dataclass(frozen=True, slots=True)
class CommandLine:
    definition: CliAgent
    path: str
    env: Mapping[str, str]
    cleaning: CleaningRules

    def program(self, prompt: Prompt, files: PromptFiles | None = None) -> Program:
        """Returns the program to start for a prompt. An agent whose patterns name a file needs `files`."""
        definition = self.definition
        folder = prompt.working_directory
        if folder is None and definition.working_directory is not None:
            folder = str(definition.working_directory.absolute())
        if folder is None and files is not None:
            folder = files.folder
        return Program(
            path=self.path,
            argv=(definition.executable, *self._arguments(prompt, files)),
            env={**self.env, **prompt.trace, **prompt.envs},
            cwd=folder,
            limits=_limits(definition.resources),
        )

    def shown(self) -> dict[str, Any]:
        folder = self.definition.working_directory
        return {
            "path": self.path,
            "argv": [self.definition.executable, *self._options({}), *self.definition.args],
            "folder": None if folder is None else str(folder.absolute()),
            "environment": sorted(self.env),
        }

    def _arguments(self, prompt: Prompt, files: PromptFiles | None) -> Iterator[str]:
        definition = self.definition
        places = {}
        if definition.patterns.input == "args":
            places[PROMPT] = prompt.text
        if definition.patterns.input == "file" and files is not None:
            places[INPUT_FILE] = files.input
        if definition.patterns.output == "file" and files is not None:
            places[OUTPUT_FILE] = files.output
        yield from self._options(prompt.cli_args)
        yield from (places.get(word, word) for word in definition.args)
        left = [word for word in (INPUT_FILE, OUTPUT_FILE, PROMPT) if word in places and word not in definition.args]
        for word in left:
            if word == PROMPT:
                yield "--"
            yield places[word]

    def _options(self, chosen: Mapping[str, str]) -> Iterator[str]:
        for name, value in {**self.definition.cli_args, **chosen}.items():
            if value:
                yield from (name, value)
            elif name in chosen and not self.definition.per_call.cli_args[name].is_flag:
                yield f"{name}="  # alone, the option would take the next argument as its value
            else:
                yield name


def command_from(name: str, definition: CliAgent, environ: Mapping[str, str]) -> CommandLine:
    """Builds an agent's command line. Raises SettingsError if the program or the file of variables is missing."""
    secret = {} if definition.env_path is None else variables_in_file(definition.env_path)
    named = secret | definition.envs
    path = executable_of(definition.executable, named, environ)
    if path is None:
        place = f"agents.{name}.executable"
        raise SettingsError([fault_in(place, f"there is no program {definition.executable}", code="S117")])
    cleaning = CleaningRules(strip_control=definition.strip_control, secrets=secret.values())
    return CommandLine(definition, path, environment_of(named, environ), cleaning)


def _limits(resources: Resources) -> dict[str, int]:
    chosen = {
        "CPU": resources.cpu_s,
        "AS": resources.memory,
        "NOFILE": resources.open_files,
        "NPROC": resources.processes,
        "FSIZE": resources.file_size,
    }
    return {name: most for name, most in chosen.items() if most is not None}
