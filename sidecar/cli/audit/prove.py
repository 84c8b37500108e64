"""`sidecar audit prove`: checks arguments against the hash in a record."""

import sys
from pathlib import Path
from typing import Any

import click

from sidecar.audit.chain import MAX_LINE_BYTES, unseal
from sidecar.audit.digest import Digests, load_key, namespace_of
from sidecar.audit.rendering import plain
from sidecar.audit.tail import lines
from sidecar.cli.audit.log_files import LOG, logs
from sidecar.cli.command import EXISTING_FILE, NO, UNVERIFIED, CommandFailed, json_option, print_json
from sidecar.errors import Refusal
from sidecar.protocols.jsonrpc import parse_json


@click.command("prove")
@click.argument("paths", nargs=-1, required=True, type=LOG)
@click.option("--decision", "decision_id", required=True, metavar="ID", help="The decision_id of the call.")
@click.option(
    "--args", "arguments", default="", metavar="JSON", help="The arguments; by default, or with -, standard input."
)
@click.option(
    "--key", "key_paths", multiple=True, required=True, type=EXISTING_FILE, help="The audit key and earlier ones."
)
@click.option("--namespace", default=None, help="The tenant; by default the one of the record's last principal.")
@click.option("--object", "object_", default="", help="The whole object, if the record omits its query.")
@click.option("--action", default="", help="An action other than the record's.")
@json_option
def prove(
    paths: tuple[Path, ...],
    decision_id: str,
    arguments: str,
    key_paths: tuple[Path, ...],
    as_json: bool,
    **claimed: str | None,
) -> None:
    """Hash the claimed arguments of a call as the sidecar does, and compare the result with the recorded hash.

    With the audit key you can prove what the arguments of a call were; without it they cannot be guessed. Exits with 0
    if the hashes are equal, 1 if not, 5 if the record's own hash is wrong. To verify the record in its log, use `audit
    verify`."""
    given = _arguments(arguments)
    record = _record(logs(paths), decision_id)
    ring = {key.id: key for key in map(load_key, key_paths)}
    key = ring.get(str(record.get("key_id")))
    if key is None:
        raise CommandFailed(
            plain(f"the record was hashed with the key {record.get('key_id')}; given: {', '.join(ring)}")
        )
    namespace = claimed["namespace"]
    if namespace is None:
        namespace = namespace_of(str(record.get("agent_id")).partition(":")[2])
    object_ = claimed["object_"] or str(record.get("object"))
    action = claimed["action"] or str(record.get("action"))
    try:
        digest = Digests(key, namespace).args_hash(action, object_, given)
    except Refusal as refusal:
        raise click.BadParameter(refusal.detail or "these are not arguments", param_hint="--args") from None
    fits = digest == record.get("args_hash")
    seq, timestamp, agent_id, recorded = (record.get(name) for name in ("seq", "timestamp", "agent_id", "args_hash"))
    if as_json:
        told = {"proved": fits, "decision_id": decision_id, "seq": seq, "timestamp": timestamp, "agent_id": agent_id}
        told |= {"namespace": namespace, "action": action, "object": object_, "key_id": key.id}
        print_json({**told, "args_hash": recorded, "computed": digest})
    else:
        word = "proved" if fits else "NOT proved"
        click.echo(plain(f"{word}  record {seq} of {timestamp}: {agent_id} → {object_}  {action}"))
        click.echo(plain(f"  on record  {recorded}"))
        click.echo(plain(f"  computed   {digest}  (key {key.id}, namespace {namespace or 'none'})"))
        click.echo("  not proved that the record is as it was written: `sidecar audit verify` does that")
    sys.exit(0 if fits else NO)


def _arguments(text: str) -> dict[str, Any]:
    here = text not in ("", "-")
    raw = text.encode("utf-8", "surrogateescape") if here else sys.stdin.buffer.read(MAX_LINE_BYTES + 1)
    if len(raw) > MAX_LINE_BYTES:
        raise click.BadParameter(f"these are more than {MAX_LINE_BYTES} bytes", param_hint="--args")
    try:
        value = parse_json(raw)  # parsed as strictly as a call, because an ambiguous value proves nothing
    except Refusal as refusal:
        raise click.BadParameter(f"this is not JSON: {refusal.detail}", param_hint="--args") from None
    if not isinstance(value, dict):
        raise click.BadParameter('this is not a JSON object, such as {"repo": "acme/site"}', param_hint="--args")
    return value


def _record(files: tuple[Path, ...], decision_id: str) -> dict[str, Any]:
    """Returns the first record of the decision with a hash, after checking its seal."""
    needle = decision_id.encode("utf-8", "replace")
    for line in lines(files):
        if needle not in line:
            continue
        sealed = unseal(line.removesuffix(b"\n"))
        if sealed is None or sealed.fields.get("decision_id") != decision_id:
            continue
        if not sealed.intact:
            raise CommandFailed(f"the hash of record {sealed.seq} does not fit its bytes: it was changed", UNVERIFIED)
        if isinstance(sealed.fields.get("args_hash"), str):
            return dict(sealed.fields)
    raise CommandFailed(f"no record with the decision id {plain(decision_id)} has a hash of arguments")
