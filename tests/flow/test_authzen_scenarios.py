"""Policies of AuthZEN's scenarios decide as the scenarios' rules say. `tests.conformance authzen` asks the published
cases."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.flow.authzen import ask, authzen_world
from tests.flow.authzen_scenarios import CERTIFICATION, OWNERS, RECORDS, ROLES, SEARCH, TODO, USERS, AuthzenScenario
from tests.flow.world import World

ALICE, BOB = ({"type": "user", "id": name} for name in ("alice", "bob"))
ADMIN = {**BOB, "properties": {"role": "admin"}}
FIRST, SECOND = ({"type": "record", "id": name} for name in ("record-1", "record-2"))
ACTIVE = {**FIRST, "properties": {"status": "active"}}
ARCHIVED = {**SECOND, "properties": {"status": "archived"}}


@asynccontextmanager
async def played(scenario: AuthzenScenario, folder: Path) -> AsyncIterator[World]:
    files = {"policies/roles.csv": scenario.roles}
    async with authzen_world(folder, scenario.pdp, rules=scenario.rules, files=files) as running:
        yield running


def may(email: str, action: str, owner: str) -> bool:
    """The rules of the todo application."""
    roles = set(ROLES[email])
    edits = bool(roles - {"viewer"})
    match action:
        case "can_read_user" | "can_read_todos":
            return True
        case "can_create_todo":
            return edits
        case "can_update_todo":
            return "evil-genius" in roles or (edits and owner == email)
    return "admin" in roles or (edits and owner == email)


async def test_the_todo_application(tmp_path: Path) -> None:
    async with played(TODO, tmp_path) as running:
        for email, user in USERS.items():
            subject = {"type": "user", "id": user}
            items, expected = [], []
            for action in ("read_user", "read_todos", "create_todo", "update_todo", "delete_todo"):
                for owner in USERS:
                    todo = {"type": "todo", "id": f"of-{owner[:4]}", "properties": {"ownerID": owner}}
                    resource = {"type": "user", "id": owner} if action == "read_user" else todo
                    items.append({"action": {"name": f"can_{action}"}, "resource": resource})
                    expected.append(may(email, f"can_{action}", owner))
            body = (await ask(running, "evaluations", {"subject": subject, "evaluations": items})).body
            assert [one["decision"] for one in body["evaluations"]] == expected, email


async def test_its_gateway(tmp_path: Path) -> None:
    routes = [("GET", "/users/{userId}"), ("GET", "/todos"), ("POST", "/todos")]
    routes += [("PUT", "/todos/{todoId}"), ("DELETE", "/todos/{todoId}")]
    async with played(TODO, tmp_path) as running:
        for email, user in USERS.items():
            for verb, path in routes:
                subject, resource = {"type": "identity", "id": user}, {"type": "route", "id": path}
                asked = {"subject": subject, "action": {"name": verb}, "resource": resource}
                allowed = verb == "GET" or ROLES[email] != ("viewer",)
                assert (await ask(running, "evaluation", asked)).body["decision"] is allowed, (email, verb, path)


async def test_the_records_that_are_searched(tmp_path: Path) -> None:
    async with played(SEARCH, tmp_path) as running:
        for owner in OWNERS:
            subject = {"type": "user", "id": owner}
            own = [record for record, its_owner in RECORDS.items() if its_owner == owner]
            for action in ("view", "edit", "delete"):
                asked = {"subject": subject, "action": {"name": action}, "resource": {"type": "record"}}
                found = (await ask(running, "search/resource", asked)).body
                manages = action == "view" and owner in ("alice", "dan")
                assert [one["id"] for one in found["results"]] == (list(RECORDS) if manages else own)
                assert found["context"]["complete"] is not manages
            asked = {"subject": subject, "resource": {"type": "record", "id": own[0]}}
            found = (await ask(running, "search/action", asked)).body
            assert [one["name"] for one in found["results"]] == ["delete", "edit", "view"]
        record = {"type": "record", "id": "102"}
        asked = {"subject": {"type": "user"}, "action": {"name": "view"}, "resource": record}
        found = (await ask(running, "search/subject", asked)).body
        assert [one["id"] for one in found["results"]] == ["alice", "bob", "dan"] and found["context"]["complete"]


@pytest.mark.parametrize(
    ("subject", "action", "resource", "allowed"),
    [
        (ALICE, {"name": "read"}, FIRST, True),
        (ALICE, {"name": "write"}, FIRST, True),
        (BOB, {"name": "read"}, FIRST, True),
        (BOB, {"name": "write"}, FIRST, False),
        (ALICE, {"name": "write"}, ARCHIVED, False),
        (ALICE, {"name": "write"}, {**ACTIVE, "properties": {"status": "archived"}}, False),
        (ADMIN, {"name": "write"}, ARCHIVED, True),
        (ALICE, {"name": "delete", "properties": {"soft": True}}, FIRST, True),
        (ALICE, {"name": "delete", "properties": {"soft": False}}, FIRST, False),
    ],
)
async def test_the_certification_decides(
    tmp_path: Path, subject: Any, action: Any, resource: Any, allowed: bool
) -> None:
    async with played(CERTIFICATION, tmp_path) as running:
        asked = {"subject": subject, "action": action, "resource": resource}
        for context in ({}, {"context": {"time": "2025-06-27T18:03-07:00", "ip": "192.168.1.1"}}):
            assert (await ask(running, "evaluation", {**asked, **context})).body["decision"] is allowed


async def test_the_certification_searches(tmp_path: Path) -> None:
    async with played(CERTIFICATION, tmp_path) as running:
        kind, records, read, write = {"type": "user"}, {"type": "record"}, {"name": "read"}, {"name": "write"}
        for searched, asked, expected in (
            ("subject", {"subject": kind, "action": read, "resource": FIRST}, {"alice", "bob"}),
            ("subject", {"subject": kind, "action": write, "resource": ARCHIVED}, {"bob"}),
            ("resource", {"subject": ALICE, "action": read, "resource": records}, {"record-1"}),
            ("resource", {"subject": ADMIN, "action": write, "resource": records}, {"record-2"}),
            ("action", {"subject": ALICE, "resource": FIRST}, {"read", "write"}),
            ("action", {"subject": ADMIN, "resource": ARCHIVED}, {"write"}),
        ):
            found = (await ask(running, f"search/{searched}", asked)).body["results"]
            assert {one.get("id") or one["name"] for one in found} >= expected, (searched, asked)
