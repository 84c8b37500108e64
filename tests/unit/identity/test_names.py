"""Can any text be a name, and can any two issuers give the same one?"""

from hypothesis import given, strategies as st

from sidecar.identity.names import NamingRule, is_id, namespace_of
from sidecar.settings.field_types import is_caller

TEXT = st.text(max_size=300) | st.text("abc/:-*|,'\" é", max_size=12)
NAMESPACE = st.sampled_from(["", "corp", "partner", "a-b"])


@given(TEXT)
def test_an_id_is_of_the_grammar(text: str) -> None:
    printable = all("!" <= sign <= "~" for sign in text)
    assert is_id(text) == (1 <= len(text) <= 256 and printable and not set(text) & set("\"',|*"))


@given(TEXT)
def test_only_users_and_nhis_are_principals(text: str) -> None:
    for kind in ("user", "nhi", "role", "anonymous", "User", ""):
        assert is_caller(f"{kind}:{text}") == (kind in ("user", "nhi") and is_id(text))


@given(NAMESPACE, NAMESPACE, TEXT, TEXT)
def test_issuers_of_different_namespaces_never_give_one_name(first: str, second: str, one: str, other: str) -> None:
    if first == second:
        return
    known = frozenset(space for space in (first, second) if space)
    name = NamingRule(first, known - {first}).name("user", one)
    assert name is None or name != NamingRule(second, known - {second}).name("user", other)


@given(NAMESPACE, TEXT)
def test_a_name_is_a_principal_of_the_issuers_namespace(namespace: str, text: str) -> None:
    name = NamingRule(namespace, frozenset({"other"})).name("nhi", text)
    if name is not None:
        assert is_caller(name) and name.endswith(text)
        assert namespace_of(name) == namespace or not namespace
