"""Converts agent cards between A2A 0.3 and 1.0.

Where 1.0 has a list of interfaces, 0.3 has one main address and a list of additional ones. It states security
requirements in OpenAPI's form, and the existence of an extended card at the top level. Its JSON and its Protocol
Buffers differ in security, and in members that are false, which Protocol Buffers cannot distinguish from absent ones.
The official compatibility layer is the reference in both directions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from sidecar.protocols.a2a.messages import V10
from sidecar.protocols.a2a.operations import version_meant
from sidecar.protocols.a2a.schema import Json, Read, Schema, UnreadableMessage, schema_from

VERSION: Final = "0.3.0"  # the form in cards, with the patch
DEFAULT_TRANSPORT: Final = "JSONRPC"
_LOCATIONS: Final = frozenset({"cookie", "header", "query"})

CARD03: Final[Schema] = schema_from(
    "",
    """
AgentCard: 1 name:string, 2 description:string, 3 version:string, 4 url:string, 5 protocol_version:string,
    6 preferred_transport:string, 7 additional_interfaces:[AgentInterface], 8 provider:AgentProvider,
    9 documentation_url:string?, 10 icon_url:string?, 11 capabilities:AgentCapabilities,
    12 supports_authenticated_extended_card:bool?, 13 security:[Struct], 14 security_schemes:{SecurityScheme},
    15 default_input_modes:[string], 16 default_output_modes:[string], 17 skills:[AgentSkill],
    18 signatures:[AgentCardSignature]
AgentInterface: 1 url:string, 2 transport:string
AgentProvider: 1 url:string, 2 organization:string
AgentCapabilities: 1 streaming:bool?, 2 push_notifications:bool?, 3 extensions:[AgentExtension]
AgentExtension: 1 uri:string, 2 description:string, 3 required:bool, 4 params:Struct
AgentSkill: 1 id:string, 2 name:string, 3 description:string, 4 tags:[string], 5 examples:[string],
    6 input_modes:[string], 7 output_modes:[string], 8 security:[Struct]
AgentCardSignature: 1 protected:string, 2 signature:string, 3 header:Struct
SecurityScheme: 1 type:string, 2 description:string, 3 in:string, 4 name:string, 5 scheme:string,
    6 bearer_format:string, 7 flows:OAuthFlows, 8 oauth2_metadata_url:string, 9 open_id_connect_url:string
