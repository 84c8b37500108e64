"""How does a test ask what a message is asked as, and which values no name, string or object may have?"""

from collections.abc import Mapping
from typing import Any

from sidecar.protocols.jsonrpc import Message, Notification, Request, message_from, parse_json
from sidecar.protocols.mcp import messages
from sidecar.protocols.mcp.eras import META_CAPABILITIES, META_VERSION, Era
from sidecar.vocabulary import Call

STATELESS, SESSION = Era.STATELESS, Era.SESSION
ENVELOPE_META = {META_VERSION: "2026-07-28", META_CAPABILITIES: {}}


def parse_message(raw: bytes) -> Message:
    """A caller's bytes as one message. Raises Refusal."""
    return message_from(parse_json(raw))


def call_of(method: str, params: Mapping[str, Any], era: Era = SESSION, *, notification: bool = False) -> Call:
    params = {**params, "_meta": {**ENVELOPE_META, **params.get("_meta", {})}} if era is STATELESS else dict(params)
    message = Notification(method, params) if notification else Request(1, method, params)
    return messages.call_from(message, era, "v", "github")


NO_STRINGS = (None, True, 0, 1.5, [], ["a"], {}, {"a": 1})
NO_OBJECTS = (None, True, 0, 1.5, "", "{}", [], [{}])
NO_NAMES = (
    *("", "x" * 129, "read ", " read", "re ad", "read\n", "\nread", "read\0", "r\u0435ad", "re\u0301ad", "réad"),
    *("read\u200b", "\u202eread", "％", "a*", "a|b", "a,b", 'a"b', "a:b", "a\\b", "a;b", "a#b", "a?b", "a%b"),
    *("read\u00a0", "＊", "a\tb"),
)
