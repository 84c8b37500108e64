"""`sidecar policy replay`: runs recorded decisions through another policy."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from sidecar.audit.digest import load_key
from sidecar.audit.segments import given
from sidecar.cli.command import (
    DIFFERENT,
    EXISTING_FILE,
    EXISTING_FOLDER,
    UNVERIFIED,
    CommandFailed,
    json_option,
    print_result,
)
from sidecar.cli.terminal import progress
from sidecar.cli.timestamps import Moment
from sidecar.errors import visible
from sidecar.policy_tools.audit_records import UnreadableAuditLine
from sidecar.policy_tools.policy_location import in_folder
from sidecar.policy_tools.replay import Candidate, Change, Replay, replay as replayed

_TITLES: dict[Change, str] = {
    "wider": "wider: denied or waiting for an approval then, allowed now, or only waiting",
    "narrower": "narrower: allowed then, denied or waiting for an approval now",
    "undecidable": "undecidable: what the records do not hold",
}


@click.command("replay")
@click.argument("audit", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--policy",
    "folder",
    required=True,
    type=EXISTING_FOLDER,
    help="The candidate: a folder with policies/ (and models/), or of rows.",
)
@click.option(
    "--key",
    "key_path",
    type=EXISTING_FILE,
    help="The audit key, with which conditions can compare hashed arguments with constants.",
)
@click.option("--since", type=Moment(), help="A time (2026-11-27T12:00:00Z) or a span back from now (15m, 2h, 7d).")
@click.option("--until", type=Moment(), help="End of the time span, exclusive; same formats as --since.")
@click.option(
    "--limit", type=click.IntRange(0, 10_000), default=20, show_default=True, help="Number of examples of each kind."
)
@click.option(
    "--fail-on",
    type=click.Choice(["any", "wider", "narrower"]),
    default="any",
    show_default=True,
    help="The differences that exit with 6.",
)
@click.option("--allow-undecided", is_flag=True, help="Do not exit with 6 for undecidable calls.")
@json_option
def replay(
    audit: Path,
    folder: Path,
    key_path: Path | None,
    since: str | None,
    until: str | None,
    limit: int,
    fail_on: str,
    allow_undecided: bool,
    as_json: bool,
) -> None:
    """Decide the recorded calls of a log file or folder again with another policy, each at its own time.

    A decision is wider if it grants more: a denial grants nothing, and a call that needs an approval grants less than
    an allowed one. Decisions that need arguments which the log has only as hashes are counted as undecidable, with the
    reason.

    Exits with 6 if a decision differs (--fail-on: only if it is wider, or narrower) or is undecidable (unless
    --allow-undecided). To verify the log, use `sidecar audit verify`."""
    try:
        candidate = Candidate(in_folder(folder).load(), load_key(key_path) if key_path else None)
        with progress("bytes read", sum(path.stat().st_size for path in given(audit))) as tell:
            report = replayed(audit, candidate, since=since or "", until=until or "", progress=tell)
    except (UnreadableAuditLine, OSError) as error:
        raise CommandFailed(str(error), UNVERIFIED)
    said = report, candidate.engine.revision, limit
    print_result(as_data(*said), "\n".join(map(visible, lines(*said))), as_json)
    counted = {"any": report.changed, "wider": report.wider, "narrower": report.narrower}
    undecided = sum(report.undecidable.values())
    if counted[fail_on] or (undecided and not allow_undecided):
        sys.exit(DIFFERENT)


def lines(report: Replay, revision: str, limit: int) -> Iterator[str]:
    undecidable = sum(report.undecidable.values())
    yield f"{report.replayed} of {report.records} records were decided again, by revision {revision[:16]}"
    yield f"  same         {report.same}"
    yield f"  wider        {report.wider}"
    yield f"  narrower     {report.narrower}"
    if report.now_waits or report.waits_no_more:
        yield f"    {report.now_waits} would wait for a person's approval now; {report.waits_no_more} no longer would"
    yield f"  undecidable  {undecidable}"
    for why, count in report.undecidable.most_common():
        yield f"    {count}  {why}"
    if report.left_out:
        yield f"  {report.left_out} records are of another time and were left out"
    if report.torn_bytes:
        yield f"  note: {report.torn_bytes} bytes of an unfinished last line were not read"
    for change, title in _TITLES.items():
        groups = report.of(change)
        if groups and limit:
            yield ""
            yield title
        for kind, group in groups[:limit]:
            yield f"  {group.count} x  {kind.chain} → {kind.object}  {kind.action}"
            old = kind.was + (f" by {', '.join(kind.old_rules)}" if kind.old_rules else "")
            new = kind.now + (f" by {', '.join(kind.new_rules)}" if kind.new_rules else "")
            yield f"       then {old}; now {new}" + (f": {kind.why}" if kind.why else "")
            yield f"       first: record {group.seq}, decision {group.decision_id}, {group.timestamp}"
        if len(groups) > limit:
            yield f"  and {len(groups) - limit} more kinds"
    if report.ungrouped:
        yield f"  {report.ungrouped} more records are counted above, and were too various to be shown"


def as_data(report: Replay, revision: str, limit: int) -> dict[str, Any]:
    counted = ("same", "wider", "narrower", "now_waits", "waits_no_more", "left_out", "torn_bytes", "ungrouped")
    return {
        "revision": revision,
        **{name: getattr(report, name) for name in ("records", "replayed", *counted)},
        "undecidable": sum(report.undecidable.values()),
        "undecidable_by_reason": dict(report.undecidable.most_common()),
        "without_policy_answer": report.unasked,
        "recorded_revisions": dict(report.revisions.most_common(limit)),
        "kinds": {change: len(report.of(change)) for change in _TITLES},
        "examples": [
            {**kind._asdict(), "count": group.count, "seq": group.seq, "decision_id": group.decision_id}
            for change in _TITLES
            for kind, group in report.of(change)[:limit]
        ],
    }
