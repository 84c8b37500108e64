"""Is a run's folder its own, and gone when nobody holds it?"""

import multiprocessing
import os
import stat
import tempfile
import threading
from pathlib import Path

import pytest

from sidecar.tasks.programs.working_folders import PREFIX, UnreadableFolder, WorkingFolder, sweep


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_what_lies_there_is_for_us_alone() -> None:
    folder = WorkingFolder()
    folder.write("in.txt", b"prompt")
    assert stat.S_IMODE(Path(folder.path).stat().st_mode) == 0o700
    assert stat.S_IMODE(Path(folder.at("in.txt")).stat().st_mode) == 0o600
    assert folder.read("in.txt", 6) == b"prompt"
    folder.remove()
    folder.remove()
    assert not Path(folder.path).exists()


def test_a_file_that_leads_elsewhere_is_not_read(tmp_path: Path) -> None:
    folder = WorkingFolder()
    outside = tmp_path / "outside"
    outside.write_text("secret")
    Path(folder.at("symbolic")).symlink_to(outside)
    Path(folder.at("hard")).hardlink_to(outside)
    os.mkfifo(folder.at("pipe"))
    Path(folder.at("folder")).mkdir()
    for name in ("symbolic", "hard", "pipe", "folder", "missing"):
        with pytest.raises(UnreadableFolder):
            folder.read(name, 100)
    moved = tmp_path / "moved"
    Path(folder.path).rename(moved)
    (tmp_path / "swapped").mkdir()
    (tmp_path / "swapped" / "answer").write_text("secret")
    Path(folder.path).symlink_to(tmp_path / "swapped")
    with pytest.raises(UnreadableFolder):
        folder.read("answer", 100)
    folder.remove()
    assert (tmp_path / "swapped" / "answer").exists() and outside.exists()


def test_where_nothing_can_be_written_nothing_was_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a read-only root and no /tmp: whoever sweeps goes on holding what runs."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_get_default_tempdir", lambda: Path("/nowhere").stat())
    with pytest.raises(OSError, match="nowhere"):
        WorkingFolder()
    assert sweep() == 0


def test_what_no_path_reaches_is_removed_too(tmp_path: Path) -> None:
    folder = WorkingFolder()
    here = os.open(folder.path, os.O_RDONLY)
    for _ in range(300):  # of 200 bytes each, where a path may have 4,096
        os.mkdir("d" * 200, dir_fd=here)
        above, here = here, os.open("d" * 200, os.O_RDONLY, dir_fd=here)
        os.close(above)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, 0o000, dir_fd=here))
        os.symlink("/", "link", dir_fd=here)
    os.fchmod(here, 0o000)
    os.close(here)
    (Path(folder.path) / "beside").mkdir()
    folder.remove()
    assert list(tmp_path.iterdir()) == []


def test_only_what_nobody_holds_is_swept(tmp_path: Path) -> None:
    held, theirs = WorkingFolder(), tmp_path / "sidecar-other"
    theirs.mkdir()
    left = multiprocessing.get_context("fork").Process(target=_leave)
    left.start()
    left.join()
    (tmp_path / f"{PREFIX}link").symlink_to(theirs)
    assert sweep() == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [Path(held.path).name, theirs.name, f"{PREFIX}link"]
    )
    held.remove()


def test_who_makes_one_while_it_is_swept_has_it_all_the_same(tmp_path: Path) -> None:
    """The sweep may come between its making and its lock."""
    made, over = [], threading.Event()

    def keep_sweeping() -> None:
        while not over.is_set():
            sweep()

    sweeping = threading.Thread(target=keep_sweeping)
    sweeping.start()
    try:
        for _ in range(60):
            made.append(WorkingFolder())
            made[-1].write("in.txt", b"prompt")
    finally:
        over.set()
        sweeping.join()
    assert len(list(tmp_path.iterdir())) == len(made)
    assert all(one.read("in.txt", 6) == b"prompt" for one in made)
    for one in made:
        one.remove()


def _leave() -> None:
    """As a sidecar that is killed."""
    WorkingFolder().write("in.txt", b"prompt")
    os._exit(9)
