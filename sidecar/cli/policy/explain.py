"""`sidecar policy explain`: shows why a call is allowed or denied."""

import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import click

from sidecar.audit.digest import AuditKey, load_key
from sidecar.audit.segments import files_of, given
from sidecar.cli.command import (
    EXISTING_FILE,
    EXISTING_FOLDER,
    NO,
    UNVERIFIED,
    CommandFailed,
    check_object,
    config_and_json,
    json_object,
    print_json,
    print_result,
    settings_in,
)
from sidecar.cli.timestamps import Instant
from sidecar.errors import ANSWERS, Reason
from sidecar.policy import Engine
from sidecar.policy.faults import meant
from sidecar.policy.grammar import ACTIONS
from sidecar.policy_tools.audit_records import UnreadableAuditLine, asked_in, find_decision, question_of, single_record
from sidecar.policy_tools.explain import explain as explained, explain_record
from sidecar.policy_tools.explanation import as_data, lines
from sidecar.policy_tools.policy_location import configured, in_folder
from sidecar.policy_tools.replay import Candidate
from sidecar.settings.field_types import is_caller
from sidecar.settings.uris import named_object
from sidecar.vocabulary import ACTION_ON, ANONYMOUS, Principal

_LOG = click.Path(exists=True, allow_dash=True, path_type=Path)


@click.command("explain")
@click.option(
    "--as",
    "callers",
    multiple=True,
    metavar="PRINCIPAL",
    help="The chain, first to last; repeat the option, or use commas.",
)
@click.option("--calls", "obj", default="", metavar="OBJECT", help="tool:github/search_code, nhi:planner, …")
@click.option("--action", default="", help="By default that of the object, such as tools/call.")
@click.option("--args", "arguments", default="{}", metavar="JSON", help="The arguments of the call.")
@click.option("--meta", default="{}", metavar="JSON", help="Its _meta, which conditions read as call.meta.")
@click.option("--roles", multiple=True, metavar="P=ROLE,…", help="Roles that a token grants: user:alice=role:corp/eng.")
@click.option(
    "--approved-by", multiple=True, metavar="USER", help="Treat the call as approved by this user; may be repeated."
)
@click.option("--scopes", multiple=True, metavar="P=SCOPE,…", help="Scopes that a token grants.")
@click.option("--now", type=Instant(), help="RFC 3339; by default now.")
@click.option("--decision", "decision_id", default="", metavar="ID", help="A recorded decision, by its decision_id.")
@click.option(
    "--record", type=_LOG, help="An audit record in a file; with --decision, a file of records. - is standard input."
)
@click.option("--policy", "folder", type=EXISTING_FOLDER, help="Another policy, such as the one that was in force.")
@click.option("--key", "key_path", type=EXISTING_FILE, help="The audit key; without --record, the configured one.")
@config_and_json
def explain(config: Path, folder: Path | None, key_path: Path | None, as_json: bool, **given: Any) -> None:
    """Show each link of a call with its decision, and the rules, roles, conditions and limits behind it; on a denial,
    also the nearest rules.

    Exits with 0 if the call is allowed, 1 if it is denied, needs a person's approval, or cannot be decided from a
    record."""
    try:
        record = _record(config, given["record"], given["decision_id"])
        asked = None if record is None else asked_in(record)
        if record is not None and asked is None:
            _tell_unasked(record, as_json)
        place = in_folder(folder) if folder is not None else configured(config, os.environ)
        source, budgets = place.load(), place.budgets()
        approvers = _approvers(given)
        if asked is None:
            chain, at_s = _chain(given), given["now"] or time.time()
            question = question_of(
                *_asked_for(given), json_object(given["arguments"], "--args"), json_object(given["meta"], "--meta")
            )
            found = explained(Engine(source), budgets, chain, question, at_s, approvers)
        else:
            candidate = Candidate(source, _key(config, key_path, given["record"]))
            found = explain_record(candidate, budgets, asked, approvers)
    except UnreadableAuditLine as error:
        raise CommandFailed(str(error), UNVERIFIED)
    print_result(as_data(found, asked), "\n".join(lines(found, asked)), as_json)
    sys.exit(0 if found.allowed else NO)


