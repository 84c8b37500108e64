"""Builds the OpenAPI document of the plain HTTP paths.

    calls.py       tool calls over plain HTTP
    tasks.py       the task API
    operators.py   CLI-program agents, their runs and schedules, for operators
    components.py  shared responses, refusals, headers and schemas

One OpenAPI 3.1 document. Schemas are generated from the models of the responses, and statuses with their reasons from
the table of refusals, so that the document cannot differ from the code.
"""

from __future__ import annotations

from typing import Any, Final

from sidecar import __version__
from sidecar.admin.openapi import calls, operators, tasks
from sidecar.admin.openapi.components import schema_of
from sidecar.gateway.error_responses import McpError

MODELS: Final = (*calls.MODELS, *tasks.MODELS, *operators.MODELS, McpError)


def document() -> dict[str, Any]:
    """The OpenAPI document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "sidecar: plain HTTP",
            "version": __version__,
            "description": "Tools of MCP servers, and tasks of A2A agents, for scripts: under the policy, limits and "
            "audit that callers of MCP and A2A are under. Paths are taken as they stand: nothing in them may be "
            "percent-encoded. At the admin listener, what operators see and do of agents that are programs.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "http://127.0.0.1:8080", "description": "the data listener"}],
        "security": [{"bearer": []}, {"apiKey": []}, {}],
        "paths": {**calls.paths(), **tasks.paths(), **operators.paths()},
        "components": {
            "schemas": {model.__name__: schema_of(model, MODELS) for model in MODELS},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "a token, or an API key of ours"},
                "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            },
        },
    }
