"""`sidecar approval`: lists calls that wait for a person's approval, shows them, and answers them."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import click
import orjson
from click.shell_completion import CompletionItem

from sidecar.cli.agent.formatting import facts
from sidecar.cli.command import (
    FILE,
    USAGE,
    CommandFailed,
    config_and_json,
    print_json,
    print_result,
    settings_in,
    usual_config,
)
from sidecar.cli.lazy_group import Group
from sidecar.cli.operator_socket import Place, admin_listener, exchange, path_of, refused
from sidecar.cli.terminal import print_table, show_repeatedly, span, watch_options
from sidecar.errors import ConfigError
from sidecar.protocols.hidden_characters import shown
from sidecar.settings.field_types import is_caller
from sidecar.settings.secrets import read_secret

WAITING, APPROVED, ALL = "waiting", "approved", "all"
STATES: Final = (WAITING, APPROVED, "used", "refused", "expired", "withdrawn")
PAGE: Final = 200
MAX_PAGES: Final = 50
ID_CHARS: Final = 41
MIN_PREFIX_CHARS: Final = 4
SHOWN_CHARS: Final = 12  # of an id in a table: enough to be unique
LISTED: Final = 5  # of several requests that match a prefix


@click.group(cls=Group)
def approval() -> None:
    """List and answer calls that wait for a person's approval."""


def _reached(command: Callable[..., None]) -> Callable[..., None]:
    key_path = click.option("--key-path", type=FILE, help="With --url: the file of the secret of an admin credential.")
    url = click.option("--url", default="", help="Another sidecar's admin listener; by default the control socket.")
    return url(key_path(config_and_json(command)))


def _of_person(command: Callable[..., None]) -> Callable[..., None]:
    return click.option(
        "--as", "person", default="", metavar="USER", help="The person: user:<id>. With --url: that of the credential."
    )(_reached(command))


