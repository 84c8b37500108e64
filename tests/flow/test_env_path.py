"""Does a program get what the file of its secrets says, and a changed one after a reload?"""

import json
from pathlib import Path

import pytest

from sidecar.errors import SettingsError
from tests.flow.talk import Talk
from tests.flow.test_stdio import PROGRAM, before, text


async def test_what_the_file_says_is_in_the_environment_and_a_reload_reads_it_anew(tmp_path: Path) -> None:
    secrets = tmp_path / "program.env"
    secrets.write_text("TOKEN=first\nLANG=xx\nHOME=/nowhere\nPATH=/usr/bin\nTMPDIR=/tmp\n")
    program = f"{PROGRAM}, env_path: {secrets}, env: {{LANG: de_DE}}"
    async with before(tmp_path / "world", program) as running:
        told = json.loads(text(await Talk(running, "session").call("whoami")))["env"]
        assert (told["TOKEN"], told["LANG"]) == ("first", "de_DE")
        secrets.write_text("TOKEN=second\n")
        await running.app.reload("test")
        told = json.loads(text(await Talk(running, "session").call("whoami")))["env"]
        assert told["TOKEN"] == "second"
        secrets.write_text("TOKEN=$OTHER\n")
        with pytest.raises(SettingsError, match="S132"):
            await running.app.reload("test")
        told = json.loads(text(await Talk(running, "session").call("whoami")))["env"]
        assert told["TOKEN"] == "second"
