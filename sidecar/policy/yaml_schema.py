"""Generates the JSON Schema of policy YAML.

The schema is no stricter than `yaml_rows.py` and `grammar.py`; relations between values (a part below its rule, a
condition that compiles, unique ids) are checked by `sidecar policy check`.
"""

from __future__ import annotations

from typing import Any

from sidecar.policy.grammar import ACTIONS, USE
from sidecar.policy.yaml_rows import PERMISSION_TYPES
from sidecar.policy.yaml_seed import ACTIONS as ACTIONS_KEY
from sidecar.policy.yaml_seed import IDS, NULLABLE
from sidecar.settings.schema import DIALECT
from sidecar.vocabulary import PermissionKind

_TIME = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)$"
_ID = r"[!#-&(-+\-./0-{}~]{1,256}"
_SUBJECT = rf"^(\*|anonymous|(user|nhi|role):{_ID})$"
_OBJECT = (
    rf"^(\*|(nhi|set):{_ID}|(tool|prompt):[a-z0-9*-]+(/[A-Za-z0-9_.\-/*]{{1,128}})?"
    r"|resource:[a-z0-9*-]+(/[!#-{}~]{1,2048})?)$"
)
_SIDES = ("subject", "object")
_ROLE = rf"^role:{_ID}$"
_NOTES: dict[str, Any] = {
    "owner": {"type": "string", "description": "Who answers for it."},
    "reason": {"type": "string", "description": "Why it is so: for people, and for whoever is denied."},
    "created_at": {"$ref": "#/$defs/time", "description": "When it was granted."},
}


def policy_schema() -> dict[str, Any]:
    """Return the JSON Schema of one file of rules, roles and sets."""
    return {
        "$schema": DIALECT,
        "title": "rules, roles and sets",
        "type": "object",
        "properties": {
            "version": {"const": 1, "description": "The version of this format."},
            "rules": _rules("Who may do what."),
            "permissions": _rules("The seed's permissions: the same as rules."),
            "capabilities": {
                "type": "object",
                "minProperties": 1,
                "additionalProperties": _one_or_many("object"),
                "description": "Which objects a capability of a role stands for that is no tool's name.",
            },
            "roles": {"oneOf": [_members(_ROLE, "member"), _list("role")]},
            "sets": {"oneOf": [_members(rf"^set:{_ID}$", "element"), _list("set")]},
        },
        "required": ["version"],
        "minProperties": 2,
        "additionalProperties": False,
        "$defs": _definitions(),
    }


def _rules(says: str) -> dict[str, Any]:
    items = {"oneOf": [_ref("rule"), _ref("part"), _ref("permission")]}
    return {"type": "array", "minItems": 1, "items": items, "description": says}


def _definitions() -> dict[str, Any]:
    return {
        "rule": _rule(),
        "permission": _permission(),
        "part": _object(
            {
                "part_of": {"$ref": "#/$defs/id", "description": "The id of the rule directly above."},
                "subject": _one_or_many("subject"),
                "object": _one_or_many("object"),
            },
            required=("part_of", "subject", "object"),
            says="More subjects and objects of the rule above.",
        ),
        "role": {
            **_object(
                {
                    "role": {"type": "string", "minLength": 1},
                    "members": _one_or_many("member"),
                    "capabilities": _one_or_many("capability"),
                    "domain": {"type": "string", "description": "Where the model's g has a domain."},
                    **_NOTES,
                },
                required=("role",),
            ),
            "anyOf": [{"required": ["members"]}, {"required": ["capabilities"]}],
        },
        "set": _object(
            {"set": {"type": "string", "pattern": rf"^set:{_ID}$"}, "objects": _one_or_many("element"), **_NOTES},
            required=("set", "objects"),
        ),
        "subject": _text(_SUBJECT, "user:…, nhi:…, role:…, anonymous or *; * matches any run of characters."),
        "object": _text(_OBJECT, "tool:…, prompt:…, resource:…, nhi:…, set:… or *; * matches any run of characters."),
        "member": _text(rf"^(user|nhi|role):(?!.*\*){_ID}$", "user:…, nhi:… or role:…, exactly."),
        "element": _text(r"^(tool|prompt|resource|nhi|set):[^*\s]+$", "tool:…, nhi:…, set:…, exactly."),
        "capability": _text(r"^[^.\s]+\.\S+$", "<server>.<tool>, <server>.* or *.*"),
        "id": _text(r"^[A-Za-z0-9][A-Za-z0-9._/\-]{0,127}$", "A name that stays when the rule changes."),
        "time": _text(_TIME, "RFC 3339 with a zone: 2027-03-31T00:00:00Z"),
        "action": {
            "anyOf": [{"enum": sorted({USE, *ACTIONS})}, {"type": "string", "pattern": r"[*|]"}],
            "description": "An action, `use` for the usual ones, a pattern, or a list with |.",
        },
    }


