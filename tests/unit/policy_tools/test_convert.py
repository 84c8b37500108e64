"""Do CSV and YAML say the same, whichever way they are converted?"""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings, strategies as st

from sidecar.cli import main
from sidecar.cli.init import starting_files
from sidecar.errors import PolicyError
from sidecar.policy import grammar, load_policy
from sidecar.policy.faults import Faults
from sidecar.policy.model import COLUMNS
from sidecar.policy.yaml_rows import parse_yaml
from sidecar.policy_tools.convert import convert
from sidecar.policy_tools.convert.content import Content, DifferentError, columns_of, compare, read, said
from sidecar.policy_tools.convert.writer import csv_of, yaml_of
from sidecar.policy_tools.rule_text import scalar
from sidecar.settings.shipped_files import shipped
from sidecar.vocabulary import PermissionKind
from tests.tables import tables

TABLES = tables("policy_tools/convert")

REPOSITORY = Path(__file__).parents[3]
MODELS = shipped("models")
COLUMNS_OF = dict.fromkeys(PermissionKind, COLUMNS)


def golden(name: str) -> str:
    return (REPOSITORY / "tests" / "golden" / "convert" / name).read_text("utf-8")


CSV = golden("rules.csv")
ROW = "p, nhi:a, tool:s/t, use, -, -, -, allow\n"


def content(name: str, text: str) -> Content:
    faults = Faults()
    found = read(name, text.encode(), COLUMNS_OF, faults)
    assert found is not None, "\n".join(map(str, faults.errors))
    return found


def write(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")
    return folder


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["policy", "convert", *map(str, arguments)])


# --- what is written ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "source"), [("rules", "agent_to_tool.csv"), ("roles", "roles.csv")])
def test_csv_becomes_yaml_that_people_like_to_read(name: str, source: str) -> None:
    """With a list of the roles that have notes, and a mapping of those that have none."""
    assert yaml_of(content(source, golden(f"{name}.csv")), COLUMNS_OF) == golden(f"{name}.yaml")


def test_and_back_again_it_is_the_same_rows_and_the_same_comments() -> None:
    there = yaml_of(content("agent_to_tool.csv", CSV), COLUMNS_OF)
    back = csv_of(content("agent_to_tool.yaml", there))
    ours, theirs = (said(content("agent_to_tool.csv", text), COLUMNS_OF) for text in (CSV, back))
    comments, kept = ([line for line in text.splitlines() if line.startswith("# ")] for text in (CSV, back))
    assert (theirs, kept) == (ours, comments)


def test_comments_of_yaml_come_along_those_behind_values_too() -> None:
    assert csv_of(content("x.yaml", golden("comments.yaml"))) == golden("comments.csv")


@pytest.mark.parametrize(
    "text",
    ["*", "true", "no", "12", "0x10", "1:30", "", "-", "- a", "a: b", "a #b", "#a", "a:", "a ", " a", "it's", 'a"b',
     "a\\b", "a\tb", "{a}", "[a]", "a, b", "&a", "!a", "%a", "@a", "`a", "|", ">", "?", "? a", "null", "~", "=", "<<",
     "a\\\"'\tb", "ä", "2027-03-31T00:00:00Z", "has(args.x) ? 'a' : 'b'", "---", "..."],
)  # fmt: skip
def test_every_text_is_written_so_that_it_is_read_as_that_text(text: str) -> None:
    for written in (f"reason: {scalar(text)}", f"owner: x, reason: {scalar(text)}"):
        rule = f"version: 1\nrules:\n- {{kind: guardrail, subject: x, object: [{scalar(text)}], {written}}}\n"
        faults = Faults()
        ((_, row),) = parse_yaml("p.yaml", rule, faults)
        assert (row.notes["reason"].text, row.fields[1].text) == (text, text)


# --- the property ---------------------------------------------------------------------------------------------------

_letters = st.characters(codec="utf-8", exclude_categories=("C", "Z"))
texts = st.text(st.one_of(st.sampled_from(" \"'\\,#:|*-[]{}&!%@`?<>=~()\tabcnoyes019"), _letters), max_size=12)
names = st.one_of(texts, st.sampled_from(["nhi:a", "nhi:b", "role:r", "tool:s/t", "*", "set:q", "true", "no"]))
known = sorted({*grammar.ACTIONS, "use"})
actions = st.lists(st.sampled_from([*known, "tasks/*", "*"]), min_size=1, max_size=3, unique=True).map("|".join)
pers, shadows = st.sampled_from(["subject", "origin", "rule"]), st.sampled_from(["true", "false"])
noted = {"owner": texts, "reason": texts, "per": pers, "shadow": shadows, "created_at": st.just("2026-01-01T00:00:00Z")}
notes = st.fixed_dictionaries({}, optional=noted)
words = st.sampled_from(["required", "15m", "once", "1h"]) | texts
approvals = {"within": words, "valid": words, "approval_reason": words, "reason": words}
approved = st.fixed_dictionaries({"approval": st.just("role:r") | texts}, optional={**noted, **approvals})


