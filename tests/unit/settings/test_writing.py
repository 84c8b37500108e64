"""A file is replaced in one step, and nothing but a file is replaced."""

import errno
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from sidecar.cli import main
from sidecar.settings.writing import UnwrittenError, write_all, write_whole

SHIPPED = Path(__file__).parents[3]


def test_the_content_is_replaced_and_the_mode_stays(tmp_path: Path) -> None:
    path, link = tmp_path / "keys.yaml", tmp_path / "link"
    path.write_bytes(b"old")
    path.chmod(0o640)
    link.symlink_to(path)
    write_whole(link, b"new")
    assert (path.read_bytes(), path.stat().st_mode & 0o777, link.is_symlink()) == (b"new", 0o640, True)
    assert sorted(tmp_path.iterdir()) == [path, link]


def test_what_is_no_file_stays_what_it_is(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="not a regular file"):
        write_whole(pipe, b"new")
    assert pipe.is_fifo()


def test_no_command_replaces_a_pipe_by_a_file(tmp_path: Path) -> None:
    """As root, `--force --output /dev/null` made an ordinary file of it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for arguments in (
        ["policy", "convert", str(SHIPPED / "policies" / "roles.csv"), "--to", "yaml", "--force", "-o", str(pipe)],
        ["policy", "bundle", "build", str(SHIPPED), "--version", "1", "-o", str(pipe)],
    ):
        assert CliRunner().invoke(main, arguments).exit_code in (1, 2) and pipe.is_fifo()


def test_a_failure_between_two_files_names_what_was_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    replace = Path.replace

    def fails(beside: Path, path: Path) -> Path:
        if path == second:
            raise OSError(errno.EIO, "Input/output error", str(path))
        return replace(beside, path)

    monkeypatch.setattr(Path, "replace", fails)
    with pytest.raises(UnwrittenError, match=rf"{second}; already replaced: {first}$"):
        write_all({first: b"1", second: b"2"}, force=False)
    assert [*tmp_path.iterdir()] == [first]
