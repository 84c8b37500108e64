"""Does a schedule in sidecar.yaml say what its operator will get, and is the rest refused with a place and a hint?"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from sidecar.errors import SettingsError
from sidecar.settings import schedules
from sidecar.settings.load import load_settings
from sidecar.settings.schedules import ScheduleSettings, acts_as, schedule_faults
from sidecar.settings.validation_errors import Finding, findings_of
from tests.tables import tables


def schedule(**more: Any) -> ScheduleSettings:
    return ScheduleSettings.model_validate({"agent": "summariser", "cron": "0 2 * * *", **more})


def faults_of(**more: Any) -> list[Finding]:
    with pytest.raises(ValidationError) as raised:
        schedule(**more)
    return list(findings_of(raised.value, ScheduleSettings))


def test_when_it_is_due_and_how_late_it_may_be() -> None:
    nightly = schedule(cron="@daily", timezone="Europe/Berlin")
    assert nightly.calendar.next_after(1_790_000_000.0) == 1_790_028_000.0  # 2026-09-22T00:00+02:00
    assert nightly.late_s == 3600.0
    assert schedule(missed="skip").late_s == 60.0, "cron's grain: what is later was missed"
    assert schedule(missed="skip", missed_within="5s").late_s == 5.0


@pytest.mark.parametrize(("more", "code", "message"), tables("settings/schedules")["no_times"])
def test_what_is_no_time_is_refused_where_it_stands(more: Mapping[str, Any], code: str, message: str) -> None:
    (found,) = faults_of(**more)
    assert (found.code, found.message, found.at) == (code, message, tuple(more))
    assert found.hint


def told(schedules: Mapping[str, ScheduleSettings]) -> list[tuple[str, str, tuple[Any, ...]]]:
    faults = schedule_faults(schedules, {"summariser", "linter"}, {"summariser", "linter", "off", "github"})
    return [(fault.code, fault.message, fault.at) for fault in faults]


def test_a_schedule_calls_an_agent_that_is_there_as_somebody_who_is_none() -> None:
    assert told({"nightly": schedule(), "hourly": schedule(agent="linter", principal="nhi:nightly")}) == []
    assert acts_as("nightly", schedule()) == "nhi:nightly"
    assert told({"a": schedule(agent="off")}) == [
        ("S177", "there is no agent off that is enabled", ("schedules", "a", "agent"))
    ]
    would = "is the name of an upstream or agent of this sidecar"
    assert told({"github": schedule()}) == [("S179", f"nhi:github {would}", ("schedules", "github"))]
    assert told({"a": schedule(principal="nhi:linter")}) == [
        ("S179", f"nhi:linter {would}", ("schedules", "a", "principal"))
    ]


def faults_in(folder: Path, text: str) -> list[tuple[str, int, str]]:
    (path := folder / "sidecar.yaml").write_text(f"version: 1\n{text}")
    with pytest.raises(SettingsError) as raised:
        load_settings(path, {}, check_files=False)
    return [(one.code, one.line, one.hint) for one in raised.value.faults]


def test_a_fault_stands_where_it_was_written(tmp_path: Path) -> None:
    upstreams = "upstreams: {writer: {a2a: {url: 'http://h/'}}, github: {mcp: {url: 'http://h/mcp'}}}\nschedules:\n"
    (fault,) = faults_in(tmp_path, f"{upstreams}  github: {{agent: writr, cron: '* * * 13 *'}}\n")
    assert fault[:2] == ("S176", 4)
    assert faults_in(tmp_path, f"{upstreams}  github: {{agent: writr, cron: '* * * 12 *'}}\n") == [
        ("S179", 4, "write another principal: nhi:…"),
        ("S177", 4, 'did you mean "writer"?'),
    ]


def test_a_program_can_be_called_as_long_as_it_is_enabled(tmp_path: Path) -> None:
    agents = "agents: {echo: {executable: cat}, idle: {executable: cat, enabled: false}}\nschedules:\n"
    found = faults_in(tmp_path, f"{agents}  echo: {{agent: idle, cron: '@daily'}}\n")
    assert [code for code, *_ in found] == ["S179", "S177"]
    (path := tmp_path / "sidecar.yaml").write_text(f"version: 1\n{agents}  a: {{agent: echo, cron: '@daily'}}\n")
    assert load_settings(path, {}, check_files=False).schedules["a"].agent == "echo"


def test_the_zones_of_the_machine_are_looked_for_once_and_again_for_one_that_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That is a walk through a thousand files: a hundred schedules made a start two seconds longer."""
    installed, looks = {"Europe/Berlin"}, []
    monkeypatch.setattr(schedules, "available_timezones", lambda: looks.append(1) or set(installed))
    schedules._zones.cache_clear()
    try:
        for _ in range(100):
            schedule(timezone="Europe/Berlin")
        assert len(looks) == 1
        assert [one.code for one in faults_of(timezone="Europe/Ulm")] == ["S175"]
        installed.add("Europe/Ulm")
        assert schedule(timezone="Europe/Ulm").timezone == "Europe/Ulm", "it was installed meanwhile"
    finally:
        schedules._zones.cache_clear()


def test_no_two_have_one_name_or_id() -> None:
    twice = {"a": schedule(name="Nightly", id="1"), "b": schedule(name="Nightly", id="a"), "c": schedule(id="1")}
    assert told(twice) == [
        ("S178", "Nightly is also the name of schedule a", ("schedules", "b", "name")),
        ("S178", "1 is also the id of schedule a", ("schedules", "c", "id")),
    ]
    assert told({"a": schedule(), "b": schedule(name="a")}) == [
        ("S178", "a is also the name of schedule a", ("schedules", "b", "name"))
    ]
