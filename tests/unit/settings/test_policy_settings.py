"""Until when may policy be a rehearsal?"""

import time
from pathlib import Path

import pytest

from sidecar.errors import SettingsError
from sidecar.settings.load import load_settings
from sidecar.settings.policy import MAX_SHADOW_S, PolicySettings
from sidecar.settings.timestamps import rfc3339, seconds_of
from tests.tables import tables


def policy(folder: Path, section: str) -> PolicySettings:
    path = folder / "sidecar.yaml"
    path.write_text(f"version: 1\npolicy: {{{section}}}\n")
    return load_settings(path, {}, check_files=False).policy


def test_policy_is_enforced_tested_and_watched_unless_an_operator_says_otherwise(tmp_path: Path) -> None:
    found = policy(tmp_path, "")
    assert (found.mode, found.shadow_until, found.self_test, found.watch) == ("enforce", None, True, True)


@pytest.mark.parametrize("seconds", [-86_400, 60, MAX_SHADOW_S - 60])
def test_shadow_mode_has_an_end_which_may_be_over(seconds: float, tmp_path: Path) -> None:
    until = int(time.time() + seconds)
    assert policy(tmp_path, f"mode: shadow, shadow_until: {rfc3339(until)}").shadow_until == until


FAULTS = tables("settings/policy_settings")["FAULTS"]


@pytest.mark.parametrize(("section", "expected"), FAULTS.items(), ids=map(str, range(len(FAULTS))))
def test_what_has_no_valid_end_does_not_begin(section: str, expected: tuple[str, str, str], tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as raised:
        policy(tmp_path, section)
    where, code, what = expected
    told = str(raised.value)
    assert f"sidecar.yaml:{where}: error[{code}]" in told and what in told


def test_the_end_that_a_hint_proposes_may_be_written(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as raised:
        policy(tmp_path, "mode: shadow")
    proposed = str(raised.value).partition("shadow_until: ")[2].split()[0]
    assert time.time() < policy(tmp_path, f"mode: shadow, shadow_until: {proposed}").shadow_until


def test_of_a_file_that_is_not_there_it_is_said_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"there is no such file\n.*sidecar init.*-c"):
        load_settings(tmp_path / "sidecar.yaml", {})


BEYOND = ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00")  # of no year in UTC


def test_a_moment_is_read_as_it_is_written() -> None:
    assert rfc3339(seconds_of("2027-01-15T09:00:00.5+01:00")) == "2027-01-15T08:00:00Z"
    for text in ("2027-01-15", "2027-01-15 08:00:00Z", "2027-01-15T08:00Z", "", "9999-99-99T00:00:00Z", *BEYOND):
        with pytest.raises(ValueError):
            seconds_of(text)
