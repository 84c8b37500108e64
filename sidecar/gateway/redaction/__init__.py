"""Redacts the answers of upstreams by rules.

    compiled_rules.py   the rules of one upstream, compiled and applied to a message
    text_redaction.py   removes matches from a text, in slices

There is no I/O: a message is modified or refused. Work is done in slices, as generators that yield where other work may
run (threats I11); the code that drives them decides what runs in between.
"""

from sidecar.gateway.redaction.compiled_rules import CompiledReading, ResponseScreen, screen_from

__all__ = ["CompiledReading", "ResponseScreen", "screen_from"]
