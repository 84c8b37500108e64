"""Containers of drawn values, for `st.recursive`.

A named function, because Hypothesis parses the source of a lambda to describe it, and CPython 3.11's parser fails deep
in a recursion ("AST constructor recursion depth mismatch").
"""

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

Values = st.SearchStrategy[Any]


def containers(keys: st.SearchStrategy[str], most: int | None = 3) -> Callable[[Values], Values]:
    """Lists and dictionaries with at most `most` entries; None is no bound."""

    def extended(inner: Values) -> Values:
        return st.lists(inner, max_size=most) | st.dictionaries(keys, inner, max_size=most)

    return extended
