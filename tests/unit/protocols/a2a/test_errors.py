"""Are errors called what others call them?"""

from a2a.utils.errors import JSON_RPC_ERROR_CODE_MAP

from sidecar.protocols.a2a.errors import BY_CODE, BY_NAME, KINDS


def test_an_errors_name_is_the_official_sdks() -> None:
    """By it alone, gRPC of 0.3 says which error it is. The SDK has no class of its own for what is no JSON."""
    theirs = {kind.__name__: code for kind, code in JSON_RPC_ERROR_CODE_MAP.items()}
    assert {name: BY_NAME[name].code for name in theirs} == theirs


def test_every_error_is_found_by_its_name() -> None:
    assert {BY_NAME[kind.name] for kind in KINDS} == set(KINDS) == set(BY_CODE.values())
