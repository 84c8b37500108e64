"""Does every file, line and byte of a policy count, or is it said why not?"""

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from sidecar.errors import PolicyError
from sidecar.policy import load_policy
from sidecar.policy.faults import Faults
from sidecar.policy.patterns import file_matches
from sidecar.policy.rows import parse_rows
from tests.closed_to_root import closed_to_root
from tests.tables import tables
from tests.unit.policy.world import MODELS, NOW, SOMETHING, chain, engine, faults, scope, source, tool, write

TABLES = tables("policy/files")

ROWS = "p, user:a, tool:s/t, tools/call, -, -, -, allow\np, user:b, tool:s/t, tools/call, -, -, -, allow\n"


@pytest.mark.parametrize("text", TABLES["words"])
def test_the_same_grants_load_the_same_however_they_are_written(tmp_path: Path, text: str) -> None:
    """BL-026."""
    asked = engine(tmp_path, {"agent_to_tool": text})
    assert asked.revision == engine(tmp_path / "plain", {"agent_to_tool": ROWS}).revision
    assert all(asked.decide(chain(name), tool("s/t"), NOW).allowed for name in ("user:a", "user:b"))


@pytest.mark.parametrize(("text", "line", "column"), TABLES["globs"])
def test_what_is_not_understood_is_a_fault_at_its_place(tmp_path: Path, text: str, line: int, column: int) -> None:
    """BL-026."""
    first = faults(tmp_path, {"agent_to_tool.csv": text})[0]
    assert (first.line, first.column) == (line, column)


@pytest.mark.parametrize("pattern", ["*/x", "*/admin/*", "[", "(", "{", "?", "[a-z]*", "(a|b)", "{id}", "^x$", "x.*("])
@pytest.mark.parametrize(("row", "code"), TABLES["other_languages"], ids=["object", "action", "subject"])
def test_a_pattern_of_another_language_is_a_fault_at_its_place(
    tmp_path: Path, row: str, code: str, pattern: str
) -> None:
    """BL-022: never allowed by one reader and an error for another."""
    found = faults(tmp_path, {"agent_to_tool.csv": ROWS + row.replace("PATTERN", pattern) + "\n"})
    assert (found[0].code, found[0].line, found[0].column) == (code, 3, row.index("PATTERN") + 1)
    assert pattern.split("|")[0] in str(found[0])


def test_bytes_that_are_no_utf8_are_a_fault_at_their_place(tmp_path: Path) -> None:
    (tmp_path / "agent_to_tool.csv").write_bytes(SOMETHING.encode() + b"\n# caf\xe9\n")
    (fault,) = faults(tmp_path, {})
    assert (fault.code, fault.line, fault.column) == ("P005", 2, 6)


@given(st.text(alphabet='pg2,"# \t\r\n|*-:=ax\u0430\x00', max_size=60))
def test_a_line_is_read_or_told(text: str) -> None:
    """Whatever stands in a file, each line with content is a row, a note or a fault; nothing vanishes."""
    found = Faults()
    rows = list(parse_rows("f", text, found))
    said = {row.line.number for row in rows} | {row.line.number - 1 for row in rows if row.notes_line}
    told = said | {fault.line for fault in found.errors} | {fault.line - 1 for fault in found.errors}
    for number, line in enumerate(text.split("\n"), start=1):
        content = line.strip(" \t\r")
        if content and (not content.startswith("#") or content.startswith("#:")):
            assert number in told


@given(st.lists(st.text(alphabet="ab,\"# '", max_size=6), min_size=2, max_size=4))
def test_quoted_fields_come_back_as_they_were(fields: list[str]) -> None:
    line = "p," + " , ".join('"' + text.replace('"', '""') + '"' for text in fields)
    (row,) = parse_rows("f", line, Faults())
    assert [field.text for field in row.fields] == fields
    for field in row.fields:
        assert all(line[field.column_of(at) - 1] == character for at, character in enumerate(field.text))


@pytest.mark.parametrize(("name", "code"), TABLES["test_an_unknown_file_is_a_fault"])
def test_an_unknown_file_is_a_fault(tmp_path: Path, name: str, code: str) -> None:
    found = faults(tmp_path, {"agent_to_tool.csv": SOMETHING, name: "x"})
    assert [(fault.code, fault.file) for fault in found] == [(code, str(tmp_path / name))]


@pytest.mark.parametrize(
    "name", ["budgets.yaml", "pins.yaml", "tests/a.yaml", "tests/b/c", ".hidden", "..data/x", ".git/HEAD"]
)
def test_what_is_somebody_elses_is_left_alone(tmp_path: Path, name: str) -> None:
    assert faults(tmp_path, {"agent_to_tool.csv": SOMETHING, name: "\x00 not rows"}) == []


def test_files_of_any_depth_and_name_count(tmp_path: Path) -> None:
    rows = ROWS.splitlines()
    spread = {"agent_to_tool.one.csv": rows[0] + "\n", "a/b/c/d/agent_to_tool.csv": rows[1] + "\n"}
    assert engine(tmp_path / "x", spread).revision == engine(tmp_path / "y", {"agent_to_tool": ROWS}).revision


