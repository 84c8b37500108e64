"""Maps context ids of callers to the ids that an agent sees, and back.

Callers may choose a `contextId` themselves, and an agent does not distinguish callers: two callers with the same id
would share a context, and refusing the second would disclose that the first exists. So the first owner's id is sent
unchanged. For any other owner, an unguessable prefix is added before the id goes to the agent, and removed from the
agent's answers. The prefix is derived from a secret and not stored, so every replica with the secret knows it.
"""

from __future__ import annotations

import hmac
from operator import is_
from typing import Any, Final, NamedTuple
from unicodedata import decimal, normalize

import orjson

from sidecar.storage.task_owners import MAX_ID_CHARS

_PURPOSE: Final = b"sidecar/context/1\0"
# 128 bits in hexadecimal digits; a prefix, because a column that is too short truncates the end
_PREFIX_CHARS: Final = 32
_BETWEEN: Final = "~"
_NO_LETTERS: Final = {code: None for code in range(128) if not chr(code).isalnum()}
_URN, _UUID_CHARS = "urnuuid", 32
# The members of a canonical result that hold context ids. All other members are the agent's own.
_WITHIN: Final = frozenset({"task", "tasks", "message", "statusUpdate", "artifactUpdate", "status", "history"})


class ContextIds(NamedTuple):
    """The contexts of one owner at one agent."""

    secret: bytes
    owner: str
    agent: str

    def own(self, context: str) -> str:
        """Returns the id at the agent for a context whose plain id another owner has."""
        return f"{self._prefix(alike(context))}{_BETWEEN}{context}"

    def key(self, called: str) -> str:
        """Returns one form for all spellings of the id at the agent."""
        context = self._chosen(called)
        return alike(called) if context == called else self._prefix(alike(context)) + alike(context)

    def shown(self, said: Any) -> Any:
        """Returns a result with the ids that its caller knows; the same object where nothing changes."""
        if type(said) is list:
            entries = [self.shown(one) for one in said]
            return said if all(map(is_, entries, said)) else entries
        if type(said) is not dict:
            return said
        changed = {}
        for name in _WITHIN & said.keys():
            if (inner := self.shown(said[name])) is not said[name]:
                changed[name] = inner
        if "contextId" in said and (chosen := self._chosen(said["contextId"])) != said["contextId"]:
            changed["contextId"] = chosen
        return {**said, **changed} if changed else said

    def _chosen(self, called: str) -> str:
        """Returns the id that the caller knows: the part after the prefix, if the prefix is this owner's."""
        if called[_PREFIX_CHARS : _PREFIX_CHARS + 1] != _BETWEEN or len(called) > MAX_ID_CHARS:
            return called
        prefix, context = called[:_PREFIX_CHARS], called[_PREFIX_CHARS + 1 :]
        ours = context and hmac.compare_digest(prefix.lower().encode(), self._prefix(alike(context)).encode())
        return context if ours else called

    def _prefix(self, plain: str) -> str:
        whose = orjson.dumps([self.owner, self.agent, plain])
        return hmac.digest(self.secret, _PURPOSE + whose, "sha256").hex()[:_PREFIX_CHARS]


def alike(context: str) -> str:
    """Returns one form for all spellings of a context id that some agent may treat as equal: a UUID column ignores
    case, hyphens and braces, a number column ignores leading zeros. The first caller that names a context owns it;
    without this, another spelling would reach a context of another owner. The form has only lower-case letters and
    digits; an id without any is returned unchanged."""
    if context.isascii():
        plain = context.lower().translate(_NO_LETTERS)
    else:
        letters = filter(str.isalnum, normalize("NFKC", normalize("NFKC", context).casefold()))
        plain = "".join(str(decimal(one)) if one.isdecimal() else one for one in letters)
    if len(plain) == _UUID_CHARS + len(_URN):
        plain = plain.removeprefix(_URN)
    return plain.lstrip("0") or plain[-1:] or context