def _key(config: Path, path: Path | None, elsewhere: Path | None) -> AuditKey | None:
    if path or elsewhere:
        return load_key(path) if path else None
    with suppress(OSError):
        return load_key(settings_in(config).audit_key_path)
    return None


def _approvers(given: Mapping[str, Any]) -> tuple[Principal, ...]:
    names = _listed(given["approved_by"])
    for name in names:
        if not (name.startswith("user:") and is_caller(name)):
            raise click.BadParameter(f"{name!r} is not a person: write user:<id>", param_hint="--approved-by")
    roles = _grants(given["roles"], "--roles", [*_listed(given["callers"]), *names])
    return tuple(Principal(name, "", roles.get(name, frozenset())) for name in names)


def _listed(texts: tuple[str, ...]) -> list[str]:
    return [name.strip() for text in texts for name in text.split(",")]


def _chain(given: Mapping[str, Any]) -> tuple[Principal, ...]:
    names = _listed(given["callers"])
    if not names:
        raise click.UsageError("say who asks (--as user:alice) and for what (--calls tool:github/search_code)")
    for name in names:
        if name != ANONYMOUS and not is_caller(name):
            raise click.BadParameter(
                f"{name!r} is not a principal: write user:<id>, nhi:<id> or anonymous", param_hint="--as"
            )
    known = [*names, *_listed(given["approved_by"])]
    roles, scopes = _grants(given["roles"], "--roles", known), _grants(given["scopes"], "--scopes", names)
    for role in {role for granted in roles.values() for role in granted}:
        if not role.startswith("role:"):
            raise click.BadParameter(f"{role!r} is not a role: write role:<name>", param_hint="--roles")
    none: frozenset[str] = frozenset()
    return tuple(Principal(name, "", roles.get(name, none), scopes.get(name, none)) for name in names)


def _grants(given: tuple[str, ...], option: str, names: list[str]) -> Mapping[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for text in given:
        name, equals, words = text.partition("=")
        if not equals or name not in names:
            hint = f"write {next(iter(names), 'user:<id>')}=<name>,…" if not equals else f"{name!r} is not in the chain"
            raise click.BadParameter(hint, param_hint=option)
        found[name] = found.get(name, frozenset()) | {word.strip() for word in words.split(",") if word.strip()}
    return found


def _asked_for(given: Mapping[str, Any]) -> tuple[str, str]:
    obj, action = given["obj"], given["action"]
    check_object(obj, "--calls")
    obj = named_object(obj)
    action = action or ACTION_ON.get(obj.partition(":")[0], "message/send")
    if action not in ACTIONS:
        raise click.BadParameter(f"{action!r} is unknown. {meant(action, ACTIONS)}".rstrip(), param_hint="--action")
    return obj, action


def _record(config: Path, file: Path | None, decision_id: str) -> Mapping[str, Any] | None:
    if file is None and not decision_id:
        return None
    if file is not None and file.is_dir() and not decision_id:
        raise click.UsageError("a folder holds many records: say which with --decision")
    if file is not None and not decision_id:
        with click.open_file(str(file), "rb") as stream:
            return single_record(stream)
    if file is not None and str(file) == "-":
        raise click.UsageError("--decision looks through a file from its end: give a file to --record")
    if file is not None:
        paths: tuple[Path, ...] = (file,)
    else:
        settings = settings_in(config)
        paths = settings.audit_paths or (settings.audit_path,)
    for path in paths:
        try:
            record = find_decision(given(path) if file is not None else files_of(path) or (path,), decision_id)
        except OSError as error:
            raise UnreadableAuditLine(f"{path}: cannot be read: {error.strerror}") from None
        if record is not None:
            return record
    raise CommandFailed(f"{', '.join(map(str, paths))}: no record has the decision id {decision_id}")


def _tell_unasked(record: Mapping[str, Any], as_json: bool) -> NoReturn:
    reason = str(record.get("reason"))
    said = ANSWERS[Reason(reason)].message if reason in set(Reason) else "this record is of no call"
    if as_json:
        print_json({"allowed": False, "reason": record.get("reason"), "message": said, "links": []})
    elif reason in set(Reason):
        click.echo(f"DENY  {reason}: {said}\n  policy was not asked: the call ended before")
    else:
        click.echo(said)
    sys.exit(NO)
