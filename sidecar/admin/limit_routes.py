"""Admin routes that show and reset limits."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl

from sidecar.limits.usage_report import UsageQuery
from sidecar.settings.uris import named_object

_WORDS = {"principal", "object", "limit"}
_PRINCIPAL = re.compile(r"anonymous|(user|nhi):[!#-&(-)+\--{}~]{1,256}")
_OBJECT = re.compile(r"(tool|prompt|resource|nhi):\S{1,1024}")


class UnclearError(ValueError):
    """The query or order is unclear."""


def wanted_in(query: str) -> UsageQuery:
    """`principal`, `object` and `limit` of a query. Raises UnclearError for anything else instead of ignoring it."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), errors="strict", max_num_fields=8)
    except ValueError:
        raise UnclearError("the query cannot be read") from None
    given = dict(pairs)
    if len(given) < len(pairs) or not given.keys() <= _WORDS:
        raise UnclearError("ask by principal, object and limit, each once at most")
    return checked(given)


def checked(given: dict[str, str]) -> UsageQuery:
    """The values, checked for form. Raises UnclearError."""
    if "principal" in given and not _PRINCIPAL.fullmatch(given["principal"]):
        raise UnclearError("principal: write user:<id> or nhi:<id>")
    if "object" in given and not _OBJECT.fullmatch(given["object"]):
        raise UnclearError("object: write tool:<server>/<tool>, prompt:…, resource:… or nhi:…")
    if "object" in given:
        given["object"] = named_object(given["object"])
    if len(given.get("limit", "*")) > 1024 or given.get("limit") == "":
        raise UnclearError("limit: write its name, or a pattern with *")
    return UsageQuery(**given)
