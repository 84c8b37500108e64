"""Generates the JSON Schemas of the YAML files."""

import ast
import inspect
import sys
from functools import cache
from itertools import pairwise
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import ModelSchema


def json_schema(model: type[BaseModel], title: str) -> dict[str, Any]:
    """The JSON Schema of a file, with docstrings as descriptions, and without the titles that pydantic derives from
    names."""
    schema = _untitled(model.model_json_schema(mode="validation", schema_generator=_Described))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **schema}


class _Described(GenerateJsonSchema):
    """Describes each property by the docstring below its field. `use_attribute_docstrings` would do it at each
    import."""

    def model_schema(self, schema: ModelSchema) -> JsonSchemaValue:
        made = super().model_schema(schema)
        model: type[BaseModel] = schema["cls"]
        for name, text in _docstrings(model).items():
            made["properties"][model.model_fields[name].alias or name].setdefault("description", text)
        return made


def _docstrings(model: type[BaseModel]) -> dict[str, str]:
    told: dict[str, str] = {}
    for kind in reversed(model.__mro__):
        if issubclass(kind, BaseModel) and kind is not BaseModel:
            told |= _told_in(kind.__module__).get(kind.__qualname__, {})
    return told


@cache
def _told_in(module: str) -> dict[str, dict[str, str]]:
    told: dict[str, dict[str, str]] = {}
    for definition in ast.parse(inspect.getsource(sys.modules[module])).body:
        if isinstance(definition, ast.ClassDef):
            fields = told.setdefault(definition.name, {})
            for field, below in pairwise(definition.body):
                match field, below:
                    case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str() as text)):
                        fields[name] = inspect.cleandoc(text)
    return told


def _untitled(schema: Any) -> Any:
    if isinstance(schema, dict):
        # A property may be named "title": its value is then a schema, not a string.
        return {k: _untitled(v) for k, v in schema.items() if not (k == "title" and isinstance(v, str))}
    if isinstance(schema, list):
        return [_untitled(entry) for entry in schema]
    return schema