def test_a_kubernetes_mount_is_read_once(tmp_path: Path) -> None:
    write(
        tmp_path / "..2027", {"agent_to_tool.csv": ROWS, "teams/user_to_nhi.csv": "p, *, nhi:b, use, -, -, -, allow\n"}
    )
    (tmp_path / "..data").symlink_to("..2027")
    (tmp_path / "agent_to_tool.csv").symlink_to("..data/agent_to_tool.csv")
    (tmp_path / "teams").symlink_to("..data/teams")
    assert len([*source(tmp_path, {}).rules]) == 3


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    write(tmp_path, {"a/agent_to_tool.csv": ROWS})
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    assert len([*source(tmp_path, {}).rules]) == 2


@pytest.mark.parametrize("end", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_a_time_that_utc_has_no_year_for_is_no_time(tmp_path: Path, end: str) -> None:
    """It could be compared but not told: `check`, `diff` and `explain` failed where they named it."""
    found = faults(tmp_path, {"agent_to_tool.csv": f"p, nhi:a, tool:s/t, use, {end}, -, -, allow\n"})
    assert [(fault.code, fault.column) for fault in found] == [("P106", 26)]


def test_a_pipe_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "agent_to_tool.csv")
    assert [fault.code for fault in faults(tmp_path, {})] == ["P001"]


@pytest.mark.parametrize("name", ["guardrails.csv", "more.yaml", "teams/roles.csv"])
def test_a_folder_in_place_of_a_file_is_a_fault(tmp_path: Path, name: str) -> None:
    """A mount of a file that is not there makes a folder: the guardrails would silently be none."""
    (tmp_path / name).mkdir(parents=True)
    found = faults(tmp_path, {"agent_to_tool.csv": SOMETHING})
    assert [(fault.code, fault.file) for fault in found] == [("P001", str(tmp_path / name))]


def test_missing_folders_are_faults(tmp_path: Path) -> None:
    found = faults(tmp_path / "p", {"agent_to_tool.csv": SOMETHING}, models=tmp_path / "nowhere")
    assert {fault.code for fault in found} == {"P001"}
    assert len(found) == 3  # each model by its name


def test_folders_that_cannot_be_read_are_faults(tmp_path: Path) -> None:
    models, rules = tmp_path / "models", tmp_path / "rules"
    shutil.copytree(MODELS, models)
    write(rules, {"agent_to_tool.csv": SOMETHING})
    for folder in (models, rules):
        folder.chmod(0o111)
    with closed_to_root(), pytest.raises(PolicyError) as found:
        load_policy(models, rules)
    assert [(fault.code, fault.file) for fault in found.value.faults if fault.code == "P001"] == [
        ("P001", str(folder)) for folder in (models, rules)
    ]


def test_too_long_a_line_and_too_large_a_file_are_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = SOMETHING.replace("nobody", "n" * 9000)
    assert [fault.code for fault in faults(tmp_path / "a", {"agent_to_tool.csv": SOMETHING + "\n" + long})] == ["P110"]
    monkeypatch.setattr("sidecar.policy.files.MAX_FILE_BYTES", 1000)
    assert [f.code for f in faults(tmp_path / "b", {"agent_to_tool.csv": "# " + "x" * 1000 + "\n"})] == ["P001"]


def test_the_revision_is_of_what_is_decided(tmp_path: Path) -> None:
    def revision(name: str, files: dict[str, str]) -> str:
        return engine(tmp_path / name, files).revision

    rows = "#: id=x owner=o\n" + ROWS
    same = [
        {"agent_to_tool": rows},
        {"agent_to_tool": "# comment\n\n" + rows},
        {
            "agent_to_tool": "".join(reversed(ROWS.splitlines(True)[1:]))
            + "#: owner=o id=x\n"
            + ROWS.splitlines(True)[0]
        },
    ]
    assert len({revision(f"s{i}", files) for i, files in enumerate(same)}) == 1
    others = [
        {"agent_to_tool": ROWS},
        {"agent_to_tool": rows.replace("tools/call", "use")},
        {"agent_to_tool": rows.replace("id=x", "id=y")},
        {"agent_to_tool": rows.replace("owner=o", "shadow=true")},
        {"agent_to_tool": rows.replace("owner=o", "per=rule")},
        {"agent_to_tool": rows, "roles": "g, user:a, role:x\n"},
        {"agent_to_tool": rows, "roles": "g2, tool:s/t, set:x\n"},
        {"user_to_nhi": rows.replace("tool:s/t", "nhi:t")},
    ]
    assert len({revision(f"o{i}", files) for i, files in enumerate([*others, same[0]])}) == len(others) + 1


