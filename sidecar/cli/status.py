"""`sidecar status`: shows the state of a running sidecar on one screen."""

import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import click

from sidecar.cli.command import config_and_json, print_json, settings_in
from sidecar.cli.operator_socket import exchange, refused
from sidecar.cli.terminal import print_table, show_repeatedly, span, watch_options
from sidecar.errors import visible_lines
from sidecar.protocols.hidden_characters import shown

NEAR: Final = 0.8  # of a limit: from here on it is shown
MOST_LIMITS: Final = 5
LF, INDENTED = "\n", "\n    "


@click.command()
@watch_options
@config_and_json
def status(watch: bool, every: float, config: Path, as_json: bool) -> None:
    """Show version, policy, recent requests, upstreams, agents, schedules, and limits that are nearly exhausted.

    Exits with 1 if no sidecar answers; with --watch it retries."""
    control = settings_in(config).control_path
    if watch:
        show_repeatedly(lambda: _found(control), lambda found: _show(found, as_json=as_json, as_line=True), every)
    else:
        _show(_found(control), as_json=as_json)


def _show(found: Mapping[str, Any], *, as_json: bool, as_line: bool = False) -> None:
    if as_json:
        print_json(found, as_line=as_line)
    else:
        _print(found)


def _found(control: Path) -> Mapping[str, Any]:
    """Returns the status, with `limits`: those near their end, the fullest first, or None if their store is
    unavailable."""
    code, answer = exchange(control, "/status")
    if code >= 300:
        refused(code, answer)
    counted, used = exchange(control, "/api/limits")
    limits = used["limits"] if counted < 300 else None
    return {**answer, "limits": limits and [one for one in limits if _share(one) >= NEAR]}


def _share(limit: Mapping[str, Any]) -> float:
    return float(limit["used"]) / float(limit["most"]) if float(limit["most"]) else 0.0


def _print(found: Mapping[str, Any]) -> None:
    up_s = time.time() - datetime.fromisoformat(found["started_at"]).timestamp()
    click.echo(f"sidecar {found['version']}  {found['status']}  up {span(up_s)}")
    for line in dict.fromkeys((*found["banners"], *_sentences(found))):
        click.echo(f"  ! {visible_lines(line).replace(LF, INDENTED)}")
    for name, facts in _facts(found):
        click.echo(f"{name:<12}{shown(facts)}")
    for head, rows in _tables(found):
        if rows:
            click.echo()
            print_table(head, rows)


def _sentences(found: Mapping[str, Any]) -> list[str]:
    """Returns the reasons why it is degraded. The status itself states that it is draining."""
    reasons = found.get("reasons", ())
    return list(reasons) if isinstance(reasons, list) else []


def _facts(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    policy, store, requests = found["policy"], found["store"], found["requests"]
    if workers := found.get("workers"):
        states = ", ".join(f"{number} {state}" for number, state in workers.items())
        yield "workers", f"{states}; requests, sessions and calls below are those of worker {found['worker']}"
    count = sum(policy["rules"].values())
    yield "policy", f"{policy['revision']}  {policy['mode']}  {count} rule{'s' if count != 1 else ''}"
    since_s, by_status = requests["period_s"], requests["by_status"]
    counts = ", ".join(f"{count:,} {word.replace('_', ' ')}" for word, count in by_status.items() if count)
    yield "requests", f"{counts or 'none'} in the last {span(since_s)}"
    yield "sessions", f"{found['sessions']:,}"
    approvals = found["approvals"]
    if approvals["waiting"]:
        asked_s = time.time() - datetime.fromisoformat(approvals["oldest_asked_at"]).timestamp()
        yield "approvals", f"{approvals['waiting']:,} wait for a person, the oldest for {span(asked_s)}"
    yield "store", f"{store['kind']}  {'degraded' if store['degraded'] else 'up' if store['up'] else 'out'}"
    yield "audit", "written" if found["evidence"]["up"] else "out"
    for issuer, state in found["issuers"].items():
        yield "issuer", f"{issuer}  {'usable' if state['usable'] else 'without keys'}"
    if found["limits"] is None:
        yield "limits", "their store cannot be reached"


def _tables(found: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], list[tuple[str, ...]]]]:
    servers = {name: one for name, one in found["upstreams"].items() if one.get("protocol") != "a2a"}
    agents = {name: one for name, one in found["upstreams"].items() if name not in servers}
    named = ("status", "breaker", "calls", "errors", "latency")
    yield ("server", *named, "tools"), [(*_upstream(name, one), str(one["tools"])) for name, one in servers.items()]
    yield ("agent", *named, "runs"), [(*_upstream(name, one), _runs(one)) for name, one in agents.items()]
    schedules = found["schedules"].items()
    yield (
        ("schedule", "state", "next", "last result"),
        [(name, one["state"], one["next"] or "-", one["last_result"] or "-") for name, one in schedules],
    )
    fullest = (found["limits"] or ())[:MOST_LIMITS]
    yield (
        ("limit near its end", "for", "used", "resets at"),
        [(one["limit"], one["counted_for"] or "all", f"{_share(one):.0%}", one["reset_at"] or "-") for one in fullest],
    )


def _upstream(name: str, one: Mapping[str, Any]) -> tuple[str, ...]:
    took_ms = one["average_latency_ms"]
    latency = "-" if took_ms is None else f"{took_ms:.1f} ms"
    status = one["status"] if one["enabled"] else "disabled"
    return name, status, one["breaker"]["state"], f"{one['calls']:,}", f"{one['errors']:,}", latency


def _runs(agent: Mapping[str, Any]) -> str:
    if (runs := agent.get("runs")) is None:
        return "-"
    return f"{runs['running']} of {runs['places']}" + (f", {runs['waiting']} wait" if runs["waiting"] else "")
