"""Tables and progress are drawn on a terminal alone, and no text of theirs commands it."""

import os
import pty
import sys
from collections.abc import Callable
from contextlib import suppress

import click
import pytest

from sidecar.cli import terminal
from sidecar.cli.lazy_group import Root
from sidecar.cli.terminal import print_table, progress

HEAD, ROWS = ("name", "state"), [("nhi:planner", "valid"), ("[bold]\x1b[2J", "-")]


def at_terminal(monkeypatch: pytest.MonkeyPatch, draw: Callable[[], None]) -> str:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as screen, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", screen)
        patch.setattr(sys, "stderr", screen)
        draw()
    seen = b""
    with suppress(OSError):  # EIO at the end: the other side is closed
        while chunk := os.read(ours, 65536):
            seen += chunk
    os.close(ours)
    return seen.decode()


def test_a_table_is_aligned_in_a_pipe_and_drawn_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    print_table(HEAD, ROWS[:1])
    assert capsys.readouterr().out == "name         state\nnhi:planner  valid\n"
    monkeypatch.setenv("NO_COLOR", "1")
    seen = at_terminal(monkeypatch, lambda: print_table(HEAD, ROWS))
    assert "─" in seen and "nhi:planner" in seen and r"[bold]\x1b[2J" in seen and "\x1b[2J" not in seen
    assert "\x1b[3" not in seen, "no colour"


def test_progress_is_shown_on_a_terminal_after_a_moment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def work() -> None:
        with progress("lines read", 5) as tell:
            tell(1)
            tell(4, 5)

    monkeypatch.setattr(terminal, "EVERY_S", 0.0)
    seen = at_terminal(monkeypatch, work)
    assert "lines read" in seen and "4" in seen
    work()
    assert capsys.readouterr() == ("", "")


def test_no_command_is_coloured_where_that_is_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.group(cls=Root)
    def main() -> None: ...

    @main.command()
    def told() -> None:
        click.secho("bold", bold=True)

    def run() -> None:
        main(["told"], standalone_mode=False)

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[1m" in at_terminal(monkeypatch, run)
    monkeypatch.setenv("NO_COLOR", "1")
    assert at_terminal(monkeypatch, run).strip() == "bold"