def _completed(*states: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Completes ids of requests in these states, from the sidecar of the configuration; none if it does not answer."""

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            place = settings_in(Path(ctx.params.get("config") or usual_config())).control_path
            found = [one for state in states for one in _page(place, state, PAGE, 0)[0]]
        except (OSError, ConfigError, CommandFailed):
            return []
        return [
            CompletionItem(one["id"], help=f"{one['object']} for {' → '.join(one['caller'])}")
            for one in found
            if one["id"].startswith(incomplete)
        ]

    return complete


def _answers(*states: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The argument and options of a command that answers a request in one of these states."""

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        name = click.argument("id", metavar="ID", shell_complete=_completed(*states))
        reason = click.option("--reason", default="", help="Reason, for the caller, the list and the audit log.")
        yes = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
        return name(reason(yes(_of_person(command))))

    return decorated


@approval.command(name="list")
@click.option(
    "--state",
    type=click.Choice((*STATES, ALL)),
    default=WAITING,
    show_default=True,
    help="Only requests in this state.",
)
@click.option(
    "--limit", type=click.IntRange(1, PAGE), default=50, show_default=True, help="Maximum number of requests."
)
@click.option(
    "--offset",
    type=click.IntRange(0),
    default=0,
    help="Number of entries to skip; the end of a list shows the next one.",
)
@watch_options
@_reached
def list_(state: str, limit: int, offset: int, watch: bool, every: float, as_json: bool, **where: Any) -> None:
    """List the calls that wait for a person, newest first, or those in another state. Arguments are not shown."""
    place = _place(**where)

    def find() -> tuple[list[Any], int | None]:
        return _page(place, state, limit, offset)

    def show(page: tuple[list[Any], int | None]) -> None:
        found, after = page
        if as_json:
            print_json({"approvals": found, "next_offset": after}, as_line=watch)
            return
        if found:
            print_table(("id", "state", "caller", "object", "action", "approver", "expires"), [*map(_row, found)])
        else:
            click.echo("no call waits for approval" if state == WAITING else "write repeat: {times: …}, or remove it")
        if after is not None:
            click.echo(f"and more: --offset {after}")

    if watch:
        show_repeatedly(find, show, every)
    else:
        show(find())


@approval.command()
@click.argument("id", metavar="ID", shell_complete=_completed(*STATES))
@_of_person
def show(id: str, person: str, as_json: bool, **where: Any) -> None:
    """Show the request ID: the call, why and until when it waits, and who has seen it.

    The first characters of the ID suffice. A person who may answer also sees the arguments, and the audit log records
    that."""
    place = _place(**where)
    found = _found(place, _named(place, id, STATES), _checked(person, where["url"]))
    print_result(found, "\n".join(_in_full(found)), as_json)


@approval.command()
@_answers(WAITING)
def approve(**given: Any) -> None:
    """Approve the waiting call ID. On a terminal, the command shows the call and asks you to confirm.

    The first characters of the ID suffice."""
    _answer("approve", (WAITING,), **given)


@approval.command()
@_answers(WAITING, APPROVED)
def refuse(**given: Any) -> None:
    """Refuse the waiting call ID, or withdraw an approval that has not been used."""
    _answer("refuse", (WAITING, APPROVED), **given)


def _answer(
    outcome: str, states: Sequence[str], *, id: str, person: str, reason: str, yes: bool, as_json: bool, **where: Any
) -> None:
    place, asking = _place(**where), _checked(person, where["url"], is_needed=True)
    name = _named(place, id, states)
    if not yes and sys.stdin.isatty():
        found = _found(place, name, asking)
        if found["objection"] is None:
            click.echo("\n".join(_in_full(found)), err=True)
            if found["needs_reason"] and not reason:
                reason = click.prompt("Reason", err=True)
            click.confirm(f"{outcome.capitalize()} it?", abort=True, err=True)
    order = {**asking, **({"reason": reason} if reason else {})}
    status, answer = exchange(place, path_of("approvals", name, outcome), order)
    if as_json:
        print_json(answer)
    if status >= 300:
        refused(status, answer, quiet=as_json)
    if not as_json:
        click.echo(_told(answer, outcome))


def _told(answered: Mapping[str, Any], outcome: str) -> str:
    name, what = answered["id"][:SHOWN_CHARS], f"{answered['object']} for {' → '.join(answered['caller'])}"
    if answered["state"] == WAITING:
        return shown(f"{name} still waits for {' and '.join(answered['open_roles'])}: {what}")
    until = f", to be used before {answered['usable_until']}" if outcome == "approve" else ""
    return shown(f"{name} is {answered['state']}{until}: {what}")


def _place(config: Path, url: str, key_path: Path | None) -> Place:
    if not url:
        if key_path is not None:
            raise click.UsageError("--key-path belongs to --url")
        return settings_in(config).control_path
    if key_path is None:
        raise click.UsageError("--url needs --key-path, the file of the secret of an admin credential")
    try:
        return admin_listener(url, read_secret(key_path, "theirs"))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--url") from None


def _checked(person: str, url: str, *, is_needed: bool = False) -> dict[str, str]:
    """The person named in the order; over the control socket only."""
    if url:
        if person:
            raise click.UsageError("with --url the credential names the person, not --as")
        return {}
    if person and not (is_caller(person) and person.startswith("user:")):
        raise click.BadParameter(f"{person!r} is not a person: write user:<id>", param_hint="--as")
    if is_needed and not person:
        raise click.UsageError("a person must answer: --as user:<id>")
    return {"principal": person} if person else {}


def _page(place: Place, state: str, limit: int, offset: int) -> tuple[list[Any], int | None]:
    """Requests in a state, and the offset of the next page."""
    asked = {"limit": limit, "offset": offset, **({} if state == ALL else {"state": state})}
    status, answer = exchange(place, f"{path_of('approvals')}?{urlencode(asked)}")
    if status >= 300:
        refused(status, answer)
    return answer["approvals"], answer["next_offset"]


def _named(place: Place, text: str, states: Sequence[str]) -> str:
    """The id that begins with the text, of a request in one of these states. Raises CommandFailed if there is none or
    more than one."""
    if len(text) >= ID_CHARS:
        return text
    if len(text) < MIN_PREFIX_CHARS:
        raise CommandFailed(f"write at least {MIN_PREFIX_CHARS} characters of the id", USAGE)
    found = list[Mapping[str, Any]]()
    for state in states:
        offset: int | None = 0
        for _ in range(MAX_PAGES):
            page, offset = _page(place, state, PAGE, offset or 0)
            found += [one for one in page if one["id"].startswith(text)]
            if offset is None:
                break
    if not found:
        raise CommandFailed(f"no request that is {' or '.join(states)} has an id that begins with {shown(text)}")
    if len(found) > 1:
        lines = [f"   {one['id']}  {one['object']}" for one in found[:LISTED]]
        raise CommandFailed("\n".join([f"{len(found)} requests begin with {shown(text)}:", *lines]))
    return str(found[0]["id"])


def _found(place: Place, name: str, asking: Mapping[str, str]) -> Mapping[str, Any]:
    query = f"?{urlencode(asking)}" if asking else ""
    status, answer = exchange(place, path_of("approvals", name) + query)
    if status >= 300:
        refused(status, answer)
    return answer  # type: ignore[no-any-return]


def _row(one: Mapping[str, Any]) -> tuple[str, ...]:
    ends = one["answer_before"] if one["state"] == WAITING else one["usable_until"]
    roles = " and ".join(one["open_roles"] if one["state"] == WAITING else one["roles"])
    caller = " → ".join(one["caller"])
    return one["id"][:SHOWN_CHARS], one["state"], caller, one["object"], one["action"], roles, ends or "-"


def _in_full(one: Mapping[str, Any]) -> Iterator[str]:
    yield f"{one['id']}  {one['state']}"
    needs = " (with a reason)" if one["needs_reason"] else ""
    lasts = "once" if one["valid_s"] is None else f"for {span(one['valid_s'])}"
    yield from facts(
        {
            "caller": " → ".join(one["caller"]),
            "calls": f"{one['object']}  {one['action']}",
            "over": f"{one['upstream']}, {one['protocol']}",
            "rules": ", ".join(one["rules"]),
            "approver": " and ".join(one["roles"]) + needs,
            "still open": " and ".join(one["open_roles"]) if one["answers"] and one["state"] == WAITING else None,
            "asked": one["asked_at"],
            "answer before": _with_rest(one["answer_before"]) if one["state"] == WAITING else one["answer_before"],
            "is used": lasts,
            "usable until": one["usable_until"],
            "seen by": ", ".join(one["seen_by"]),
            "decision": one["decision_id"],
            "used by": one["used_by"],
            "policy": one["policy_revision"],
            "args hash": one["args_hash"],
        }
    )
    if one["answers"]:
        yield "  answers"
        for each in one["answers"]:
            roles, why = ", ".join(each["roles"]) or "-", f": {each['reason']}" if each["reason"] else ""
            yield shown(f"    {each['principal']} for {roles} at {each['at']}{why}")
    if one["objection"] is not None:
        yield f"  no arguments   {shown(one['objection'])}"
        return
    for question in one["questions"]:
        yield f"  {shown(question['object'])}  {shown(question['action'])}"
        written = orjson.dumps(question["arguments"], option=orjson.OPT_INDENT_2).decode()
        yield from (f"    {shown(line)}" for line in written.split("\n"))


def _with_rest(moment: str) -> str:
    left_s = datetime.fromisoformat(moment).timestamp() - time.time()
    return f"{moment}, in {span(left_s)}" if left_s > 0 else f"{moment}, which is past"