def _rule() -> dict[str, Any]:
    guardrail = PermissionKind.GUARDRAIL.value
    properties = {
        "id": {"$ref": "#/$defs/id"},
        "kind": {"enum": [kind.value for kind in PermissionKind], "description": "What it permits, or a guardrail."},
        "subject": _one_or_many("subject"),
        "object": _one_or_many("object"),
        "actions": {
            **_one_or_many("action"),
            "description": "Without it, an allow rule means `use` and a deny rule everything.",
        },
        "effect": {"enum": ["allow", "deny"], "description": "allow, unless said; guardrails deny."},
        "expires_at": {"anyOf": [_ref("time"), {"const": "-"}]},
        "max_calls_per_hour": {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 999_999_999}, {"const": "-"}]},
        "when": {"type": "string", "minLength": 1, "maxLength": 4096, "description": "A CEL condition."},
        "per": {"enum": ["subject", "origin", "rule"], "description": "Whose calls the limit counts together."},
        "shadow": {"type": "boolean", "description": "Recorded, and changes nothing."},
        "permission_type": {"enum": list(PERMISSION_TYPES), "description": "delegate adds the action delegate."},
        "dom": {"type": "string", "description": "Where the model has domains."},
        **_NOTES,
    }
    properties[ACTIONS_KEY] = {**_one_or_many("action"), "description": "The seed's word for actions."}
    agents_only = {"properties": {"kind": {"enum": ["user_to_nhi", "nhi_to_nhi"]}}}
    return {
        **_object(properties, required=("kind", "subject", "object")),
        "allOf": [
            {
                "if": {"properties": {"kind": {"const": guardrail}}, "required": ["kind"]},
                "then": {"properties": {"effect": {"const": "deny"}}},
            },
            {
                "if": {"properties": {"effect": {"const": "deny"}}, "required": ["effect"]},
                "then": {"properties": {"max_calls_per_hour": {"const": "-"}}},
            },
            {"if": {"required": ["permission_type"]}, "then": agents_only},
        ],
    }


def _permission() -> dict[str, Any]:
    """Return the schema of a rule in the seed's form: its ids determine the kind, and missing values may be null."""
    plain = _rule()["properties"]
    said = {name: {"anyOf": [plain[name], {"type": "null"}]} if name in NULLABLE else plain[name] for name in plain}
    for name, key in IDS.items():
        one = {"type": "string", "minLength": 1}
        says = f"The seed's word for {key.name}; a bare UUID is of the kind that the permission has there."
        said[name] = {"anyOf": [one, {"type": "array", "minItems": 1, "items": one}], "description": says}
    needed = [{"anyOf": _required(what, *(name for name in IDS if IDS[name].name == what))} for what in _SIDES]
    return {**_object(said, required=()), "allOf": [*needed, {"anyOf": _required(*IDS)}]}


def _required(*names: str) -> list[dict[str, Any]]:
    return [{"required": [name]} for name in names]


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{name}"}


def _text(pattern: str, says: str) -> dict[str, Any]:
    return {"type": "string", "pattern": pattern, "description": says}


def _one_or_many(name: str) -> dict[str, Any]:
    return {"anyOf": [_ref(name), {"type": "array", "minItems": 1, "uniqueItems": True, "items": _ref(name)}]}


def _list(name: str) -> dict[str, Any]:
    return {"type": "array", "minItems": 1, "items": _ref(name)}


def _members(pattern: str, name: str) -> dict[str, Any]:
    """Return the schema of a mapping of containers to their members."""
    return {
        "type": "object",
        "minProperties": 1,
        "patternProperties": {pattern: _one_or_many(name)},
        "additionalProperties": False,
    }


def _object(properties: dict[str, Any], required: tuple[str, ...], says: str = "") -> dict[str, Any]:
    described = {"description": says} if says else {}
    return {
        **described,
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }
