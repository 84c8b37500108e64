"""The generated reference of the command line, the HTTP API and the error codes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from docs.error_codes import GROUPS, MEANINGS, reports
from docs.tables import escaped, table
from sidecar.admin.openapi import AUTHZEN_ERRORS, ERRORS, document
from sidecar.admin.routes import ROUTES, OperatorRoute
from sidecar.cli import main

Schema = Mapping[str, Any]
_OPTION = re.compile(r"`[^`]*`|(?<![\w-])--?[a-z](?:[a-z-]*[a-z])?(?![\w-])")

# --- the command line -------------------------------------------------------------------------------------------------


def commands() -> str:
    """Every command: usage, description, arguments and options."""
    context = click.Context(main, info_name="sidecar")
    parts = [_options(main, context)]
    for name in main.list_commands(context):
        parts += _command(main, context, name, "##")
    return "\n\n".join(filter(None, parts))


def _command(group: click.Group, above: click.Context, name: str, level: str) -> Iterator[str]:
    command = group.get_command(above, name)
    assert command is not None, name
    context = click.Context(command, info_name=name, parent=above)
    yield f"{level} {context.command_path}"
    yield _paragraphs(command.help or command.short_help or "")
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            yield from _command(command, context, inner, "###")
        return
    yield f"```text\n{context.command_path} {' '.join(command.collect_usage_pieces(context))}\n```"
    yield _options(command, context)


def _paragraphs(text: str) -> str:
    return "\n\n".join(map(_paragraph, inspect.cleandoc(text).split("\n\n")))


def _paragraph(text: str) -> str:
    if text.startswith("\b\n"):  # lines that click does not wrap
        return f"```text\n{text[2:]}\n```"
    return _with_options(" ".join(text.split()))


def _with_options(text: str) -> str:
    """Help with the names of options as code."""
    return escaped(_OPTION.sub(lambda found: found[0] if found[0].startswith("`") else f"`{found[0]}`", text))


def _options(command: click.Command, context: click.Context) -> str:
    shown = [one for one in command.get_params(context) if isinstance(one, click.Option) and not one.hidden]
    rows = [_option(one, context) for one in shown if "--help" not in one.opts]
    return table(("Option", "Default", "Description"), rows) if rows else ""


def _option(option: click.Option, context: click.Context) -> tuple[str, ...]:
    names = ", ".join([*option.opts, *option.secondary_opts])
    value = "" if option.is_flag or option.count else f" {option.make_metavar(context)}"
    default = _default(option, context)
    described = _with_options(option.help or "")
    if isinstance(option.envvar, str):
        described = f"{described} Environment variable: `{option.envvar}`.".strip()
    if option.multiple and "repeat" not in described:
        described = f"{described} Repeatable.".strip()
    return f"`{names}{value}`", default, described


def _default(option: click.Option, context: click.Context) -> str:
    if option.required:
        return "required"
    value = option.get_default(context, call=False)
    if option.is_flag or callable(value) or value in (None, "", (), False) or "UNSET" in repr(value):
        return "–"
    return f"`{value}`"


# --- the HTTP API -----------------------------------------------------------------------------------------------------

_SECTIONS = (
    ("Tool calls", "the data listener, `server.listen`", r"/mcp/"),
    ("Task API", "the data listener, `server.listen`; each path also exists below `/api/nhi`", r"/a2a/"),
    ("Agents and runs", "the admin listener, `admin.listen`", r"/api/(agents|runs)"),
    ("Approvals", "the admin listener, `admin.listen`", r"/api/approvals"),
    ("Schedules", "the admin listener, `admin.listen`", r"/api/schedules"),
    ("Other operations", "the admin listener, `admin.listen`", r"/api/"),
    ("Decisions (AuthZEN)", "the admin listener, or `pdp.listen`", r"/(access|\.well-known)/"),
)
_ERRORS = """\
At the data listener, errors are [McpError](#mcperror) documents. [Reasons](reasons.md) explains `reason`. A status
502 without a `reason` means that the tool or its server answered with an error; `details` contains it.

At the admin listener, errors are [Problem](#problem) documents:"""
_VERBS = ("get", "post", "put", "delete")


def http_api() -> str:
    """Every operation of the OpenAPI document, and the schemas of their bodies."""
    described = document()
    parts, left = [], dict(described["paths"])
    for title, listener, pattern in _SECTIONS:
        paths = [path for path in left if re.match(pattern, path)]
        parts += [f"## {title}", f"Served at {listener}."]
        parts += [part for path in paths for part in _operations(path, left.pop(path))]
    assert not left, left
    parts += ["## Errors", _ERRORS, _statuses(ERRORS), "For decisions:", _statuses(AUTHZEN_ERRORS)]
    parts += ["## Operator routes without a schema", _others()]
    parts += ["## Schemas", *(_schema(name, one) for name, one in described["components"]["schemas"].items())]
    return "\n\n".join(parts)


def _statuses(errors: Mapping[int, str]) -> str:
    return table(("Status", "Meaning"), [(f"`{status}`", escaped(told)) for status, told in errors.items()])


def _operations(path: str, item: Schema) -> Iterator[str]:
    routes = {(route.method.lower(), route.path): route for route in ROUTES}
    for verb in _VERBS:
        if verb in item:
            yield f"### `{verb.upper()} {path}`"
            yield escaped(item[verb]["summary"]) + "."
            yield from _operation(item, item[verb], routes.get((verb, path)))


def _operation(item: Schema, operation: Schema, route: OperatorRoute | None) -> Iterator[str]:
    if route is not None:
        yield _roles(route)
    parameters = [one for one in [*item.get("parameters", ()), *operation.get("parameters", ())] if _is_shown(one)]
    rows = [(f"`{one['name']}`", one["in"], _type(one["schema"]), _described(one)) for one in parameters]
    if rows:
        yield table(("Parameter", "In", "Type", "Description"), rows)
    body = operation.get("requestBody")
    if body:
        yield f"Request body: {_body(body)}{'' if body.get('required') else ', optional'}."
    responses = sorted(operation["responses"].items())
    good = [(f"`{status}`", _body(one), _described(one)) for status, one in responses if status < "300"]
    yield table(("Status", "Body", "Description"), good)
    yield _refusals({status: one for status, one in responses if status >= "300"})


def _refusals(responses: Mapping[str, Schema]) -> str:
    """The errors of an operation: by reason at the data listener, else by status."""
    reasons = [(status, re.findall(r"`([a-z-]+)`:", one["description"])) for status, one in responses.items()]
    if not any(found for _, found in reasons):
        return f"Errors: {', '.join(f'`{status}`' for status in responses)} ([meaning](#errors))."
    listed = ((f"`{status}`", ", ".join(f"`{one}`" for one in found) or "–") for status, found in reasons)
    return table(("Error", "Reasons"), list(listed))


def _roles(route: OperatorRoute) -> str:
    if route.is_for_people:
        return "For the people that policy names as approvers, with a credential of any role."
    return f"Role: {' or '.join(f'`{role}`' for role in route.roles)}."


def _is_shown(parameter: Schema) -> bool:
    return parameter["in"] != "header" or not parameter["name"].endswith(("-Run-Id", "-Thread-Id"))


def _body(one: Schema) -> str:
    schemas = [_type(kind["schema"]) if "schema" in kind else name for name, kind in one.get("content", {}).items()]
    return " or ".join(schemas) or "–"


def _described(one: Schema) -> str:
    return escaped(" ".join(one.get("description", "").split()))


def _others() -> str:
    rows = []
    for route in ROUTES:
        if route.response is Any:
            query = ", ".join(f"`{name}`" for name in route.query) or "–"
            rows.append((f"`{route.method} {route.path}`", ", ".join(f"`{role}`" for role in route.roles), query))
    return table(("Route", "Roles", "Query parameters"), rows)


def _schema(name: str, schema: Schema) -> str:
    needed = schema.get("required", ())
    rows = [
        (f"`{key}`", _type(one), "yes" if key in needed else "no", _described(one))
        for key, one in schema.get("properties", {}).items()
    ]
    members = table(("Member", "Type", "Required", "Description"), rows) if rows else "It has no members."
    return "\n\n".join(filter(None, (f"### {name}", _described(schema), members)))


def _type(schema: Schema) -> str:
    """A JSON Schema in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "allOf" in schema:
        return _type(schema["allOf"][0])
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return " or ".join("null" if value is None else f"`{value}`" for value in values)
    choices = [one for key in ("anyOf", "oneOf") for one in schema.get(key, ())]
    if choices:
        return " or ".join(dict.fromkeys(map(_type, choices)))
    kinds = schema.get("type", "any")
    if isinstance(kinds, str):
        kinds = [kinds]
    return " or ".join(_kind(kind, schema) for kind in kinds)


def _kind(kind: str, schema: Schema) -> str:
    if kind == "array":
        return f"list of {_type(schema['items'])}" if "items" in schema else "list"
    ends = [str(schema[key]) for key in ("minimum", "maximum") if key in schema]
    return f"{kind}, {' to '.join(ends)}" if kind == "integer" and len(ends) == 2 else kind


# --- error codes ------------------------------------------------------------------------------------------------------


def error_codes() -> str:
    """Every code with its meaning, its messages and its hints."""
    known = reports()
    parts: list[str] = []
    for letter, title in GROUPS.items():
        parts.append(f"## {title}")
        for code in (code for code in MEANINGS if code.startswith(letter)):
            rows: Sequence[tuple[str, str]] = [
                (f"`{_literal(one.message)}`", f"`{_literal(one.hint)}`" if one.hint else "–") for one in known[code]
            ]
            parts += [f"### {code}", MEANINGS[code]]
            parts += [table(("Message", "Hint"), rows)] if rows else []
    return "\n\n".join(parts)


def _literal(text: str) -> str:
    return text.replace("`", "'")
