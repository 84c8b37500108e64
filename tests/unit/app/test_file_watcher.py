"""Which files count, and does a look see that they changed?"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sidecar.app.file_watcher import key_files, look_at, with_made
from sidecar.settings.load import load_settings
from sidecar.settings.sidecar_file import Settings
from tests.tables import tables

CONFIG = tables("app/file_watcher")["config"]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "sidecar.yaml").write_text(CONFIG)
    for folder in ("models", "policies/tests", "secrets"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("policies/roles.csv", "policies/tests/a.yaml", "keys.yaml", "secrets/github"):
        (tmp_path / name).write_text("x")
    return load_settings(tmp_path / "sidecar.yaml", {}, check_files=False)


def seen(folder: Path, settings: Settings) -> set[str]:
    return {str(Path(name).relative_to(folder)) for name in look_at(folder / "sidecar.yaml", settings)}


def test_every_file_of_keys_that_a_reload_reads_is_looked_at(tmp_path: Path, settings: Settings) -> None:
    names = {str(path.relative_to(tmp_path)) for path in key_files(settings)}
    ours = {"data/keys/api-keys.pepper", "data/keys/signing.pem", "data/keys/signing.previous.pem"}
    assert names == {"a.json", "admin.secret", "keys.yaml", "secrets/github", "secrets/jira"} | ours


def test_a_look_sees_what_is_there_and_no_file_twice(tmp_path: Path, settings: Settings) -> None:
    known = {"sidecar.yaml", "keys.yaml", "secrets/github", "policies/roles.csv", "policies/tests/a.yaml"}
    assert seen(tmp_path, settings) == known
    (tmp_path / "policies" / "up").symlink_to(tmp_path / "policies")
    (tmp_path / "policies" / "nowhere").symlink_to(tmp_path / "gone")
    os.mkfifo(tmp_path / "policies" / "pipe")  # looked at, and never opened
    assert seen(tmp_path, settings) == {*known, "policies/pipe"}


CHANGES: dict[str, Callable[[Path], object]] = {
    "written": lambda folder: (folder / "policies/roles.csv").write_text("xy"),
    "written, of the same size": lambda folder: (folder / "policies/roles.csv").write_text("y"),
    "made": lambda folder: (folder / "policies/new.csv").touch(),
    "removed": lambda folder: (folder / "policies/roles.csv").unlink(),
    "renamed": lambda folder: (folder / "policies/roles.csv").rename(folder / "policies/other.csv"),
    "made readable": lambda folder: (folder / "policies/roles.csv").chmod(0o644),
    "a key": lambda folder: (folder / "secrets/jira").touch(),
    "the configuration": lambda folder: (folder / "sidecar.yaml").write_text(CONFIG + "\n"),
    "a test": lambda folder: (folder / "policies/tests/a.yaml").write_text("y"),
    "the folder": lambda folder: (folder / "policies").rename(folder / "away"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_look_sees_a_change(change: Callable[[Path], object], tmp_path: Path, settings: Settings) -> None:
    (tmp_path / "policies/roles.csv").chmod(0o600)
    os.utime(tmp_path / "policies/roles.csv", (1, 1))
    before = look_at(tmp_path / "sidecar.yaml", settings)
    assert look_at(tmp_path / "sidecar.yaml", settings) == before
    change(tmp_path)
    assert look_at(tmp_path / "sidecar.yaml", settings) != before


def test_a_look_does_not_see_what_is_no_policy(tmp_path: Path, settings: Settings) -> None:
    before = look_at(tmp_path / "sidecar.yaml", settings)
    for name in (".roles.csv.swp", "roles.csv~", "roles.csv.tmp", "#roles.csv#", "4913", ".git"):
        (tmp_path / "policies" / name).write_text("x")
    (tmp_path / "sidecar.log").write_text("x")
    assert look_at(tmp_path / "sidecar.yaml", settings) == before


def test_a_folder_behind_links_is_looked_at_where_it_is(tmp_path: Path, settings: Settings) -> None:
    (tmp_path / "policies").rename(tmp_path / "checkout-1")
    (tmp_path / "current").symlink_to("checkout-1")
    (tmp_path / "policies").symlink_to("current")
    (tmp_path / "loop").symlink_to("loop")  # one that leads nowhere holds up nobody
    before = look_at(tmp_path / "sidecar.yaml", settings)
    shutil.copytree(tmp_path / "checkout-1", tmp_path / "checkout-2")
    (tmp_path / "current").unlink()
    (tmp_path / "current").symlink_to("checkout-2")
    assert look_at(tmp_path / "sidecar.yaml", settings) != before


def test_the_key_that_a_start_makes_is_no_change_and_one_that_was_replaced_is(
    tmp_path: Path, settings: Settings
) -> None:
    key, before = settings.signing_key_path, look_at(tmp_path / "sidecar.yaml", settings)
    key.parent.mkdir(parents=True)
    key.write_text("made")
    made = with_made(before, settings)
    assert made == look_at(tmp_path / "sidecar.yaml", settings) != before
    key.write_text("replaced")
    assert with_made(made, settings) != look_at(tmp_path / "sidecar.yaml", settings)
