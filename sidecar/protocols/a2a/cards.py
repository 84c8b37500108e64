"""Reads and rewrites agent cards.

A card is read in the format of either version, and rewritten. Its interfaces become the sidecar's, and so does every
address on the agent's own hosts that a text contains. The card states how callers authenticate to the sidecar, because
the agent's own requirements concern only the sidecar; its skills are those that this caller may use; and its signatures
are the sidecar's or absent, because the agent signed another card. The sidecar calls no address that a card names.

One document can have both formats, like that of the official SDK's servers: members with the same name are equal in
both, except the security schemes, where one object has the members of both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from sidecar.protocols import base64url
from sidecar.protocols.a2a import cards03
from sidecar.protocols.a2a.messages import V10
from sidecar.protocols.a2a.operations import Binding, Version, version_meant
from sidecar.protocols.a2a.schema import Json, Read, UnreadableMessage
from sidecar.protocols.canonical import canonical_json

MAX_SKILLS: Final = 1000
MAX_OTHERS: Final = 100  # maximum number of extensions, schemes, requirements and signatures each
MAX_INTERFACES: Final = 20
MAX_SAFE: Final = 2**53  # every number in a Struct is a double, and a larger integer loses precision
_MOST: Final[Mapping[str, int]] = {
    "skills": MAX_SKILLS,
    "supportedInterfaces": MAX_INTERFACES,
    "securitySchemes": MAX_OTHERS,
    "securityRequirements": MAX_OTHERS,
    "signatures": MAX_OTHERS,
}
BINDINGS: Final[Mapping[Binding, str]] = {"jsonrpc": "JSONRPC", "http_json": "HTTP+JSON", "grpc": "GRPC"}
VERSIONS: Final[Mapping[Version, str]] = {"0.3": cards03.VERSION, "1.0": "1.0"}


class Interface(NamedTuple):
    """One address of the sidecar, with its binding, its version of A2A, and the tenant that callers name there."""

    url: str
    binding: Binding
    version: Version
    tenant: str = ""


class SecurityScheme(NamedTuple):
    """A way for callers to authenticate: with a `header`, a key in it; otherwise a bearer token of some `form` ("" if
    opaque)."""

    name: str
    form: str = ""
    header: str = ""

    @property
    def scheme(self) -> Json:
        """The security scheme in the form of 1.0."""
        if self.header:
            return {"apiKeySecurityScheme": {"location": "header", "name": self.header}}
        form = {"bearerFormat": self.form} if self.form else {}
        return {"httpAuthSecurityScheme": {"scheme": "Bearer", **form}}


class Security(NamedTuple):
    """The ways for callers to authenticate. `optional`: authentication is not required."""

    ways: tuple[SecurityScheme, ...]
    optional: bool = False

    @property
    def schemes(self) -> Json:
        """The schemes by name, in the form of 1.0."""
        return {way.name: way.scheme for way in self.ways}

    @property
    def requirements(self) -> list[Json]:
        """The requirements in the form of 1.0: any one of the list is enough; [] if authentication is optional."""
        return [] if self.optional else [{"schemes": {way.name: {}}} for way in self.ways]


BEARER: Final = Security((SecurityScheme("bearer", "JWT"),))


class CardSigner(NamedTuple):
    """A signing key of the sidecar: its JWS algorithm, its id, and its signing function."""

    algorithm: str
    kid: str
    sign: Callable[[bytes], bytes]


def read(given: object) -> Json:
    """The canonical card of a card in either format; a card with both formats is read as 1.0. Raises UnreadableMessage
    if it is not a valid card, or fails `check`."""
    if not isinstance(given, dict):
        raise UnreadableMessage("", "must be an object")
    is_10 = "supportedInterfaces" in given or "supported_interfaces" in given
    card = V10.read("AgentCard", given) if is_10 else cards03.from_json(given)
    check(card)
    return card


def check(card: Read) -> None:
    """Checks a canonical card from any binding. Raises UnreadableMessage if it lacks a name, a version, capabilities or
    the id of a skill, if two skills have the same id, or if it has more entries than the bounds allow."""
    for name in ("name", "version"):
        if not card.get(name):
            raise UnreadableMessage(f"/{name}", "is missing")
    if "capabilities" not in card:
        raise UnreadableMessage("/capabilities", "is missing")
    for name, most in _MOST.items():
        if len(card.get(name, ())) > most:
            raise UnreadableMessage(f"/{name}", f"has more than {most}")
    if len(card["capabilities"].get("extensions", ())) > MAX_OTHERS:
        raise UnreadableMessage("/capabilities/extensions", f"has more than {MAX_OTHERS}")
    ids: set[str] = set()
    for index, skill in enumerate(card.get("skills", ())):
        if not skill.get("id"):
            raise UnreadableMessage(f"/skills/{index}/id", "is missing")
        if skill["id"] in ids:  # policy decides by the id
            raise UnreadableMessage(f"/skills/{index}/id", "is that of another skill")
        ids.add(skill["id"])


def ours(
    card: Read,
    interfaces: tuple[Interface, ...],
    may_use: Callable[[str], bool],
    *,
    agent_url: str,
    has_extended: bool,
    security: Security = BEARER,
) -> Json:
    """The canonical card as the sidecar presents it to one caller: with the sidecar's `interfaces`, at least one, and
    the skills whose ids the caller `may_use`. `agent_url` is the agent's address; `has_extended`: an authenticated
    caller can request a larger card."""
    strangers = _Strangers.of(card, interfaces, agent_url)
    kept = {name: card[name] for name in ("name", "description", "version") if name in card}
    kept |= {name: card[name] for name in ("defaultInputModes", "defaultOutputModes") if name in card}
    kept |= {name: card[name] for name in ("documentationUrl", "iconUrl") if strangers.is_web(card.get(name, ""))}
    if strangers.is_web(card.get("provider", {}).get("url", "")):
        kept["provider"] = card["provider"]
    extensions = [one for one in card["capabilities"].get("extensions", ()) if not strangers.are_in(one.get("uri", ""))]
    capabilities = {name: value for name, value in card["capabilities"].items() if name != "extensions"}
    skills = [
        {name: value for name, value in skill.items() if name != "securityRequirements"}
        for skill in card.get("skills", ())
        if may_use(skill["id"])
    ]
    written = strangers.replaced({**kept, "skills": skills})
    return V10.read(
        "AgentCard",
        {
            **written,
            "supportedInterfaces": [
                {
                    "url": one.url,
                    "protocolBinding": BINDINGS[one.binding],
                    "protocolVersion": VERSIONS[one.version],
                    "tenant": one.tenant,
                }
                for one in interfaces
            ],
            "capabilities": {
                **capabilities,
                "extensions": strangers.replaced(extensions),
                "extendedAgentCard": has_extended,
            },
            "securitySchemes": security.schemes,
            "securityRequirements": security.requirements,
        },
    )


class _CardPlace(NamedTuple):
    """The target of an address: its host, "" if it has none, and its port, None if neither the address nor its scheme
    determines one."""

    host: str
    port: int | None


class _Strangers:
    """Finds the agent's addresses in texts: those on hosts that the sidecar has no address on, and those on the agent's
    ports of hosts that it shares with the sidecar. `instead` replaces them."""

    def __init__(self, hosts: set[str], places: set[_CardPlace], instead: str) -> None:
        self._hosts = hosts
        self._places = places
        self._instead = instead
        self._pattern = _naming(hosts, places)

    @classmethod
    def of(cls, card: Read, interfaces: tuple[Interface, ...], agent_url: str) -> _Strangers:
        own = {_place(one.url) for one in interfaces}
        own_hosts = {place.host for place in own} | {""}
        theirs = {_place(agent_url), *(_place(one.get("url", "")) for one in card.get("supportedInterfaces", ()))} - own
        hosts = {place.host for place in theirs} - own_hosts
        places = {place for place in theirs if place.host in own_hosts and place.port is not None}
        return cls(hosts, places, interfaces[0].url)

    def is_web(self, url: str) -> bool:
        """Whether this is an http or https address that does not contain one of the agent's."""
        place = _place(url)
        is_theirs = place.host in self._hosts or place in self._places or self.are_in(url)
        return place.host != "" and url.lower().startswith(("http://", "https://")) and not is_theirs

    def are_in(self, text: str) -> bool:
        return self._pattern.search(text) is not None

    def replaced(self, value: Any) -> Any:
        """The JSON value with the sidecar's address in place of each of the agent's, in strings and names of
        members."""
        if isinstance(value, str):
            return self._pattern.sub(lambda _: self._instead, value)
        if isinstance(value, list):
            return [self.replaced(one) for one in value]
        if isinstance(value, dict):
            return {self.replaced(name): self.replaced(one) for name, one in value.items()}
        return value