@st.composite
def rules(draw: st.DrawFn, number: int) -> list[str]:
    """The lines of one rule, of one row or several."""
    effect = draw(st.sampled_from(["allow", "deny"]))
    limit = draw(st.sampled_from(["-", "7", "120"])) if effect == "allow" else "-"
    rest = [draw(actions), draw(st.sampled_from(["-", "2027-01-01T00:00:00Z"])), limit, draw(names), effect]
    pairs = draw(st.lists(st.tuples(names, names), min_size=1, max_size=5, unique=True))
    said_of = draw(notes | approved)
    if len(pairs) > 1 or draw(st.booleans()):
        said_of = {"id": f"rule-{number}", **said_of}
    lines = draw(st.lists(st.sampled_from(["# a comment", "", "#", "# : x"]), max_size=2))
    for place, (subject, obj) in enumerate(pairs):
        lines += note(said_of if place == 0 else {"part_of": f"rule-{number}"})
        lines.append(", ".join(["p", *map(quoted, (subject, obj, *rest))]))
    return lines


def note(said_of: Mapping[str, str]) -> list[str]:
    return ["#: " + " ".join(f"{key}={quoted(value)}" for key, value in said_of.items())] if said_of else []


def quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


@st.composite
def csv_files(draw: st.DrawFn) -> dict[str, str]:
    count = draw(st.integers(1, 4))
    lines = [line for number in range(count) for line in draw(rules(number))]
    containers = {"g": ("role:r", "role:no", "role:-"), "g2": ("set:q", "set:{x}", "set:[")}
    link = st.sampled_from(["g", "g2"]).flatmap(
        lambda row_type: st.tuples(st.just(row_type), names, st.sampled_from(containers[row_type]), notes)
    )
    links = draw(st.lists(link, max_size=6))
    linked = []
    for row_type, member, container, said_of in links:
        linked += note({key: value for key, value in said_of.items() if key in ("owner", "reason", "created_at")})
        linked.append(", ".join([row_type, quoted(member), quoted(container)]))
    files = {"agent_to_tool.csv": lines, "roles.csv": linked}
    return {name: "".join(f"{line}\n" for line in found) for name, found in files.items() if found}


@settings(max_examples=40)
@given(csv_files())
def test_there_and_back_both_ways_nothing_is_lost(files: dict[str, str]) -> None:
    for name, text in files.items():
        first = content(name, text)
        there = yaml_of(first, COLUMNS_OF)
        second = content(f"{name}.yaml", there)
        back = csv_of(second)
        third = content(name, back)
        again = content(f"{name}.yaml", yaml_of(third, COLUMNS_OF))
        for one in (second, third, again):
            assert said(one, COLUMNS_OF) == said(first, COLUMNS_OF)
        ours, theirs = ([line for line in some.splitlines() if re.match("#(?!:)", line)] for some in (text, back))
        assert ours == theirs


def test_a_lost_row_would_be_noticed() -> None:
    first = content("agent_to_tool.csv", CSV)
    less = Content(first.entries[1:])
    with pytest.raises(DifferentError, match=r"agent_to_tool\.csv"):
        compare("agent_to_tool.csv", first, {"x.yaml": yaml_of(less, COLUMNS_OF).encode()}, COLUMNS_OF)


# --- files and folders ----------------------------------------------------------------------------------------------


def test_the_shipped_policy_goes_there_and_back_to_the_byte(tmp_path: Path) -> None:
    there, back = tmp_path / "there", tmp_path / "back"
    first = run(REPOSITORY / "policies", "--to", "yaml", "-o", there, "--json")
    assert first.exit_code == 0, first.output
    revision = load_policy(MODELS, REPOSITORY / "policies").revision
    assert json.loads(first.stdout)["revision"] == revision
    assert load_policy(MODELS, there).revision == revision
    assert not list(there.rglob("*.csv"))
    assert run(there, "--to", "csv", "-o", back).exit_code == 0
    for path in (REPOSITORY / "policies").rglob("*"):
        if path.is_file():
            assert (back / path.relative_to(REPOSITORY / "policies")).read_bytes() == path.read_bytes(), path


