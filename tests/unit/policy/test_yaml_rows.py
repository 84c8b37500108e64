"""Does a policy in YAML say exactly the rows that it would say in CSV, and every fault its place?"""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given, strategies as st

from sidecar.cli import main
from sidecar.errors import Fault, PolicyError
from sidecar.policy.faults import Faults
from sidecar.policy.grammar import ACTIONS, USE, USED
from sidecar.policy.rows import CsvRow, parse_rows
from sidecar.policy.yaml_rows import MAX_ROWS_OF_RULE, parse_yaml, policy_schema
from sidecar.vocabulary import PermissionKind
from tests.tables import tables
from tests.unit.policy.world import REPOSITORY, source

TABLES = tables("policy/yaml_rows")

EXAMPLE = TABLES["example"]
GOLDEN = REPOSITORY / "tests" / "golden" / "policy"
RULE = "version: 1\nrules:\n  - {kind: agent_to_tool, subject: nhi:a, object: tool:s/t%s}\n"
UUID, OTHER = "0d1f6c1e-2d0f-4b43-9c4a-8f6f4c8a0001", "0d1f6c1e-2d0f-4b43-9c4a-8f6f4c8a0002"

Found = list[tuple[PermissionKind | None, CsvRow]]


def read(text: str, **more: Any) -> tuple[Found, list[Fault]]:
    faults = Faults()
    return list(parse_yaml("p.yaml", text, faults, **more)), faults.errors


def said(text: str) -> list[str]:
    """The rows as CSV lines of their texts, notes behind them."""
    found, faults = read(text)
    assert not faults, "\n".join(map(str, faults))
    return [line_of(row) for _, row in found]


def line_of(row: CsvRow) -> str:
    notes = " ".join(f"{key}={field.text}" for key, field in row.notes.items())
    return ", ".join([row.type, *(field.text for field in row.fields)]) + (f" #: {notes}" if notes else "")


def at(fault: Fault) -> tuple[int, int, str, str]:
    return fault.line, fault.column, fault.code, fault.message


def test_the_example_of_the_contract_says_these_rows() -> None:
    condition = "args.repo.startsWith('acme/')"
    assert said(EXAMPLE) == [
        f"p, nhi:researcher, set:github-read, use, -, 120, {condition}, allow"
        " #: id=researcher-reads-github owner=platform@acme.example",
        f"p, nhi:researcher, tool:github/search_*, use, -, 120, {condition}, allow #: part_of=researcher-reads-github",
        "p, *, tool:*/delete_*, *, -, -, -, deny #: id=nobody-deletes reason=Runbook 12",
        "g, user:alice, role:oncall",
        "g, user:bob, role:oncall",
        "g2, tool:github/search_code, set:github-read",
        "g2, tool:github/get_file, set:github-read",
    ]
    kinds = [kind for kind, _ in read(EXAMPLE)[0]]
    assert kinds == [PermissionKind.AGENT_TO_TOOL] * 2 + [PermissionKind.GUARDRAIL] + [None] * 4


def test_a_row_is_what_the_csv_reader_makes_of_the_same_row() -> None:
    text = '#: id=x reason="a ""b"" c" per=origin\np, role:r, tool:s/*, use|tools/*, -, 7, "f(1, 2)", allow\n'
    (csv_row,) = parse_rows("p.csv", text, Faults())
    (_, row), *rest = read(
        "version: 1\nrules:\n- {id: x, reason: 'a \"b\" c', per: origin, kind: agent_to_tool, subject: role:r,\n"
        "   object: tool:s/*, actions: [use, tools/*], max_calls_per_hour: 7, when: 'f(1, 2)'}\n"
    )[0]
    assert not rest
    assert line_of(row) == line_of(csv_row)


def test_columns_stand_in_the_order_of_the_model() -> None:
    columns = ("eft", "when", "act", "obj", "sub", "max_calls_per_hour", "expires_at", "dom")
    text = RULE % ", dom: acme"
    found, faults = read(text, columns={PermissionKind.AGENT_TO_TOOL: columns})
    assert not faults
    assert [field.text for field in found[0][1].fields] == ["allow", "-", "use", "tool:s/t", "nhi:a", "-", "-", "acme"]