def hiding(agent_url: str, instead: str) -> Callable[[Any], Any]:
    """Returns a function that replaces addresses on the agent's host by `instead`, in the JSON of its answers."""
    return _Strangers({_place(agent_url).host} - {""}, set(), instead).replaced


def _naming(hosts: set[str], places: set[_CardPlace]) -> re.Pattern[str]:
    """A pattern for addresses on these hosts or at these places. A host name with a dot also matches alone; a single
    label, as in a cluster, matches only with a scheme or a port, because it may be an ordinary word. Every repetition
    is bounded, because the text is untrusted."""
    colon = r"(?::|%3a)"  # it may be in the query of another address
    scheme = rf"[a-z][a-z0-9+.-]{{0,15}}{colon}(?://|%2f%2f)(?:[^\s/@]{{0,100}}@)?"
    path = r"(?:(?:[/?#]|%2f)[^\s<>\"')\]]{0,2000}(?<![.,;:!?]))?"  # punctuation that ends a sentence is excluded
    before, after = r"(?:(?<![a-z0-9_.-])|(?<=%2f)|(?<=%40))", r"(?!\.?[a-z0-9_-])"
    port = rf"{colon}\d{{1,5}}"
    full = _any_of(host for host in hosts if "." in host or ":" in host)
    words = _any_of(host for host in hosts if "." not in host and ":" not in host)
    ours_too = (rf"\[?{re.escape(place.host)}\.?\]?{colon}{place.port}(?!\d)" for place in sorted(places))
    exact = "|".join(ours_too) or "(?!)"
    found = (
        rf"(?:{scheme})?{before}(?:{full}{after}(?:{port})?|{words}{port}|{exact})"
        rf"|{scheme}{before}{words}{after}(?:{port})?"
    )
    return re.compile(rf"(?:{found}){path}", re.IGNORECASE)


