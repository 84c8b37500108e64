"""Verifies an audit log and states what the result proves.

    changed      a line's seal does not match its bytes, or the next line was sealed on another line
    unreadable   a line that is not a record
    removed      missing sequences
    reordered    a line in another position than its sequence
    inserted     a sequence that appears twice
    cut-end      the anchor, or a checkpoint, covers lines that the file does not have
    no-anchor    there is no anchor, so a cut end would not show
    forged       the anchor is malformed, or none of the given keys made it; a checkpoint that its key did not sign
    at-start     a start of the sidecar found the evidence broken and recorded that

of checkpoints:

    checkpoint-differs  a checkpoint in the log that does not match the record before it
    no-checkpoint       a given file contains none

and of stored results, if their files are given:

    evidence-changed   a result that differs from the one that its outcome names
    evidence-missing   an outcome names a result that is not found
    evidence-doubled   a result that appears twice

Files are given oldest first. Each file but the last is anchored by the next one, the last by its `.head`; with `part`
both ends may be elsewhere. A file can be verified while it is being written: the anchor is read before the file and
again after it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from sidecar.audit.chain import BEGINNING, HEAD_BYTES, HEAD_SUFFIX, ChainEnd, ChainHead, parse_head
from sidecar.audit.checkpoints import Checkpoint, Keys, read_checkpoints
from sidecar.audit.digest import AuditKey
from sidecar.audit.line_walk import LineWalk, Progress
from sidecar.audit.result_store import NamedResult, read_evidence
from sidecar.audit.verification_report import VerificationReport

ATTEMPTS: Final = 3
MAX_CHECKPOINTS: Final = 1_000_000  # published checkpoints that are read; each takes about 500 bytes


def verify(
    paths: Sequence[Path],
    *,
    key: AuditKey | None = None,
    older: Sequence[AuditKey] = (),
    part: bool = False,
    after: ChainEnd = BEGINNING,
    evidence: Sequence[Path] = (),
    checkpoints: Sequence[Path] = (),
    public_keys: Keys | None = None,
    progress: Progress = lambda count: None,
) -> VerificationReport:
    """Verifies the files of one log, oldest first, and the `evidence` that it names. `older` are the keys before `key`;
    `after` is the chain's end before the first line, if known; `checkpoints` are files of published checkpoints, signed
    by one of `public_keys`. Raises OSError when a file cannot be read."""
    report = VerificationReport()
    keys = () if key is None else (key, *older)
    anchor = Path(f"{paths[-1]}{HEAD_SUFFIX}")
    before = _read_anchor(anchor)
    published = list(islice(_published(report, checkpoints, public_keys or {}), MAX_CHECKPOINTS))
    named = () if before is None else (before.end.seq, before.next.seq)
    walk = LineWalk(
        report,
        part=part,
        after=after,
        wanted={*named, *(checkpoint.seq for _, checkpoint in published)},
        with_evidence=bool(evidence),
        keys=keys,
        public_keys=public_keys,
        progress=progress,
    )
    for path in paths:
        walk.read(path)
    walk.close_gaps()
    if evidence:
        _check_evidence(report, evidence, walk.named)
    _check_end(walk, anchor, before, _read_anchor(anchor), keys)
    _check_published(walk, paths[-1], published)
    _sum_up(walk, before, keys)
    _sum_up_checkpoints(walk, published, public_keys)
    _sum_up_end(walk, public_keys)
    return report


def verify_current(
    files_now: Callable[[], tuple[Path, ...]], check: Callable[[Sequence[Path]], VerificationReport]
) -> tuple[tuple[Path, ...], VerificationReport]:
    """Returns the report on a log that is being written, and its files. The log is read again if files were rotated or
    deleted in the meantime. Raises OSError."""
    attempt = 0
    while True:
        attempt += 1
        files = files_now()
        try:
            report = check(files)
        except OSError as error:
            if attempt == ATTEMPTS or not isinstance(error, FileNotFoundError):
                raise
            continue
        if report.ok or attempt == ATTEMPTS or files == files_now():
            return files, report


def lies_beside(key_path: Path, path: Path) -> bool:
    """Whether key and log are in one folder. If so, nothing is proven against an attacker who can write both."""
    return key_path.resolve().parent == path.resolve().parent


def _check_evidence(report: VerificationReport, paths: Sequence[Path], named: Mapping[str, NamedResult]) -> None:
    seen: set[str] = set()
    unnamed = changed = 0
    for path in paths:
        for kept in read_evidence(path):
            if kept.id not in named:
                unnamed += 1
                continue
            if kept.id in seen:
                report.add(path, kept.line, "evidence-doubled", f"the result {kept.id} is there already")
            elif kept.sha256 != named[kept.id].sha256:
                changed += 1
                report.add(path, kept.line, "evidence-changed", f"the result {kept.id} is not the one that was stored")
            seen.add(kept.id)
    for lost in named.keys() - seen:
        report.add(paths[-1], 0, "evidence-missing", f"the result {lost} is nowhere")
    if unnamed:
        report.notes.append(f"{unnamed} lines of evidence are named by no outcome: cut off by a crash, or under way")
    if len(seen) > changed:
        report.proved.append(f"{len(seen) - changed} stored results are those that the log names")


def _read_anchor(path: Path) -> ChainHead | None:
    """The anchor; None if there is none or it is malformed."""
    if not path.is_file():  # opening a pipe would block until it has a writer
        return None
    with path.open("rb") as file:
        return parse_head(file.read(HEAD_BYTES + 1))


def _check_end(
    walk: LineWalk, path: Path, head: ChainHead | None, after: ChainHead | None, keys: Sequence[AuditKey]
) -> None:
    report = walk.report
    last_seq = report.last_seq
    if head is None:
        if path.exists():
            report.add(path, 0, "forged", "this is not an anchor")
        elif not walk.part:
            report.add(path, 0, "no-anchor", "there is none, so the end of the log cannot be verified")
        return
    # Whether the log was written in the meantime, so that the anchor is newer than the lines read.
    went_on = after is not None and after.next.seq >= last_seq and (not keys or after.made_with_any(keys))
    if keys and not head.made_with_any(keys):
        names = ", ".join(key.id for key in keys)
        report.add(path, 0, "forged", f"the key {names} did not make this anchor (it names {head.key_id})")
    elif head.end.seq > last_seq:
        report.add(path, 0, "cut-end", f"the anchor knows {head.end.seq} records, the log ends with {last_seq}")
    elif head.end.hash != walk.hashes.get(head.end.seq):
        report.add(path, 0, "changed", f"record {head.end.seq} is not the one that the anchor knows")
    elif last_seq >= head.next.seq and head.next.hash != walk.hashes.get(head.next.seq):
        report.add(path, 0, "changed", f"record {head.next.seq} is not the one that the anchor announces")
    elif last_seq > head.next.seq and not went_on:
        report.add(path, 0, "inserted", f"the anchor knows {head.next.seq} records, the log has {last_seq}")
    elif head.end != head.next and after == head:
        report.notes.append(
            f"the sidecar was writing, or was killed, before the anchor had followed the append up to record "
            f"{head.next.seq}: a cut in that append does not show"
        )


Published = tuple[Path, Checkpoint]


def _published(report: VerificationReport, paths: Sequence[Path], keys: Keys) -> Iterator[Published]:
    for path in paths:
        count = 0
        for checkpoint in read_checkpoints(path):
            count += 1
            if checkpoint.signed_by(keys) is False:
                report.add(
                    path,
                    0,
                    "forged",
                    f"the key {checkpoint.kid[:64]} did not sign what the checkpoint says about {checkpoint.seq}",
                )
            else:
                yield path, checkpoint
        if not count:
            report.add(path, 0, "no-checkpoint", "this file holds no checkpoint")


def _check_published(walk: LineWalk, log: Path, published: Sequence[Published]) -> None:
    """Checks that the log still matches every published checkpoint."""
    report = walk.report
    newest = max((checkpoint.seq for _, checkpoint in published), default=0)
    if newest > report.last_seq:
        report.add(log, 0, "cut-end", f"a checkpoint knows {newest} records, the log ends with {report.last_seq}")
    for path, checkpoint in published:
        known = walk.hashes.get(checkpoint.seq)
        if known is not None and known != checkpoint.hash:
            message = f"record {checkpoint.seq} is not the one that was attested at {checkpoint.time[:40]}"
            report.add(path, 0, "changed", message)


def _sum_up_checkpoints(walk: LineWalk, published: Sequence[Published], keys: Keys | None) -> None:
    report, signed = walk.report, walk.newest_signed
    proves, leaves_open = report.proved.append, report.unproved.append
    believed = [one for _, one in published if one.seq in walk.hashes and one.signed_by(keys or {})]
    if report.ok and signed is not None:
        report.signed_up_to = signed.seq
        proves(
            f"signed checkpoints in the log: {walk.signed_count}; up to record {signed.seq} it is what the sidecar "
            f"attested at {signed.time[:40]}, even if others had the files or the audit key since"
        )
    if report.ok and believed:
        newest = max(believed, key=lambda one: one.seq)
        proves(
            f"published checkpoints that match the log: {len(believed)}; up to record {newest.seq} it is as it was at "
            f"{newest.time[:40]}, even if others had files and keys since"
        )
        leaves_open(f"that log and anchor were not replaced with a copy from after record {newest.seq}")
    else:
        leaves_open("that log and anchor were not both replaced with an earlier copy, or started again without them")
    if published and not believed:
        leaves_open("who signed the published checkpoints: no keys were given, or the checkpoints are of other records")
    if len(published) == MAX_CHECKPOINTS:
        leaves_open(f"the checkpoints after the first {MAX_CHECKPOINTS}, which were not read")
    if report.checkpoints and keys is None:
        leaves_open("who signed the log's checkpoints: no key was given for them (--public-key)")
    for kid in sorted(walk.unknown_kids) if keys is not None else ():
        leaves_open(f"who signed the log's checkpoints: {kid} is not one of the given keys")


def _sum_up_end(walk: LineWalk, keys: Keys | None) -> None:
    """`keys` are checkpoint keys: if given, a checkpoint that none of them signed attests nothing."""
    report, last_seq = walk.report, walk.report.last_seq
    attested_seq = walk.attested_seq if keys is None else walk.signed_seq
    if last_seq and attested_seq == last_seq:
        report.end = "sealed" if walk.stopped_seq == last_seq - 1 else "attested"
    if report.end == "open" and attested_seq:
        behind = last_seq - attested_seq
        report.notes.append(
            f"the end is open: {behind} records after the last checkpoint, after a kill, or while the sidecar runs"
        )


def _sum_up(walk: LineWalk, head: ChainHead | None, keys: Sequence[AuditKey]) -> None:
    report = walk.report
    proves, leaves_open = report.proved.append, report.unproved.append
    report.instances = list(walk.instances)
    if report.ok and report.records:
        which = f"records {report.first_seq} to {report.last_seq}"
        proves(f"{which}: none was changed, removed, moved or inserted after it was sealed")
        if keys and head is not None:
            proves(
                f"the anchor was made with the key {head.key_id}: the log ends where the sidecar, or another holder of "
                "that key, ended it"
            )
            if head.key_id != keys[0].id:
                leaves_open(
                    f"that it was the sidecar: {head.key_id} is not the first of the given keys, and any holder of it "
                    "from before the change can have made that anchor"
                )
    if not keys:
        leaves_open("who made the anchor: without a key, an attacker who rewrites the whole log can rewrite it too")
    if walk.part:
        leaves_open("what was before the first line and after the last: these files are a part")
        if keys and head is None:
            leaves_open("who wrote it: a part has no anchor, so the key proves nothing here")
