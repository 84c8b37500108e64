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
    """One rule of what is taken out of answers before they go on."""

    tools: Annotated[Many[ToolPattern], Field(min_length=1)] = ("*",)
    """The tools it is for, with `*`. A rule for `*` is also for prompts, resources, completions and errors."""
    classes: Many[SecretClass] = ()
    """Kinds of secrets to look for in every text of the answer, and of everything else that the server sends."""
    prefixes: Many[Prefix] = ()
    """Beginnings of tokens of your own: each, and the 8 or more letters, digits, `_` or `-` that follow it."""
    pointers: Many[Pointer] = ()
    """JSON Pointers, with `*`, of what is always replaced, also in a text that repeats `structuredContent`."""
    replace: Replacement = "[redacted]"
    """The replacement: up to 16 asterisks, or words in `[...]` or `<...>`."""

    def _faults(self) -> Iterator[Finding]:
        if not (self.classes or self.prefixes or self.pointers):
            yield Finding("this rule redacts nothing", "S130", "name classes, prefixes or pointers", on_key=True)


class ResponseSettings(Section):
    """Which parts of an upstream's responses reach callers, and which are stored."""

    redact: Many[RedactionSettings] = ()
    """What the sidecar removes; every rule for the tool applies."""
    max_bytes: Bytes | None = None
    """Largest answer to a call of a tool, prompt or resource. By default `server.max_response_bytes`."""
    max_bytes_of: dict[ToolPattern, Bytes] = Field(default_factory=dict)
    """The same for some tools, by name or pattern, instead of `max_bytes`; of several that fit the smallest holds."""
    check_output: bool = False
    """Whether results must fit the tool's `outputSchema`; a tool whose `outputSchema` cannot be used is quarantined."""
    evidence: Many[ToolPattern] = ()
    """Tools whose results are stored, redacted, in `evidence/evidence.jsonl` in the data folder."""

    def _faults(self) -> Iterator[Finding]:
        prefixes = {prefix for rule in self.redact for prefix in rule.prefixes}
        for index, rule in enumerate(self.redact):
            if any(prefix in rule.replace for prefix in prefixes):
                message = "this replacement contains a prefix that is searched for"
                yield Finding(message, "S131", "choose another replacement", ("redact", index, "replace"))
