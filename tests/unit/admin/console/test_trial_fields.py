"""Does the command that the page Try shows ask the same question?"""

import pytest

from sidecar.admin.console.form_fields import FormFields
from sidecar.admin.console.pages.trial import QuestionFields


@pytest.mark.parametrize(
    ("query", "command"),
    [
        ("as=user:a&calls=tool:b/c", "--as user:a --calls tool:b/c"),
        ("as=user:a,nhi:b&calls=nhi:c&action=delegate", "--as user:a,nhi:b --calls nhi:c --action delegate"),
        (
            "as=user:a,nhi:b&calls=nhi:c&roles=role:x+role:y&scopes=s",
            "--as user:a,nhi:b --calls nhi:c --roles user:a=role:x,role:y --scopes user:a=s",
        ),
        ("calls=nhi:c&roles=role:x", "--calls nhi:c"),
    ],
)
def test_the_command_asks_the_question_of_the_form(query: str, command: str) -> None:
    assert QuestionFields.read(FormFields.parsed(query)).command == f"sidecar policy explain {command}"
