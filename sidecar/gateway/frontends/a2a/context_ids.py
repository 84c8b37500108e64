"""Maps context ids of callers to the ids that an agent sees, and back.

Callers may choose the name (`contextId`) themselves, and an agent does not tell them apart: two who chose the same one
would meet there, and a no to the second would tell them of the first. So whoever came first has it as it is. For
everybody else the same words are a conversation of their own: on the way to the agent a prefix that nobody can guess
stands before them, and from what the agent says it is taken away again. None of it is kept, so each replica with this
secret knows it.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from unicodedata import decimal, normalize

import orjson

from sidecar.storage.task_owners import MAX_ID_CHARS

_PURPOSE: Final = b"sidecar/context/1\0"
_PREFIX_CHARS: Final = 32  # 128 bits in hexadecimal digits; in front, because a column that is too short cuts the end
_BETWEEN: Final = "~"
_URN, _UUID_CHARS = "urnuuid", 32
# Where a canonical result has names of conversations. What else is in it is the agent's own.
_WITHIN: Final = frozenset({"task", "tasks", "message", "statusUpdate", "artifactUpdate", "status", "history"})


class ContextIds(NamedTuple):
    """The conversations of one owner at one agent."""

    secret: bytes
    owner: str
    agent: str

    def own(self, context: str) -> str:
        """What it is called there if the words themselves are another's."""
        return f"{self._prefix(alike(context))}{_BETWEEN}{context}"

    def key(self, called: str) -> str:
        """What all spellings of what it is called there come to."""
        context = self._chosen(called)
        return alike(called) if context == called else self._prefix(alike(context)) + alike(context)

    def shown(self, said: Any) -> Any:
        """A result, or a part of one, with the words that their owner chose."""
        if isinstance(said, list):
            return [self.shown(one) for one in said]
        if not isinstance(said, Mapping):
            return said
        changed = {name: self.shown(said[name]) for name in _WITHIN & said.keys()}
        if "contextId" in said:
            changed["contextId"] = self._chosen(said["contextId"])
        return {**said, **changed}

    def _chosen(self, called: str) -> str:
        """The words without our prefix; as they are where there is none."""
        prefix, between, context = called[:_PREFIX_CHARS], called[_PREFIX_CHARS : _PREFIX_CHARS + 1], ""
        if between == _BETWEEN and len(called) <= MAX_ID_CHARS:
            context = called[_PREFIX_CHARS + 1 :]
        ours = context and hmac.compare_digest(prefix.lower().encode(), self._prefix(alike(context)).encode())
        return context if ours else called

    def _prefix(self, plain: str) -> str:
        whose = orjson.dumps([self.owner, self.agent, plain])
        return hmac.digest(self.secret, _PURPOSE + whose, "sha256").hex()[:_PREFIX_CHARS]


def alike(context: str) -> str:
    """What all spellings of a conversation's name come to that some agent may read as the same: one with a column for
    UUIDs does not see case, hyphens and braces, one that counts no zeros in front. Since who names a conversation first
    has begun it, another spelling would be a way into somebody's. Letters and digits alone, lower."""
    letters = filter(str.isalnum, normalize("NFKC", normalize("NFKC", context).casefold()))
    plain = "".join(str(decimal(one)) if one.isdecimal() else one for one in letters)
    if len(plain) == _UUID_CHARS + len(_URN):
        plain = plain.removeprefix(_URN)
    return plain.lstrip("0") or plain[-1:] or context
