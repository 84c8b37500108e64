"""The scenarios of AuthZEN's working group as policies: the todo application and its API gateway, the records that are
searched, and the fixture of the certification."""

from typing import NamedTuple

# The five users differ in one character of their ids.
USERS = {
    email: f"CiRmZD{mark}2MTRkMy1jMzlhLTQ3ODEtYjdiZC04Yjk2ZjVhNTEwMGQSBWxvY2Fs"
    for email, mark in (
        ("rick@the-citadel.com", "A"),
        ("morty@the-citadel.com", "E"),
        ("summer@the-smiths.com", "I"),
        ("beth@the-smiths.com", "M"),
        ("jerry@the-smiths.com", "Q"),
    )
}
ROLES = {
    "rick@the-citadel.com": ("admin", "evil-genius"),
    "morty@the-citadel.com": ("editor",),
    "summer@the-smiths.com": ("editor",),
    "beth@the-smiths.com": ("viewer",),
    "jerry@the-smiths.com": ("viewer",),
}
OWNERS = ("alice", "bob", "carol", "dan", "erin", "felix")
RECORDS = {str(101 + at): OWNERS[at % len(OWNERS)] for at in range(20)}


class AuthzenScenario(NamedTuple):
    """The section `pdp`, the rules of `agent_to_tool.csv`, and the rows of roles."""

    pdp: str
    rules: str
    roles: str = ""


def _rows(*rows: str) -> str:
    return "".join(f"p, {row}, allow\n" for row in rows)


TODO = AuthzenScenario(
    """{authzen: {
  types: {todo: "tool:todo/{action}/*", route: "resource:todo/route:{action}:*",
    user: {resource: "resource:todo/user:{action}/*"}},
  arguments: {todo: {owner: resource.properties.ownerID}}}}""",
    _rows(
        "role:viewer, resource:todo/user:can_read_user/*, use, -, -, -",
        "role:viewer, tool:todo/can_read_todos/*, use, -, -, -",
        "role:editor, tool:todo/can_create_todo/*, use, -, -, -",
        "role:evil-genius, tool:todo/can_update_todo/*, use, -, -, -",
        "role:admin, tool:todo/can_delete_todo/*, use, -, -, -",
        *(
            f"user:{USERS[email]}, tool:todo/can_{verb}_todo/*, use, -, -, args.owner == '{email}'"
            for email, roles in ROLES.items()
            if roles != ("viewer",)
            for verb in ("update", "delete")
        ),
        "role:viewer, resource:todo/route:GET:*, use, -, -, -",
        *(f"role:editor, resource:todo/route:{verb}:/todos*, use, -, -, -" for verb in ("POST", "PUT", "DELETE")),
    ),
    "g, role:admin, role:editor\ng, role:evil-genius, role:editor\ng, role:editor, role:viewer\n"
    + "".join(f"g, user:{USERS[email]}, role:{role}\n" for email, roles in ROLES.items() for role in roles),
)
SEARCH = AuthzenScenario(
    '{authzen: {types: {record: "tool:records/{action}/*"}}}',
    _rows(
        *(
            f"user:{owner}, tool:records/{action}/{record}, use, -, -, -"
            for record, owner in RECORDS.items()
            for action in ("view", "edit", "delete")
        ),
        "role:manager, tool:records/view/*, use, -, -, -",
    ),
    "g, user:alice, role:manager\ng, user:dan, role:manager\n",
)
CERTIFICATION = AuthzenScenario(
    """{authzen: {types: {record: "tool:records/{action}/*"},
  arguments: {record: {status: resource.properties.status, role: subject.properties.role,
    soft: action.properties.soft}}}}""",
    _rows(
        *(f"user:*, tool:records/read/{record}, use, -, -, -" for record in ("record-1", "record-2")),
        *(f"user:{name}, tool:records/read/record-1, use, -, -, -" for name in ("alice", "bob")),
        "user:alice, tool:records/write/record-1, use, -, -, !has(args.status) || args.status != 'archived'",
        "user:bob, tool:records/write/record-2, use, -, -, has(args.status) && args.status == 'archived'",
        "user:*, tool:records/write/*, use, -, -, args.role == 'admin' && args.status == 'archived'",
        "user:*, tool:records/write/record-2, use, -, -, args.role == 'admin'",
        "user:alice, tool:records/delete/record-1, use, -, -, args.soft == true",
    ),
)