# --- defaults and the original data models --------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "more", "row"), TABLES["test_what_is_not_said_is_the_safer_thing"])
def test_what_is_not_said_is_the_safer_thing(kind: str, more: str, row: str) -> None:
    text = f"version: 1\nrules: [{{kind: {kind}, subject: nhi:a, object: nhi:b{', ' if more else ''}{more}}}]\n"
    assert said(text) == [f"p, nhi:a, nhi:b, {row}"]


def test_the_seeds_roles_become_allow_rows_and_members() -> None:
    text = TABLES["roles_of_the_seed"]
    assert said(text) == TABLES["rows_of_the_seed"]


@pytest.mark.parametrize("section", ["rules", "permissions"])
def test_the_seeds_permissions_are_read_as_they_stand(section: str) -> None:
    text = f"""\
version: 1
{section}:
  - {{source_id: {UUID}, target_id: {OTHER}, permission_type: call, allowed_actions: [message/send],
     max_calls_per_hour: 60, expires_at: "2027-03-31T00:00:00Z", created_at: "2026-03-31T00:00:00Z"}}
  - {{source_id: nhi:planner, target_id: "nhi:r*", permission_type: delegate, allowed_actions: null, expires_at: null}}
  - {{nhi_id: {OTHER}, user_id: [{UUID}, user:alice], created_at: "2026-03-31T00:00:00Z"}}
  - {{agent_id: {UUID}, tool_id: tool:github/search, allowed_actions: tools/call}}
"""
    assert [line.partition(" #: ")[0] for line in said(text)] == [
        f"p, nhi:{UUID}, nhi:{OTHER}, message/send, 2027-03-31T00:00:00Z, 60, -, allow",
        "p, nhi:planner, nhi:r*, use, -, -, -, allow",
        f"p, user:{UUID}, nhi:{OTHER}, use, -, -, -, allow",
        f"p, user:alice, nhi:{OTHER}, use, -, -, -, allow",
        f"p, nhi:{UUID}, tool:github/search, tools/call, -, -, -, allow",
    ]
    assert "created_at=2026-03-31T00:00:00Z" in said(text)[0]
    kinds = [kind for kind, _ in read(text)[0]]
    assert kinds == [PermissionKind.NHI_TO_NHI] * 2 + [PermissionKind.USER_TO_NHI] * 2 + [PermissionKind.AGENT_TO_TOOL]
    assert valid(text)


def test_the_uuid_of_an_agent_is_the_agent_by_its_name(tmp_path: Path) -> None:
    """`a2a.agent_id`, in a permission of the original form; a rule that writes it as a name says what to write."""
    ids = {UUID: "planner", OTHER: "researcher"}
    for fields, expected in (
        (f"source_id: {UUID.upper()}, target_id: {OTHER}, permission_type: call", ["nhi:planner", "nhi:researcher"]),
        (f"user_id: {UUID}, nhi_id: {OTHER}", [f"user:{UUID}", "nhi:researcher"]),
    ):
        found, faults = read(f"version: 1\npermissions:\n  - {{{fields}}}\n", agent_ids=ids)
        assert not faults and [line_of(row).split(", ")[1:3] for _, row in found] == [expected]
    for name, text in (
        ("rows.yaml", f"version: 1\nrules:\n  - {{kind: nhi_to_nhi, subject: nhi:a, object: 'nhi:{OTHER}'}}\n"),
        ("nhi_to_nhi.csv", f"p, nhi:a, nhi:{OTHER}, use, -, -, -, allow\n"),
    ):
        with pytest.raises(PolicyError, match="is the agent_id of researcher") as refused:
            source(tmp_path / name, {name: text}, agent_ids=ids)
        (fault,) = refused.value.faults
        assert (fault.code, fault.hint) == ("P121", "write nhi:researcher")


def test_a_capability_stands_for_the_objects_that_it_is_mapped_to() -> None:
    text = TABLES["capability"]
    assert said(text) == TABLES["capability_rows"]
    assert valid(text)


@pytest.mark.parametrize(("mapped", "capability", "told"), TABLES["capabilities"])
def test_a_capability_that_is_mapped_to_nothing_is_told(mapped: str, capability: str, told: bool) -> None:
    faults = Faults()
    text = f"version: 1\n{mapped}roles: [{{role: r, capabilities: [{capability}], members: nhi:x}}]\n"
    assert list(parse_yaml("p.yaml", text, faults)) and not faults.errors
    assert [fault.code for fault in faults.warnings] == ["P511"] * told


