"""Settings of response rules and stored results."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from sidecar.settings.field_types import Bytes, Many, Section, named
from sidecar.settings.validation_errors import Finding

ToolPattern = Annotated[
    str, Field(max_length=256), named(r"[A-Za-z0-9_.\-/*]+", "name of a tool", "such as search_code, get_* or *")
]
Pointer = Annotated[
    str,
    Field(max_length=1024),
    named(r"(/([^~/]|~[01])*)+", "JSON Pointer", "such as /structuredContent/email or /structuredContent/*/email"),
]
Prefix = Annotated[
    str, Field(max_length=64), named(r"[A-Za-z0-9_.\-]{3,}", "prefix", "3 characters or more of A-Z a-z 0-9 _ . -")
]
# The brackets keep a replacement from becoming part of a pattern that is searched for.
Replacement = Annotated[
    str, named(r"\*{1,16}|\[[A-Za-z :_-]{0,32}\]|<[A-Za-z :_-]{0,32}>", "replacement", "such as [gone] or ***")
]
SecretClass = Literal["email", "card", "bearer", "jwt", "api_key", "private_key", "iban", "ssn", "ipv4"]


class RedactionSettings(Section):
    """A rule that replaces parts of responses before they reach callers."""

    tools: Annotated[Many[ToolPattern], Field(min_length=1)] = ("*",)
    """Tools to which the rule applies, by name or pattern. A rule for `*` also applies to prompts, resources,
    completions and errors."""
    classes: Many[SecretClass] = ()
    """Kinds of secrets to find in every text of the response, and in everything else that the server sends."""
    prefixes: Many[Prefix] = ()
    """Prefixes of your own tokens. The rule replaces the prefix and the 8 or more letters, digits, `_` or `-` that
    follow it."""
    pointers: Many[Pointer] = ()
    """JSON Pointers of values that are always replaced, also in a text that repeats `structuredContent`. `*` matches
    any member or index."""
    replace: Replacement = "[redacted]"
    """Replacement: up to 16 asterisks, or words in `[...]` or `<...>`."""

    def _faults(self) -> Iterator[Finding]:
        if not (self.classes or self.prefixes or self.pointers):
            yield Finding("this rule has no effect", "S130", "name classes, prefixes or pointers", on_key=True)


class ResponseSettings(Section):
    """Which parts of an upstream's responses reach callers, and which are stored."""

    redact: Many[RedactionSettings] = ()
    """Redaction rules. Every rule for the tool applies."""
    max_bytes: Bytes | None = None
    """Maximum size of a response to a call of a tool, prompt or resource. Default: `server.max_response_bytes`."""
    max_bytes_of: dict[ToolPattern, Bytes] = Field(default_factory=dict)
    """Maximum sizes for some tools, by name or pattern, instead of `max_bytes`. If several match, the smallest
    applies."""
    check_output: bool = False
    """Whether results must match the `outputSchema` of the tool. A tool whose `outputSchema` cannot be used is
    quarantined."""
    evidence: Many[ToolPattern] = ()
    """Tools whose results are stored, after redaction, in `evidence/evidence.jsonl` in the data folder."""

    def _faults(self) -> Iterator[Finding]:
        prefixes = {prefix for rule in self.redact for prefix in rule.prefixes}
        for index, rule in enumerate(self.redact):
            if any(prefix in rule.replace for prefix in prefixes):
                message = "this replacement contains one of the prefixes"
                yield Finding(message, "S131", "choose another replacement", ("redact", index, "replace"))
