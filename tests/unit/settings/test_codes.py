"""Every error code in the source has one meaning in the reference, and the reference has no others."""

from docs.error_codes import GROUPS, MEANINGS, reports


def test_the_reference_has_every_code_and_no_other() -> None:
    assert reports().keys() == MEANINGS.keys()
    assert {code[0] for code in MEANINGS} == set(GROUPS)


def test_messages_are_found_with_their_hints() -> None:
    found = {(one.message, one.hint) for one in reports()["S136"]}
    assert ("a user needs a password", "write password_path") in found
    assert len([code for code, messages in reports().items() if not messages]) <= 5