def test_a_set_in_the_list_form_may_have_an_owner() -> None:
    text = "version: 1\nsets: [{set: set:q, objects: [tool:s/a, set:r], owner: me}]\n"
    assert said(text) == ["g2, tool:s/a, set:q #: owner=me", "g2, set:r, set:q #: owner=me"]


# --- rules of several rows ------------------------------------------------------------------------------------------


def ids(more: str, kind: str = "agent_to_tool") -> set[str]:
    found, faults = read(f"version: 1\n\n\nrules:\n- {{kind: {kind}, {more}}}\n")
    assert not faults
    return {field.text for _, row in found for key, field in row.notes.items() if key in ("id", "part_of")}


def test_a_rule_of_several_rows_has_an_id_by_what_it_says_and_not_by_how() -> None:
    one = ids("subject: [nhi:a, nhi:b], object: [tool:s/a, tool:s/b], actions: [use]")
    assert len(one) == 1 and all(len(name) == 16 for name in one)
    assert ids("object: [tool:s/b, tool:s/a], subject: [nhi:b, nhi:a], owner: me") == one
    assert ids(f"object: [tool:s/b, tool:s/a], subject: [nhi:b, nhi:a], actions: [{', '.join(reversed(USED))}]") == one
    assert ids("subject: [nhi:a, nhi:b], object: tool:s/a") != one
    assert ids("subject: [nhi:a, nhi:b], object: [tool:s/a, tool:s/b]", "nhi_to_nhi") != one
    assert ids("subject: [nhi:a, nhi:b], object: [tool:s/a, tool:s/b], when: args.x == 1") != one


def test_every_subject_gets_every_object_and_a_part_gets_more() -> None:
    text = TABLES["parts"]
    rest = "use, -, -, args.ok, allow"
    assert said(text) == [
        f"p, nhi:a, tool:s/a, {rest} #: id=x owner=me",
        f"p, nhi:a, tool:s/b, {rest} #: part_of=x",
        f"p, nhi:b, tool:s/a, {rest} #: part_of=x",
        f"p, nhi:b, tool:s/b, {rest} #: part_of=x",
        f"p, nhi:c, tool:s/c, {rest} #: part_of=x",
        f"p, nhi:d, tool:s/d, {rest} #: part_of=x",
    ]


# --- faults ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("place", "hint", "text"), json.loads((GOLDEN / "yaml_faults.json").read_text()))
def test_every_fault_has_its_place_and_a_hint(place: str, hint: str, text: str) -> None:
    _, faults = read(text)
    found = [fault for fault in faults if f"{fault.line}:{fault.column} {fault.code}" == place]
    assert found, "\n".join(map(str, faults))
    assert hint in found[0].hint
    if found[0].line and found[0].code != "Y004":
        assert found[0].source == text.split("\n")[found[0].line - 1]


def test_all_faults_are_told_at_once_and_the_good_rows_are_still_read() -> None:
    text = TABLES["faulty"]
    found, faults = read(text)
    assert [line_of(row) for _, row in found] == ["p, nhi:b, tool:s/t, use, -, -, -, allow"]
    told = sorted(f"{fault.line} {fault.code}" for fault in faults)
    assert told == ["1 P504", "3 P505", "5 P501", "5 P501", "5 P506", "6 P501"]


def test_what_is_wrong_in_every_row_of_a_rule_is_told_once() -> None:
    faults = Faults()
    subjects = ", ".join(f"nhi:a{number}" for number in range(300))
    text = f"version: 1\nrules:\n- {{kind: nhi_to_nhi, subject: [{subjects}], object: nhi:b}}\n"
    rows = parse_yaml("p.yaml", text, faults)
    for number, (_, row) in enumerate(rows):
        obj = row.fields[1]
        faults.error("P113", "no object here", row.line, obj.column, obj.width)
        faults.warn("P121", "no upstream", row.line, obj.column, obj.width)
        if number == 299:
            faults.error("P103", "no subject here", row.line, row.fields[0].column)
    assert [fault.code for fault in faults.errors] == ["P113", "P103"]
    assert [fault.code for fault in faults.warnings] == ["P121"]


