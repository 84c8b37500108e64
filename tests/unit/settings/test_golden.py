"""What does an operator read when the file is wrong? The whole text, as it stands on the screen.

`UPDATE_GOLDEN=1 pytest tests/unit/settings` writes the answers anew; the diff is then to be read.
"""

import os
from pathlib import Path

import pytest

from sidecar.errors import SettingsError
from sidecar.settings.load import load_settings

GOLDEN = Path(__file__).parents[2] / "golden" / "settings"
ENVIRONMENT = {
    "SIDECAR_STORE__URI": "redis://x",
    "SIDECAR_SERVER__MAX_BODY_BYTES": "010",
    "SIDECAR_SERVER__KEEPALIVE_TIMEOUT_S": "soon",
}


@pytest.mark.parametrize("name", ["traps", "shapes", "rules", "later", "offers", "doors", "environment"])
def test_every_fault_is_told_as_agreed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(GOLDEN)
    with pytest.raises(SettingsError) as error:
        load_settings(Path(f"{name}.yaml"), ENVIRONMENT if name == "environment" else {}, check_files=False)
    told, expected = f"{error.value}\n", GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        expected.write_text(told, encoding="utf-8")
    assert told == expected.read_text(encoding="utf-8")
