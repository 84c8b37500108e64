"""Does each address mean one operation, however it is written?"""

import pytest
from hypothesis import given, strategies as st

from sidecar.protocols.a2a import http
from sidecar.protocols.a2a.messages import V10
from sidecar.protocols.a2a.operations import GET, OPERATIONS, PUSH_GET, VERSIONS, Operation, OperationRoute, Version
from sidecar.protocols.a2a.schema import UnreadableMessage

ROUTES = [(version, one, route) for version in VERSIONS for one in OPERATIONS for route in one.http(version)]
IDS = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=12).filter(
    lambda text: (
        text.isprintable()
        and not {".", ".."} & {*http._SLASH.split(text)}
        and text.rpartition(":")[2] not in http._VERBS
    )
)


@pytest.mark.parametrize(("version", "operation", "route"), ROUTES)
@given(task=IDS, config=IDS, tenant=IDS)
def test_what_is_written_is_read(
    version: Version, operation: Operation, route: OperationRoute, task: str, config: str, tenant: str
) -> None:
    ids = {"task": task, "config": config}
    said = http.path_to(route, ids)
    found = http.address_of(route.verb, said, version)
    assert found is not None and found.operation is operation and found.tenant == ""
    assert found.ids == {name: ids[name] for name in found.ids}
    assert len(found.ids) == said.count("{") + route.path.count("{")
    if version == "1.0":
        below = http.address_of(route.verb, http.path_to(route, ids, tenant), version)
        assert below is not None and (below.operation, below.tenant) == (operation, tenant)


@pytest.mark.parametrize("path", ["/tasks/a:cancel", "/tasks/a%3Acancel", "/tasks/a%3acancel", "/%74asks/a:cancel"])
def test_a_verb_is_the_same_however_it_is_written(path: str) -> None:
    found = http.address_of("POST", path, "1.0")
    assert found is not None and found.operation is not None
    assert (found.operation.action, found.ids) == ("tasks/cancel", {"task": "a"})


def test_an_encoded_slash_is_part_of_an_id() -> None:
    found = http.address_of("GET", "/tasks/a%2Fb", "1.0")
    assert found is not None and found.ids == {"task": "a/b"}
    assert found.route is not None and http.path_to(found.route, found.ids) == "/tasks/a%2Fb"


def test_another_verb_is_told_which_there_are() -> None:
    for verb, path, allowed in (
        ("GET", "/message:send", ("POST",)),
        ("DELETE", "/tasks/a:subscribe", ("GET", "POST")),
        ("PUT", "/tasks", ("GET",)),
    ):
        found = http.address_of(verb, path, "1.0")
        assert found is not None and (found.operation, found.allowed) == (None, allowed)


@pytest.mark.parametrize("path", ["", "/", "/nothing", "/tasks/a/b", "/message:other", "/v1/tasks/a/b/c", "/message"])
def test_what_is_no_address_is_none(path: str) -> None:
    try:
        assert http.address_of("GET", path, "1.0") is None
    except UnreadableMessage:
        assert path in ("/",)


NOT_PLAIN = ("/..", "/%2e%2e", "//a", "/%00", "/a%0d%0ab", "/%ff", "/a\\b", "/%")


@pytest.mark.parametrize("path", NOT_PLAIN)
def test_a_path_that_is_not_plain_is_refused(path: str) -> None:
    with pytest.raises(UnreadableMessage):
        http.address_of("GET", f"/tasks{path}", "1.0")


def test_a_query_has_the_types_of_its_message() -> None:
    text = "historyLength=5&include_artifacts=true&status=TASK_STATE_WORKING&unknown=1&pageToken=a%2Bb+c"
    read = V10.read("ListTasksRequest", http.typed(V10, "ListTasksRequest", http.query_of(text)))
    assert read == {"status": "TASK_STATE_WORKING", "pageToken": "a+b c", "historyLength": 5, "includeArtifacts": True}


@pytest.mark.parametrize("query", ["a=1&a=2", "a=%ff", "a=\\", "includeArtifacts=1"])
def test_a_query_that_two_readers_read_differently_is_refused(query: str) -> None:
    with pytest.raises(UnreadableMessage):
        http.typed(V10, "ListTasksRequest", http.query_of(query))


def test_values_become_a_query() -> None:
    assert http.query_from([("a", True), ("b", "x&y"), ("c", 5)]) == "?a=true&b=x%26y&c=5"
    assert http.query_from([]) == ""


@pytest.mark.parametrize("name", [".", "..", "../x", "a/..", "a/./b", "..\\x"])
def test_a_name_that_leads_elsewhere_stands_in_no_path(name: str) -> None:
    get, config = GET.http("1.0")[0], PUSH_GET.http("1.0")[0]
    for route, ids, tenant in ((get, {"task": name}, ""), (get, {"task": "t"}, name)):
        with pytest.raises(UnreadableMessage):
            http.path_to(route, ids, tenant)
    with pytest.raises(UnreadableMessage):
        http.path_to(config, {"task": "t", "config": name})
