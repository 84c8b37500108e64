"""The vocabulary of AuthZEN in sidecar.yaml is checked where it stands."""

from pathlib import Path

import pytest

from sidecar.errors import SettingsError
from sidecar.settings.load import load_settings
from sidecar.settings.pdp import AuthzenType
from sidecar.settings.sidecar_file import Settings


def load(folder: Path, authzen: str) -> Settings:
    path = folder / "sidecar.yaml"
    path.write_text(f"version: 1\npdp:\n  authzen:\n    {authzen}\n")
    return load_settings(path, {}, check_files=False)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("user:corp/*", AuthzenType(subject="user:corp/*")),
        ("nhi:*", AuthzenType(subject="nhi:*", resource="nhi:*")),
        ("tool:records/*", AuthzenType(resource="tool:records/*")),
        ("tool:*", AuthzenType(resource="tool:*")),
        ("resource:notes/note:{action}:*", AuthzenType(resource="resource:notes/note:{action}:*")),
        ("tool:records/*/{action}", AuthzenType(resource="tool:records/*/{action}")),
    ],
)
def test_a_single_name_stands_on_the_side_where_it_can(tmp_path: Path, written: str, meant: AuthzenType) -> None:
    settings = load(tmp_path, f'types: {{record: "{written}"}}')
    assert settings.pdp is not None and settings.pdp.authzen.types["record"] == meant
    both = load(tmp_path, 'types: {user: {subject: "user:*", resource: "tool:people/*"}}').pdp
    assert both is not None and both.authzen.types["user"] == AuthzenType(subject="user:*", resource="tool:people/*")


@pytest.mark.parametrize(
    ("authzen", "message", "hint"),
    [
        ('types: {record: "tool:records/1"}', "must have one * for the id", "write nhi:*, tool:*"),
        ('types: {record: "tool:records/*/*"}', "must have one * for the id", "write nhi:*, tool:*"),
        ('types: {record: "tool:re*/x"}', "is not a name that rules can contain", "write nhi:*, tool:*"),
        ('types: {record: "role:*"}', "is not a name that rules can contain", "write nhi:*, tool:*"),
        ('types: {record: "user:a b*"}', "is not a valid single word", "printable ASCII"),
        ('types: {record: {subject: "tool:*"}}', "is not a name that rules can contain", "write user:*"),
        ('types: {record: {resource: "user:*"}}', "is not a name that rules can contain", "write nhi:*"),
        ('types: {record: "tool:records/{action}-*"}', "before / or : or at its end", "{action}/*"),
        ('types: {record: "tool:records/{action}/{action}/*"}', "once at most", "{action}/*"),
        ('types: {record: "nhi:{action}/*"}', "not in nhi:", "{action}/*"),
        ("types: {record: {object: x}}", "object", ""),
        ("actions: {can_read: read}", "read is not an action of rules", "write an action"),
        ("actions: {can_call: tools/cal}", "tools/cal is not an action of rules", 'did you mean "tools/call"?'),
        ("arguments: {record: {status: status}}", "is not a valid place", "such as resource.properties.status"),
        (
            "arguments: {record: {status: resource..status}}",
            "is not a valid place",
            "such as resource.properties.status",
        ),
        ("url: https://pdp.acme.example/path", "is not a valid URL without a path", "https://pdp.acme.example"),
        ("url: ftp://pdp.acme.example", "", ""),
    ],
)
def test_a_fault_says_what_and_where_and_how_to_mend_it(tmp_path: Path, authzen: str, message: str, hint: str) -> None:
    with pytest.raises(SettingsError) as error:
        load(tmp_path, authzen)
    (fault,) = error.value.faults
    assert fault.line == 4 and fault.column > 5
    assert message in fault.message and hint in fault.hint, fault