OAuthFlows: 1 authorization_code:OAuthFlow, 2 client_credentials:OAuthFlow, 3 implicit:OAuthFlow, 4 password:OAuthFlow
OAuthFlow: 1 authorization_url:string, 2 token_url:string, 3 refresh_url:string, 4 scopes:{string}
""",
    {},
)
_FLOWS: Final[Mapping[str, tuple[str, ...]]] = {
    "authorizationCode": ("authorizationUrl", "tokenUrl", "scopes"),
    "clientCredentials": ("tokenUrl", "scopes"),
    "implicit": ("authorizationUrl", "scopes"),
    "password": ("tokenUrl", "scopes"),
}
# The name of each type of scheme in 1.0, and its required members.
_SCHEMES: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "apiKey": ("apiKeySecurityScheme", ("name", "in")),
    "http": ("httpAuthSecurityScheme", ("scheme",)),
    "oauth2": ("oauth2SecurityScheme", ("flows",)),
    "openIdConnect": ("openIdConnectSecurityScheme", ("openIdConnectUrl",)),
    "mutualTLS": ("mtlsSecurityScheme", ()),
}
TYPES: Final = {scheme: type_ for type_, (scheme, _) in _SCHEMES.items()}


def from_json(given: object) -> Json:
    """The canonical card of a card in the JSON of 0.3. Raises UnreadableMessage if it has no capabilities, or a member
    of it is not valid."""
    card = CARD03.read("AgentCard", given, defaults=True)
    if "capabilities" not in card:
        raise UnreadableMessage("/capabilities", "is missing")
    schemes = card.get("securitySchemes", {})
    return _card_10(
        {
            **card,
            "capabilities": {
                **card["capabilities"],
                "extendedAgentCard": card.get("supportsAuthenticatedExtendedCard"),
            },
            "securitySchemes": {
                name: _scheme_10(scheme, f"/securitySchemes/{name}") for name, scheme in schemes.items()
            },
        },
        _requirements_10,
    )


def from_proto(card: Read) -> Json:
    """The canonical card of an `AgentCard` of the Protocol Buffers of 0.3, where false and absent are the same."""
    capabilities = card.get("capabilities", {})
    return _card_10(
        {
            **card,
            "capabilities": {
                "streaming": capabilities.get("streaming", False),
                "pushNotifications": capabilities.get("pushNotifications", False),
                "extensions": capabilities.get("extensions"),
                "extendedAgentCard": card.get("supportsAuthenticatedExtendedCard", False),
            },
        },
        lambda security, _: security,
    )


def to_json(card: Read) -> Json:
    """A canonical card in the JSON of 0.3. Raises UnreadableMessage if it has no interface of 0.3, or a security scheme
    that is not valid there. A device flow and `pkceRequired`, which 0.3 lacks, are left out."""
    said = _card_03(card, _requirements_03)
    schemes = card.get("securitySchemes", {})
    if schemes:
        said["securitySchemes"] = {
            name: _scheme_03(scheme, f"/securitySchemes/{name}") for name, scheme in schemes.items()
        }
    for skill in said["skills"]:
        for name in ("id", "name", "description"):
            skill.setdefault(name, "")
        skill.setdefault("tags", [])
    for extension in said["capabilities"].get("extensions", ()):
        extension.setdefault("uri", "")
        extension.setdefault("required", False)
    return said


def to_proto(card: Read) -> Json:
    """A canonical card as an `AgentCard` of the Protocol Buffers of 0.3. Raises UnreadableMessage if it has no
    interface of 0.3."""
    said = _card_03(card, list)
    if "securitySchemes" in card:
        said["securitySchemes"] = card["securitySchemes"]
    return said


def _card_10(card: Read, requirements: Callable[[list[Json], str], list[Json]]) -> Json:
    main = {
        "url": card.get("url"),
        "protocolBinding": card.get("preferredTransport") or DEFAULT_TRANSPORT,
        "protocolVersion": card.get("protocolVersion") or "0.3",
    }
    more = [
        {"url": one.get("url"), "protocolBinding": one.get("transport"), "protocolVersion": "0.3"}
        for one in card.get("additionalInterfaces", ())
    ]
    skills = [
        {**skill, "securityRequirements": requirements(skill.get("security", []), f"/skills/{index}/security")}
        for index, skill in enumerate(card.get("skills", ()))
    ]
    capabilities = card["capabilities"]
    extensions = [{**one, "params": one.get("params") or None} for one in capabilities.get("extensions") or ()]
    return V10.read(
        "AgentCard",
        {
            **card,
            "documentationUrl": card.get("documentationUrl") or None,
            "iconUrl": card.get("iconUrl") or None,
            "signatures": [{**one, "header": one.get("header") or None} for one in card.get("signatures", ())],
            "capabilities": {**capabilities, "extensions": extensions},
            "supportedInterfaces": [main, *more],
            "securityRequirements": requirements(card.get("security", []), "/security"),
            "skills": skills,
        },
    )


def _requirements_10(security: list[Json], at: str) -> list[Json]:
    for index, requirement in enumerate(security):
        for name, scopes in requirement.items():
            if not isinstance(scopes, list) or not all(isinstance(scope, str) for scope in scopes):
                raise UnreadableMessage(f"{at}/{index}/{name}", "must be a list of strings")
    return [{"schemes": {name: {"list": scopes} for name, scopes in one.items()}} for one in security]


def _scheme_10(scheme: Read, at: str) -> Json:
    member, needed = _SCHEMES.get(scheme.get("type", ""), ("", ()))
    if not member:
        raise UnreadableMessage(f"{at}/type", "is not a type of a security scheme")
    for name in needed:
        if name not in scheme:
            raise UnreadableMessage(f"{at}/{name}", "is missing")
    if member == "apiKeySecurityScheme" and scheme["in"] not in _LOCATIONS:
        raise UnreadableMessage(f"{at}/in", "is not a place for a key")
    flows = _flow_10(scheme["flows"], f"{at}/flows") if member == "oauth2SecurityScheme" else None
    return {member: {**scheme, "location": scheme.get("in"), "flows": flows}}


def _flow_10(flows: Read, at: str) -> Json:
    """The flow for 1.0, which allows one only: the last in the order of `_FLOWS`, like in the official layer. All are
    checked."""
    found: Json = {}
    for name, needed in _FLOWS.items():
        for member in needed:
            if name in flows and member != "scopes" and member not in flows[name]:
                raise UnreadableMessage(f"{at}/{name}/{member}", "is missing")
        if name in flows:
            found = {name: flows[name]}
    return found


def _card_03(card: Read, requirements: Callable[[list[Json]], list[Any]]) -> Json:
    interfaces = card.get("supportedInterfaces", ())
    old = [one for one in interfaces if version_meant(one.get("protocolVersion", "")) == "0.3"]
    if not old:
        raise UnreadableMessage("/supportedInterfaces", "has none of A2A 0.3")
    main, *more = old
    capabilities = dict(card.get("capabilities", {}))
    extended = capabilities.pop("extendedAgentCard", None)
    said = {
        "name": card.get("name", ""),
        "description": card.get("description", ""),
        "version": card.get("version", ""),
        "url": main.get("url", ""),
        "preferredTransport": main.get("protocolBinding", ""),
        "protocolVersion": main.get("protocolVersion") or "0.3",
        "additionalInterfaces": [
            {"url": one.get("url", ""), "transport": one.get("protocolBinding", "")} for one in more
        ],
        "provider": {"url": "", "organization": "", **card["provider"]} if "provider" in card else None,
        "documentationUrl": card.get("documentationUrl"),
        "iconUrl": card.get("iconUrl"),
        "capabilities": {**capabilities, "extensions": [dict(one) for one in capabilities.get("extensions", ())]},
        "supportsAuthenticatedExtendedCard": extended,
        "security": requirements(card.get("securityRequirements", [])),
        "defaultInputModes": card.get("defaultInputModes", []),
        "defaultOutputModes": card.get("defaultOutputModes", []),
        "skills": [_skill_03(skill, requirements) for skill in card.get("skills", ())],
        "signatures": [{"protected": "", "signature": "", **one} for one in card.get("signatures", ())],
    }
    if not said["capabilities"]["extensions"]:
        del said["capabilities"]["extensions"]
    unsaid = {name for name in ("additionalInterfaces", "security", "signatures") if not said[name]}
    return {name: value for name, value in said.items() if value is not None and name not in unsaid}


def _skill_03(skill: Read, requirements: Callable[[list[Json]], list[Any]]) -> Json:
    said = {name: value for name, value in skill.items() if name != "securityRequirements"}
    security = requirements(skill.get("securityRequirements", []))
    return {**said, "security": security} if security else said


def _requirements_03(requirements: list[Json]) -> list[Any]:
    return [{name: held.get("list", []) for name, held in one.get("schemes", {}).items()} for one in requirements]


def _scheme_03(scheme: Read, at: str) -> Json:
    for member, members in scheme.items():
        type_ = TYPES[member]
        said = {"type": type_, **members}
        if type_ == "apiKey":
            said["in"] = said.pop("location", "")
            if said["in"] not in _LOCATIONS:
                raise UnreadableMessage(f"{at}/{member}/location", "is not a place for a key")
        if type_ == "oauth2":
            said["flows"] = {
                name: {
                    **dict.fromkeys(_FLOWS[name], ""),
                    "scopes": {},
                    **{key: flow[key] for key in flow if key != "pkceRequired"},
                }
                for name, flow in members.get("flows", {}).items()
                if name in _FLOWS  # 0.3 has no flow for devices
            }
        needed = {name: "" for name in _SCHEMES[type_][1] if name != "flows"}
        return {**needed, **said}
    raise UnreadableMessage(at, "holds no scheme")