def test_one_yaml_file_of_several_kinds_becomes_one_csv_file_each(tmp_path: Path) -> None:
    text = TABLES["several_kinds"]
    done = convert({"teams/pay.yaml": text.encode(), "budgets.yaml": b"version: 1\n"}, "csv", MODELS, COLUMNS_OF)
    kinds = ("agent_to_tool", "guardrails", "roles", "user_to_nhi")
    assert sorted(done.files) == ["budgets.yaml", *(f"teams/{kind}.pay.csv" for kind in kinds)]
    assert done.rows == 4 and done.revision


def test_a_name_that_tells_the_kind_is_kept(tmp_path: Path) -> None:
    rule = b"version: 1\nrules: [{kind: agent_to_tool, subject: nhi:a, object: tool:s/t}]\n"
    done = convert({"agent_to_tool.payments.yaml": rule}, "csv", MODELS, COLUMNS_OF)
    assert list(done.files) == ["agent_to_tool.payments.csv"]
    assert list(convert(done.files, "yaml", MODELS, COLUMNS_OF).files) == ["agent_to_tool.payments.yaml"]


def test_two_files_that_would_become_one_are_a_fault() -> None:
    rule = b"version: 1\nrules: [{kind: agent_to_tool, subject: nhi:%s, object: tool:s/t}]\n"
    with pytest.raises(PolicyError, match=r"agent_to_tool\.x\.csv would be written twice"):
        convert({"x.yaml": rule % b"a", "x.yml": rule % b"b"}, "csv", MODELS, COLUMNS_OF)


USED = "version: 1\nrules:\n  - kind: agent_to_tool\n    subject: nhi:a\n    object: tool:s/t\n    actions: used\n"


@pytest.mark.parametrize(("name", "text", "options", "code", "printed", "said"), TABLES["asked"])
def test_one_file_goes_to_standard_output(
    tmp_path: Path, name: str, text: str, options: str, code: int, printed: str, said: str
) -> None:
    done = run(write(tmp_path, {name: text}) / name, "--to", *options.split(" "))
    assert (done.exit_code, printed in done.stdout, said in done.stderr) == (code, True, True), done.output


def test_nothing_is_overwritten_unless_it_is_said(tmp_path: Path) -> None:
    path = write(tmp_path, {"agent_to_tool.csv": ROW, "x.yaml": "mine"})
    refused = run(path / "agent_to_tool.csv", "--to", "yaml", "-o", path / "x.yaml")
    assert (refused.exit_code, (path / "x.yaml").read_text()) == (2, "mine")
    assert "--force" in refused.stderr
    assert run(path / "agent_to_tool.csv", "--to", "yaml", "-o", path / "x.yaml", "--force").exit_code == 0
    assert (path / "x.yaml").read_text().startswith("version: 1")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["agent_to_tool.csv", "x.yaml"]


def test_a_folder_needs_another_folder(tmp_path: Path) -> None:
    write(tmp_path, {"agent_to_tool.csv": "p, nhi:a, tool:s/t, use, -, -, -, allow\n"})
    assert run(tmp_path, "--to", "yaml").exit_code == 2
    assert run(tmp_path, "--to", "yaml", "-o", tmp_path / "yaml").exit_code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["agent_to_tool.csv"]


def test_what_has_the_form_already_is_nothing_to_convert(tmp_path: Path) -> None:
    write(tmp_path / "in", {"agent_to_tool.csv": ROW})
    for source in (tmp_path / "in", tmp_path / "in" / "agent_to_tool.csv"):
        done = run(source, "--to", "csv", "-o", tmp_path / "out")
        assert (done.exit_code, "holds no rows in YAML" in done.stderr) == (2, True)
    assert not (tmp_path / "out").exists()


def test_a_file_without_rows_becomes_nothing_and_that_is_said(tmp_path: Path) -> None:
    write(tmp_path / "in", {"agent_to_tool.csv": ROW, "guardrails.csv": "# none yet\n"})
    done = run(tmp_path / "in", "--to", "yaml", "-o", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "guardrails.csv -> nothing: it has no rows" in done.stderr
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["agent_to_tool.yaml"]


@pytest.mark.parametrize(("name", "text", "code"), TABLES["faults"])
def test_what_is_no_policy_is_told_with_its_place_and_nothing_is_written(
    tmp_path: Path, name: str, text: str, code: str
) -> None:
    path = write(tmp_path, {name: text}) / name
    done = run(path, "--to", "csv" if name.endswith(".yaml") else "yaml", "-o", tmp_path / "out")
    assert done.exit_code == 3 and f"error[{code}]" in done.stderr and f"{name}:" in done.stderr
    assert not (tmp_path / "out").exists()


def test_other_models_have_their_columns_in_another_order(tmp_path: Path) -> None:
    order = "eft, when, act, obj, sub, max_calls_per_hour, expires_at"
    models = tmp_path / "models"
    models.mkdir()
    for path in MODELS.iterdir():
        (models / path.name).write_text(path.read_text().replace("p = " + ", ".join(COLUMNS), f"p = {order}"))
    assert columns_of(models)[PermissionKind.NHI_TO_NHI] == tuple(order.split(", "))
    write(tmp_path / "policies", {"agent_to_tool.csv": "p, deny, args.x == 1, use, tool:s/t, nhi:a, -, -\n"})
    assert run(tmp_path, "--to", "yaml", "-o", tmp_path / "out").exit_code == 0
    assert "    subject: nhi:a\n" in (tmp_path / "out" / "agent_to_tool.yaml").read_text()
    done = run(tmp_path / "out", "--to", "csv", "-o", tmp_path / "back", "--models", models)
    assert done.exit_code == 0, done.output
    assert (tmp_path / "back" / "agent_to_tool.csv").read_text() == "p, deny, args.x == 1, use, tool:s/t, nhi:a, -, -\n"


# --- fmt --------------------------------------------------------------------------------------------------------------

UNTIDY = """\
# Who may search.



#:   id=one   owner="a@b.example"
p,nhi:a,   tool:s/t,use , -,-, "args.x == 'y'",allow
p, nhi:b,  tool:s/t,  use, -, -, "args.x in ['y', 'z']", allow
# the end"""
TIDY = """\
# Who may search.

#: id=one owner=a@b.example
p, nhi:a, tool:s/t, use, -, -, args.x == 'y', allow
p, nhi:b, tool:s/t, use, -, -, "args.x in ['y', 'z']", allow

# the end
"""


def fmt(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["policy", "fmt", *map(str, arguments)])


def test_fmt_writes_rows_in_one_form_and_keeps_what_they_say(tmp_path: Path) -> None:
    files = {"agent_to_tool.csv": UNTIDY, "teams/roles.csv": "g,user:a, role:b\r\n", "budgets.yaml": "version:  1\n"}
    folder = write(tmp_path / "policies", files)
    before = load_policy(MODELS, folder).revision
    assert fmt("--check", tmp_path).exit_code == 6
    assert (folder / "agent_to_tool.csv").read_text("utf-8") == UNTIDY
    done = fmt("--json", tmp_path)
    changed = [str(folder / "agent_to_tool.csv"), str(folder / "teams/roles.csv")]
    assert (done.exit_code, json.loads(done.stdout)) == (0, {"files": changed})
    assert (folder / "agent_to_tool.csv").read_text("utf-8") == TIDY
    assert (folder / "teams/roles.csv").read_bytes() == b"g, user:a, role:b\n"
    assert (folder / "budgets.yaml").read_text("utf-8") == "version:  1\n"
    assert load_policy(MODELS, folder).revision == before
    assert (fmt("--check", tmp_path).exit_code, fmt("--check", tmp_path).output.strip()) == (0, "")


def test_fmt_writes_nothing_where_a_row_is_wrong(tmp_path: Path) -> None:
    folder = write(tmp_path / "policies", {"agent_to_tool.csv": UNTIDY, "roles.csv": "g,user:a\n"})
    done = fmt(tmp_path)
    assert done.exit_code == 3 and "roles.csv:1:1: error[P102]" in done.output
    assert (folder / "agent_to_tool.csv").read_text("utf-8") == UNTIDY


def test_what_is_shipped_and_what_init_writes_is_formatted(tmp_path: Path) -> None:
    write(tmp_path, starting_files())
    assert [fmt("--check", folder).exit_code for folder in (REPOSITORY, tmp_path)] == [0, 0]


def test_fmt_leaves_rows_of_casbin_models_alone(tmp_path: Path) -> None:
    model = "[request_definition]\nr = sub, obj, act\n[policy_definition]\np = sub, obj, act\n[policy_effect]\n"
    model += "e = some(where (p.eft == allow))\n[matchers]\nm = r.sub == p.sub && r.obj == p.obj && r.act == p.act\n"
    settings = "version: 1\npolicy: {models: models, path: policies}\n"
    files = {"models/model.conf": model, "policies/policy.csv": "p,alice,data,read\n", "sidecar.yaml": settings}
    write(tmp_path, files)
    assert fmt("-c", tmp_path / "sidecar.yaml").exit_code == 0
    assert (tmp_path / "policies/policy.csv").read_text("utf-8") == "p,alice,data,read\n"
