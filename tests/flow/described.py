"""Is an answer of plain HTTP one that the OpenAPI document describes?"""

from typing import Final, NamedTuple

from jsonschema import Draft202012Validator

from sidecar.admin.openapi import document
from tests.flow.talk import Answer


class Operation(NamedTuple):
    """One operation of the document."""

    path: str
    verb: str


LIST: Final = Operation("/mcp/{server}/tools", "get")
CALL: Final = Operation("/mcp/{server}/tools/{tool}", "post")
DOCUMENT: Final = document()


def check_described(operation: Operation, answer: Answer) -> None:
    """AssertionError for what the document does not say of an answer: of its status, its headers, its body."""
    code, body, headers = answer
    responses = DOCUMENT["paths"][operation.path][operation.verb]["responses"]
    status = str(code)
    assert status in responses, f"{operation}: {status} is not described"
    told = responses[status]
    ((media, content),) = told["content"].items()
    assert headers["Content-Type"] == media
    for name, header in told.get("headers", {}).items():
        assert name in headers or not header["required"], f"{operation}: {status} without {name}"
    whole = Draft202012Validator({**DOCUMENT, **content["schema"]})  # the document around it, so that references hold
    faults = [error.message for error in whole.iter_errors(body)]
    assert not faults, faults