def _any_of(hosts: Iterable[str]) -> str:
    names = "|".join(map(re.escape, sorted(hosts)))
    return rf"\[?(?:{names})(?:\.(?=[:/]))?\]?" if names else "(?!)"


def _place(url: str) -> _CardPlace:
    """The target of an address, which may have no scheme, like those for gRPC in cards."""
    try:
        split = urlsplit(url if "://" in url else f"//{url}")
    except ValueError:
        return _CardPlace("", None)
    try:
        port = split.port or {"http": 80, "https": 443}.get(split.scheme)
    except ValueError:  # its host is still a name
        port = None
    return _CardPlace((split.hostname or "").rstrip("."), port)


def document(card: Read, signer: CardSigner | None = None) -> Json:
    """The JSON of a rewritten card: that of 1.0, and in the same document that of 0.3 if one of its interfaces is of
    0.3. A client verifies the members of its own version, so there is a signature for each; none without a `signer`."""
    written, payloads = dict(card), [_with_doubles(card)]
    if any(version_meant(one["protocolVersion"]) == "0.3" for one in card["supportedInterfaces"]):
        old = cards03.to_json(card)
        written = _merged(written, old)
        payloads.append(_without_defaults_03(old))
    if signer is not None:
        written["signatures"] = [_signature(payload, signer) for payload in payloads]
    return written