def test_a_file_that_is_too_large_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.policy.yaml_rows.MAX_BYTES", 100)
    assert [fault.code for fault in read(EXAMPLE)[1]] == ["P510"]
    for last, codes in (("e", []), ("é", ["P510"])):  # of 100 bytes, and of 101
        text = "version: 1\nroles: {role:a: [user:a]} #".ljust(99, "-") + last
        assert [fault.code for fault in read(text)[1]] == codes


def test_a_rule_of_too_many_rows_is_refused_before_they_are_made() -> None:
    many = ", ".join(f"nhi:a{number}" for number in range(101))
    found, faults = read(f"version: 1\nrules:\n- {{kind: nhi_to_nhi, subject: [{many}], object: [{many}]}}\n")
    assert not found
    assert [at(fault)[:3] for fault in faults] == [(3, 3, "P510")]
    assert MAX_ROWS_OF_RULE < 101 * 101


@pytest.mark.parametrize("text", ["[" * 100, "{a: " * 100, "version: 1\nrules: " + "[" * 40 + "]" * 40])
def test_what_is_nested_too_deep_is_a_fault(text: str) -> None:
    assert read(text)[1]


@given(st.text(alphabet=" \n-:[]{}'\"|>*&!%#abcruleskindv1,x@`\t\u200b", max_size=60))
def test_no_text_makes_the_reader_raise(text: str) -> None:
    found, faults = read(text)
    assert faults or found
    read("version: 1\nrules:\n  - " + text)


# --- places ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("written", "value"), TABLES["written"])
def test_the_place_inside_a_condition_is_the_place_in_the_file(written: str, value: str) -> None:
    text = f"version: 1\nrules:\n  - kind: agent_to_tool\n    when: {written}\n    subject: nhi:a\n    object: nhi:b\n"
    found, faults = read(text)
    assert not faults
    when = found[0][1].fields[5]
    assert when.text == value
    offset = value.index("ZZZ")
    line = when.line_of(offset)
    assert line.text[when.column_of(offset) - 1 :].startswith("ZZZ")
    assert line.text == text.split("\n")[line.number - 1]


def test_each_action_of_a_list_has_its_own_place() -> None:
    text = RULE % ",\n     actions: [tools/call,\n       'prompts/get', nonsense]"
    actions = read(text)[0][0][1].fields[2]
    offsets = [actions.text.index(word) for word in ("tools/call", "prompts/get", "nonsense")]
    assert [(actions.line_of(at).number, actions.column_of(at)) for at in offsets] == [(4, 16), (5, 9), (5, 23)]


def test_a_line_break_that_stays_in_a_condition_is_refused() -> None:
    _, (fault,) = read("version: 1\nrules:\n- kind: guardrail\n  subject: x\n  object: x\n  when: |\n    a ==\n    b\n")
    assert (fault.line, fault.column, fault.code) == (7, 5, "P110")
    assert ">-" in fault.hint


# --- the schema -----------------------------------------------------------------------------------------------------


def valid(text: str) -> bool:
    return bool(jsonschema.Draft202012Validator(policy_schema()).is_valid(yaml.safe_load(text)))


def test_the_schema_is_a_schema_and_takes_the_contract() -> None:
    jsonschema.Draft202012Validator.check_schema(policy_schema())
    assert policy_schema()["$defs"]["action"]["anyOf"][0]["enum"] == sorted({USE, *ACTIONS})
    assert valid(EXAMPLE)


@pytest.mark.parametrize("more", TABLES["valid_rules"])
def test_schema_and_reader_agree_on_what_is_good(more: str) -> None:
    assert valid(RULE % more)
    assert not read(RULE % more)[1]
    assert valid("version: 1\nrules: [{part_of: x, subject: nhi:a, object: [tool:s/t]}]\n")
    assert valid('version: 1\nroles: [{role: auditor, capabilities: ["*.*", git.a.b], members: [nhi:a]}]\n')


@pytest.mark.parametrize("text", TABLES["test_a_typo_does_not_fit_the_schema"])
def test_a_typo_does_not_fit_the_schema(text: str) -> None:
    assert not valid(text)


def test_the_command_prints_the_schema() -> None:
    done = CliRunner().invoke(main, ["schema", "policy"])
    assert done.exit_code == 0
    assert json.loads(done.stdout) == policy_schema()
