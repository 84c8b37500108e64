"""`sidecar decide`: asks a running sidecar whether a call is allowed."""

import asyncio
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from sidecar.cli.command import (
    FILE,
    NO,
    USAGE,
    CommandFailed,
    check_object,
    config_and_json,
    json_object,
    print_result,
    settings_in,
)
from sidecar.cli.operator_socket import NOT_RUNNING
from sidecar.client import Decision, DecisionPoint, DecisionUnavailable, Question
from sidecar.errors import visible
from sidecar.settings.field_types import is_caller
from sidecar.settings.secrets import read_secret

HINTS = {
    None: NOT_RUNNING,
    401: "--key-path names the file with the secret of an admin credential of the role pdp",
    404: "write pdp: {} in its sidecar.yaml, and start it again",
}


@click.command()
@click.option("--as", "caller", required=True, metavar="PRINCIPAL", help="The caller: user:alice, nhi:planner.")
@click.option("--via", default="", metavar="PRINCIPAL", help="The agent that acts for the caller: nhi:planner.")
@click.option("--calls", "obj", required=True, metavar="OBJECT", help="tool:github/search_code, nhi:planner, …")
@click.option("--action", default="", help="By default that of the object, such as tools/call.")
@click.option("--args", "arguments", default="{}", metavar="JSON", help="The arguments of the call.")
@click.option("--charge", is_flag=True, help="Charge the limits of the call, with pdp.charges: ask.")
@click.option(
    "--url", default="", help="Another sidecar's admin listener or pdp.listen; by default the control socket."
)
@click.option("--key-path", type=FILE, help="With --url: the file of a secret of the role pdp.")
@config_and_json
def decide(config: Path, as_json: bool, url: str, key_path: Path | None, **given: Any) -> None:
    """Ask a running sidecar whether a call is allowed. The sidecar decides as on the call itself, and records the
    decision with the enforcement point `local`, or that of the key.

    Exits with 0 if the call is allowed, 1 if it is denied or there is no decision."""
    for option, name in (("--as", given["caller"]), ("--via", given["via"] or given["caller"])):
        if not is_caller(name):
            raise click.BadParameter(f"{name!r} is not a principal: write user:<id> or nhi:<id>", param_hint=option)
    check_object(given["obj"], "--calls")
    arguments = json_object(given["arguments"], "--args")
    question = Question(given["caller"], given["obj"], arguments, given["action"], given["via"], charge=given["charge"])
    key = "" if key_path is None else read_secret(key_path, "theirs")
    place = url or f"unix:{settings_in(config).control_path}"
    try:
        decision = asyncio.run(_asked(DecisionPoint(place, key=key), question))
    except DecisionUnavailable as error:
        code = USAGE if error.status == 400 else NO
        raise CommandFailed(visible(str(error)), code, hint=HINTS.get(error.status, ""))
    print_result(asdict(decision), "\n".join(map(visible, _lines(question, decision))), as_json)
    sys.exit(0 if decision else NO)


async def _asked(point: DecisionPoint, question: Question) -> Decision:
    async with point:
        return await point.decide(**question._asdict())


def _lines(question: Question, decision: Decision) -> list[str]:
    chain = " → ".join(filter(None, (question.caller, question.via, question.object)))
    found = [f"{'ALLOW' if decision else 'DENY'}  {decision.reason}".rstrip(), f"  {chain}"]
    found += [
        f"  {limit.name}: {limit.remaining} of {limit.limit} {limit.unit}".rstrip() + " left"
        for limit in decision.limits
    ]
    if decision.retry_after_s is not None:
        found.append(f"  again in {decision.retry_after_s} s")
    return [*found, f"  decision {decision.decision_id}"]
