"""Maps the normal form of a resource URI to the upstream's own spelling.

Calls are sent in normal form. A server that lists `docs://README` and compares texts would not find `docs://readme`, so
a URI that an upstream lists in another spelling is sent back to it in that spelling. Only its own lists are trusted for
this.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from sidecar.settings.uris import fault_in_uri, normal_uri

MAX_SPELLINGS: Final = 1_000


class Spellings:
    """The spellings of one upstream that are not the normal form, the latest ones."""

    __slots__ = ("_by_form",)

    def __init__(self) -> None:
        self._by_form: OrderedDict[str, str] = OrderedDict()

    def learn(self, form: str, written: str) -> None:
        """Record the upstream's spelling of a normal form. If it lists the normal form too, that one is used."""
        if written == form:
            if form in self._by_form:
                self._by_form[form] = form
            return
        self._by_form.setdefault(form, written)
        while len(self._by_form) > MAX_SPELLINGS:
            self._by_form.popitem(last=False)

    def learn_all(self, written: tuple[str, ...]) -> None:
        """Record a whole list of resources."""
        for uri in written:
            if not fault_in_uri(uri):
                self.learn(normal_uri(uri), uri)

    def spelled(self, form: str) -> str:
        """The upstream's spelling of a normal form."""
        return self._by_form.get(form, form)