def test_a_model_may_order_its_columns_anew(tmp_path: Path) -> None:
    models = tmp_path / "models"
    for conf in MODELS.glob("*.conf"):
        text = conf.read_text()
        if conf.stem == "agent_to_tool":
            text = text.replace(
                "sub, obj, act, expires_at, max_calls_per_hour, when, eft",
                "eft, sub, act, obj, when, max_calls_per_hour, expires_at",
            )
            text = text.replace("(who(r.sub, p.sub, p.eft) || g(r.sub, p.sub))", "r.sub == p.sub")
        write(models, {conf.name: text})
    rows = "p, allow, user:a, use, tool:s/*, args.x == 1, 7, -\np, allow, *, use, *, -, -, -\n"
    asked = engine(tmp_path / "p", {"agent_to_tool": rows}, models=models)
    decision = asked.decide(chain("user:a"), tool("s/t", {"x": 1}), NOW)
    assert decision.allowed
    assert [limit.per_hour for limit in decision.limits] == [7]
    assert not asked.decide(chain("user:a"), tool("s/t"), NOW).allowed
    assert not asked.decide(chain("user:b"), tool("s/t", {"x": 1}), NOW).allowed  # `*` means nothing to ==


def test_rules_without_an_id_are_called_by_their_content(tmp_path: Path) -> None:
    first = [*source(tmp_path / "a", {"agent_to_tool.csv": ROWS}).rules]
    moved = [*source(tmp_path / "b", {"x/agent_to_tool.csv": "\n# moved\n" + ROWS}).rules]
    assert [rule.id for rule in first] == [rule.id for rule in moved]
    assert len({rule.id for rule in first}) == 2


def test_suspicious_rows_are_warned_of(tmp_path: Path) -> None:
    rows = """p, user:a, tool:githb/x, use, -, -, -, allow
p, user:a, tool:github/x, use, -, -, call.meta.ok == true, allow
p, user:a, set:empty, use, -, -, -, allow
p, user:a, tool:github/y, use, -, -, call.meta.ok == true, deny
"""
    roles = "g, user:a, role:x\ng, user:a, role:x\n"
    found = source(tmp_path, {"agent_to_tool.csv": rows, "roles.csv": roles}, names=frozenset({"github"})).warnings
    assert sorted((fault.code, fault.line) for fault in found) == [("P121", 1), ("P304", 2), ("P305", 3), ("P405", 2)]
    assert next(fault.hint for fault in found if fault.code == "P121") == 'did you mean "github"?'


def test_resources_are_read_in_normal_form_wherever_they_stand(tmp_path: Path) -> None:
    files = {
        "agent_to_tool.csv": "p, user:a, resource:s/FILE:/a/*, use, -, -, -, allow\n",
        "roles.csv": "g2, resource:s/Notes://HR/%41, set:x\n",
        "more.yaml": 'version: 1\nrules: [{kind: guardrail, subject: "*", object: ["resource:s/HTTP://h:80/*"]}]\n',
    }
    bounds = scope(
        "**", ("*",), ("resource:s/file:///a/*", "resource:s/notes://hr/A", "resource:s/http://h/*", "set:x")
    )
    found = source(tmp_path, files, scopes=[bounds])
    assert {rule.object for rule in found.rules} == {"resource:s/file:///a/*", "resource:s/http://h/*"}
    assert set(found.sets.contents()["set:x"]) == {"resource:s/notes://hr/A"}
    assert sorted((Path(fault.file).name, fault.code) for fault in found.warnings) == [
        ("agent_to_tool.csv", "P122"),
        ("more.yaml", "P122"),
        ("roles.csv", "P122"),
    ]


@pytest.mark.parametrize(("pattern", "path", "bound"), TABLES["test_a_scope_bounds_the_files_it_names"])
def test_a_scope_bounds_the_files_it_names(pattern: str, path: str, bound: bool) -> None:
    assert file_matches(path, pattern) is bound


@pytest.mark.parametrize(("row", "inside"), TABLES["test_a_row_outside_its_folders_scope_is_a_fault"])
def test_a_row_outside_its_folders_scope_is_a_fault(tmp_path: Path, row: str, inside: bool) -> None:
    bounds = scope("teams/pay/**", ("role:pay-*",), ("tool:pay/*",), ("role:pay-*",))
    name = "teams/pay/" + ("agent_to_tool.csv" if row.startswith("p") else "roles.csv")
    found = faults(tmp_path, {"agent_to_tool.csv": SOMETHING, name: row + "\n"}, scopes=[bounds])
    assert {fault.code for fault in found} == (set() if inside else {"P112"})


def test_a_link_that_no_system_follows_is_a_fault_and_no_crash(tmp_path: Path) -> None:
    write(tmp_path, {"agent_to_tool.csv": SOMETHING})
    (tmp_path / "user_to_nhi.csv").symlink_to("x" * 400)
    (tmp_path / "nhi_to_nhi.csv").symlink_to("nhi_to_nhi.csv")
    found = faults(tmp_path, {})
    assert sorted((Path(fault.file).name, fault.code) for fault in found) == [
        ("nhi_to_nhi.csv", "P001"),
        ("user_to_nhi.csv", "P001"),
    ]
