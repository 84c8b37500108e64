"""Redacts the answers of upstreams by rules.

    classes     where in a text is something that looks like a secret, and is it one?
    texts       a text without them, in slices
    pointers    where in a value does a JSON Pointer with wildcards lead?
    screen      the rules of one upstream, compiled; one message through them

All of it without I/O: a message goes in, and comes out changed, or refused. Work is done in slices, as generators that
yield where others may have their turn (threats I11): who drives them decides what happens in between.
"""

from sidecar.gateway.redaction.compiled_rules import CompiledReading, ResponseScreen, screen_from

__all__ = ["CompiledReading", "ResponseScreen", "screen_from"]
