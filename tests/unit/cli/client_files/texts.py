"""How does the same JSON look when people have written it: indented, with comments and trailing commas?"""

import json
import re
from typing import Any

from hypothesis import strategies as st

from tests.drawn import containers

_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+|\s+')
BETWEEN = ("", " ", "\n", "\r\n  ", '// a, comment } "\n', "/* and\n one */", "\t", "/**/")

scalars = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
values = st.recursive(scalars | texts, containers(texts, 4), max_leaves=12)


@st.composite
def written(draw: st.DrawFn, of: st.SearchStrategy[Any]) -> tuple[Any, str]:
    """A value, and a text that says it."""
    value = draw(of)
    plain = json.dumps(value, indent=draw(st.sampled_from([None, 2, "\t"])), ensure_ascii=draw(st.booleans()))
    if draw(st.booleans()):
        return value, plain
    parts: list[str] = []
    before = ""
    for token in _TOKENS.findall(plain):
        if token in "}]" and before not in ("{", "[", "") and draw(st.booleans()):
            parts.append(",")
        parts.append(token)
        parts.append(draw(st.sampled_from(BETWEEN)))
        before = token if token.strip() else before
    return value, "".join(parts)
