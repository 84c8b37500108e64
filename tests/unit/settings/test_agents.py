"""Which agents that are programs are refused, and where is that told?"""

from pathlib import Path

import pytest

from sidecar.errors import SettingsError
from sidecar.settings.load import load_settings
from tests.tables import tables

FAULTS = tables("settings/agents")["FAULTS"]


@pytest.mark.parametrize(("text", "fault"), FAULTS)
def test_it_is_refused_where_it_is_written(tmp_path: Path, text: str, fault: tuple[int, str, str]) -> None:
    for name in ("policies", "models"):
        (tmp_path / name).mkdir()
    (tmp_path / "a.txt").write_text("no program")
    path = tmp_path / "sidecar.yaml"
    path.write_text(f"{text}version: 1\n")
    with pytest.raises(SettingsError) as refused:
        load_settings(path, {"PATH": "/usr/bin:/bin"})
    [told] = refused.value.faults
    line, code, message = fault
    assert (told.line, told.code, told.message) == (line, code, message.replace("{folder}", str(tmp_path)))


def test_what_is_not_there_is_told_with_what_is_written_amiss(tmp_path: Path) -> None:
    """Whoever mends the file mends all of it at once."""
    path = tmp_path / "sidecar.yaml"
    path.write_text(
        "version: 1\nolerance: 3\nagents:\n  a: {executable: gone}\n  b: {executable: cat, mode: tusk}\n"
        "  c: {executable: cat, working_directory: gone}\n  d: {executable: cat, env_path: gone.env}\n"
        "upstreams:\n  f: {mcp: {command: gone}}\n  g: {mcp: {comand: gone}}\n"
    )
    with pytest.raises(SettingsError) as refused:
        load_settings(path, {"PATH": "/usr/bin:/bin"})
    told = [(one.line, one.code) for one in refused.value.faults]
    files = [(4, "S117"), (6, "S116"), (7, "S116"), (9, "S117")]
    assert [one for one in told if one[0] != 10] == sorted([(2, "Y101"), (5, "Y104"), *files])
    with pytest.raises(SettingsError) as refused:
        load_settings(path, {}, check_files=False)
    assert {one.line for one in refused.value.faults} == {2, 5, 10}


@pytest.mark.parametrize("section", ["agents: {a: {executable: %s}}", "upstreams: {a: {mcp: {command: %s}}}"])
def test_a_program_beside_the_file_is_found_and_called_by_its_whole_path(
    tmp_path: Path, section: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Python finds its virtual environment by how it is called, and starts elsewhere."""
    monkeypatch.chdir(tmp_path)
    for name in ("policies", "models"):
        Path(name).mkdir()
    for name in ("program", "bin/python"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).touch(mode=0o755)
        Path("sidecar.yaml").write_text(f"version: 1\n{section % f'./{name}'}\n")
        settings = load_settings(Path("sidecar.yaml"), {})
        mcp = settings.upstreams["a"].mcp if settings.upstreams else None
        assert (settings.agents["a"].executable if mcp is None else mcp.command) == f"{tmp_path}/{name}"


def test_what_an_agent_that_is_off_needs_may_be_gone(tmp_path: Path) -> None:
    for name in ("policies", "models"):
        (tmp_path / name).mkdir()
    path = tmp_path / "sidecar.yaml"
    path.write_text("version: 1\nagents: {a: {executable: gone, env_path: gone.env, enabled: false}}\n")
    assert not load_settings(path, {}).agents["a"].enabled


def test_agents_with_one_port_that_the_system_chooses_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "sidecar.yaml"
    agents = "".join(f"  {name}: {{executable: cat, a2a: {{grpc_port: 0}}}}\n" for name in "ab")
    path.write_text(f"version: 1\nagents:\n{agents}")
    assert load_settings(path, {}, check_files=False).agents.keys() == {"a", "b"}
