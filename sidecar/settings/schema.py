"""What does an editor need to know to complete and check our YAML files?"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema(model: type[BaseModel], title: str) -> dict[str, Any]:
    """The JSON Schema of a file of ours, without the titles that pydantic makes up from field names."""
    schema = _untitled(model.model_json_schema(mode="validation"))
    return {"$schema": DIALECT, "title": title, **schema}


def _untitled(schema: Any) -> Any:
    if isinstance(schema, dict):
        # A property may be called "title": then its value is a schema, not a string.
        return {k: _untitled(v) for k, v in schema.items() if not (k == "title" and isinstance(v, str))}
    if isinstance(schema, list):
        return [_untitled(entry) for entry in schema]
    return schema
