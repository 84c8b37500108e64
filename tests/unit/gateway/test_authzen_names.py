"""Names of AuthZEN lead to names of rules and back."""

import pytest
from hypothesis import given, strategies as st

from sidecar.errors import Reason, Refusal
from sidecar.gateway.decisions.authzen_messages import Evaluation
from sidecar.gateway.decisions.authzen_names import NameTemplate, Vocabulary, is_exact
from sidecar.settings.pdp import AuthzenSettings, AuthzenType

TEMPLATES = [
    NameTemplate(text)
    for text in (
        *(
            "user:*",
            "user:corp/*",
            "nhi:*",
            "tool:*",
            "tool:records/*",
            "tool:records/x-*-y",
            "tool:records/{action}/*",
        ),
        *("tool:records/*/{action}", "resource:*", "resource:notes/note:*", "resource:web/https://a.example/*?x=1"),
        *("resource:notes/{action}:*", "prompt:p/*"),
    )
]
IDS = st.text("aB1/._-:*{}%@ é\n?#", min_size=0, max_size=8)
ACTIONS = st.text("aB1._-/:", max_size=4)


@given(template=st.sampled_from(TEMPLATES), given_id=IDS, action=ACTIONS)
def test_a_name_is_exact_and_its_id_gives_it_again(template: NameTemplate, given_id: str, action: str) -> None:
    name = template.name(given_id, action)
    if name is None:
        return
    assert is_exact(name) and "*" not in name and name.startswith(template.of_action(action).prefix)
    found = template.of_action(action).id_of(name)
    assert found is not None and template.name(found, action) == name
    if template.has_action:
        assert template.action_of(name) == (action if not template.text.startswith("resource:") else action.lower())


@given(template=st.sampled_from(TEMPLATES), ids=st.tuples(IDS, IDS), actions=st.tuples(ACTIONS, ACTIONS))
def test_no_two_actions_give_one_object(template: NameTemplate, ids: tuple[str, str], actions: tuple[str, str]) -> None:
    names = [template.name(given_id, action) for given_id, action in zip(ids, actions, strict=True)]
    if template.has_action and names[0] is not None and names[0] == names[1]:
        assert actions[0].lower() == actions[1].lower()


@pytest.mark.parametrize(
    ("name", "exact"),
    [
        *(("user:alice", True), ("nhi:a/b", True), ("tool:github/x.y/z", True), ("resource:n/a://b", True)),
        *(("user:", False), ("user:a b", False), ("user:a*", False), ("role:x", False), ("alice", False)),
        *(("tool:github", False), ("tool:GitHub/x", False), ("tool:github/", False), ("tool:github/a b", False)),
        *(("resource:n/a://../b", False), ("resource:n/b", False), ("set:x", False), ("tool:-a/x", False)),
    ],
)
def test_an_exact_name_is_one_of_the_grammar(name: str, exact: bool) -> None:
    assert is_exact(name) is exact


def evaluation(resource: dict[str, object], action: str = "read") -> Evaluation:
    return Evaluation({"type": "user", "id": "alice", "properties": {"a": 1}}, {"name": action}, resource, {"b": None})


def test_arguments_are_those_of_the_resource_or_those_declared() -> None:
    places = {"one": "subject.properties.a", "two": "context.b", "none": "resource.properties.x.y", "id": "resource.id"}
    names = Vocabulary(AuthzenSettings(arguments={"record": places}))
    assert names.arguments(evaluation({"type": "record", "id": "7"})) == {"one": 1, "two": None, "id": "7"}
    given_arguments = {"type": "record", "id": "7", "properties": {"arguments": {"x": 1}}}
    assert names.arguments(evaluation(given_arguments)) == {"x": 1}
    assert names.arguments(evaluation({"type": "other", "id": "7"})) == {}


def test_a_type_keeps_the_side_that_is_not_set() -> None:
    names = Vocabulary(AuthzenSettings(types={"user": AuthzenType(resource="tool:people/*")}))
    assert names.principal("user", "alice") == "user:alice"
    asked = evaluation({"type": "user", "id": "bob"}, "tools/call")
    assert names.target(asked) == ("tool:people/bob", "tools/call")


def test_at_the_address_of_a_server_only_types_of_any_server_are_narrowed() -> None:
    settings = AuthzenSettings(types={"record": AuthzenType(resource="tool:records/*")})
    names = Vocabulary(settings, "github", ("https://gw.example/mcp/github",))
    for type_, id_, name in (
        *(("tool", "x", "tool:github/x"), ("prompt", "x", "prompt:github/x"), ("record", "1", "tool:records/1")),
        *(("mcp_server", "https://gw.example/mcp/github", "nhi:github"), ("mcp_server", "other", "nhi:other")),
    ):
        assert names.target(evaluation({"type": type_, "id": id_}, "tools/call"))[0] == name
    with pytest.raises(Refusal) as refused:
        names.target(evaluation({"type": "mcp_server", "id": ""}, "tools/list"))
    assert refused.value.reason is Reason.NO_MATCHING_RULE