def signed(card: Read, signer: CardSigner | None) -> Json:
    """The rewritten card as a message of 1.0, with the sidecar's signature if there is a `signer`."""
    return dict(card) if signer is None else {**card, "signatures": [_signature(_with_doubles(card), signer)]}


def seed_card(card: Read) -> Json:
    """A rewritten card in the form of the original data models."""
    main = card["supportedInterfaces"][0]
    capabilities = card["capabilities"]
    return {
        "name": card["name"],
        "description": card.get("description"),
        "url": main["url"],
        "version": card["version"],
        "protocol_version": main["protocolVersion"],
        "capabilities": {
            "streaming": capabilities.get("streaming", False),
            "push_notifications": capabilities.get("pushNotifications", False),
        },
        "authentication": {"schemes": _schemes(card.get("securitySchemes", {}).values())},
        "skills": [
            {"id": skill["id"], "name": skill.get("name", ""), "description": skill.get("description")}
            for skill in card.get("skills", ())
        ],
    }


def _schemes(schemes: Iterable[Read]) -> list[str]:
    """The accepted credentials, each as one name: `bearer`, or the type in OpenAPI's terms."""
    words = []
    for scheme in schemes:
        for member, held in scheme.items():
            word = held.get("scheme", "").lower() if member == "httpAuthSecurityScheme" else cards03.TYPES[member]
            words.append(word)
    return list(dict.fromkeys(words))


def _merged(one: Any, other: Any) -> Any:
    """`one`, with the members that only `other` has, at any depth. Lists of equal length are merged item by item."""
    if isinstance(one, dict) and isinstance(other, dict):
        both = {name: _merged(one[name], other[name]) if name in other else one[name] for name in one}
        return both | {name: value for name, value in other.items() if name not in one}
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [_merged(here, there) for here, there in zip(one, other, strict=True)]
    return one


def _signature(card: Read, signer: CardSigner) -> Json:
    """A JWS with a detached payload: the canonical form of the card, without signatures and empty values."""
    header = {"alg": signer.algorithm, "kid": signer.kid, "typ": "JOSE"}
    protected = base64url.encode(json.dumps(header, separators=(",", ":")).encode())
    payload = {name: value for name, value in card.items() if name != "signatures"}
    covered = f"{protected}.{base64url.encode(canonical_json(_filled(payload)))}"
    return {"protected": protected, "signature": base64url.encode(signer.sign(covered.encode()))}


def _without_defaults_03(card: Read) -> Json:
    """A card of 0.3 in the form over which clients verify a signature: without values that equal their defaults, such
    as the `type` of a security scheme."""
    rest = dict(card)
    for name, default in (("preferredTransport", cards03.DEFAULT_TRANSPORT), ("protocolVersion", cards03.VERSION)):
        if rest.get(name) == default:
            del rest[name]
    schemes = rest.get("securitySchemes", {})
    rest["securitySchemes"] = {
        name: {member: value for member, value in scheme.items() if member != "type"}
        for name, scheme in schemes.items()
    }
    return rest


def _with_doubles(value: Any) -> Any:
    """The JSON value with long integers as doubles, which they are for readers of 1.0."""
    if isinstance(value, dict):
        return {name: _with_doubles(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_with_doubles(inner) for inner in value]
    is_long = isinstance(value, int) and not isinstance(value, bool) and abs(value) > MAX_SAFE
    return float(value) if is_long else value


def _filled(value: Any) -> Any:
    """The JSON value without null, empty texts, lists and objects, at any depth."""
    if isinstance(value, dict):
        members = {name: _filled(inner) for name, inner in value.items()}
        return {name: inner for name, inner in members.items() if not _is_empty(inner)}
    if isinstance(value, list):
        return [inner for inner in map(_filled, value) if not _is_empty(inner)]
    return value


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, str | list | dict) and not value)
