"""Records each request's decision, outcome or refusal before it takes effect.

    recording = Recording(audit, protocol="mcp", peer="127.0.0.1:5000")
    recording.caller = ...; recording.mark("auth")        facts, as the pipeline learns them
    await recording.decided()                                 the record first, then the upstream
    await recording.outcome(http_status=200, bytes_out=512)   or .refused(refusal, http_status=403): exactly one of them

`decided`, `outcome` and `refused` return when the record is written: passed to the operating system (`strict`), or on
disk (`disk`). If it cannot be written, they raise Refusal(AUDIT_UNAVAILABLE) and the request is refused. A failed final
record may be tried once more, as the resulting refusal, unless it is `done` nonetheless.

Cancelling a waiting caller does not undo a started write. With `best_effort` callers do not wait, and losses are
counted.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from sidecar.audit import record as shape
from sidecar.audit.digest import AuditKey
from sidecar.audit.file_sink import FoundEnd
from sidecar.audit.record import Event
from sidecar.audit.record_ids import Clock, time_ordered_ids, timestamps
from sidecar.audit.result_store import NamedResult, ResultFile, evidence_line, evidence_record
from sidecar.audit.rotation import Attester, ChainSink, RotatingSink, Stamp
from sidecar.audit.writer import RecordWriter
from sidecar.errors import ANSWERS, CredentialFault, LimitState, Reason, Refusal
from sidecar.observability.metrics import Metrics
from sidecar.settings.audit import RotationSettings
from sidecar.vocabulary import Call, Caller, Decision, Question

Durability = Literal["strict", "disk", "best_effort"]
Enforcement = Literal["enforce", "shadow", "degraded"]
NO_ROTATION = RotationSettings()
HASHED_HERE_BYTES = 64 * 1024  # of a body; its arguments are hashed in less than 10 ms


class Audit:
    """The audit log of one sidecar: one sink and one writer, for one event loop."""

    def __init__(
        self,
        sink: ChainSink,
        found: FoundEnd,
        *,
        key: AuditKey,
        durability: Durability,
        instance: str,
        clock: Clock,
        new_id: Callable[[], str],
        metrics: Metrics | None = None,
        evidence_path: Path | None = None,
        attester: Attester | None = None,
        rotation: RotationSettings = NO_ROTATION,
        clear_arguments: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ) -> None:
        """Record the irregularities that the last run left (`found`). Raises OSError. `new_id` returns a new
        unguessable id; `evidence_path` is where results are stored, created on first use; without an `attester` there
        are no checkpoints; `clear_arguments` are the pointers, by object, of arguments that are recorded in clear."""
        self.found = found.what
        """The irregularities found at start, in the terms of `file_sink`; for the operator's log."""
        self._evidence = ResultFile(evidence_path, to_disk=durability == "disk")
        stamp_in_thread = _stamping(instance, key.id, clock, time_ordered_ids(clock))
        self.trail = RotatingSink(sink, stamp_in_thread, clock, attester, rotation, self._evidence)
        self.writer = RecordWriter(self.trail)
        self._durability, self._metrics = durability, metrics
        self._stamp = _stamping(instance, key.id, clock, new_id)
        self._timestamp = timestamps()
        self.describer = shape.Describer(key, clear_arguments)
        self.key, self.clock, self.new_id = key, clock, new_id
        if found.what:
            sink.append([self._stamp("control", shape.control(shape.RECOVERED, "sidecar", found.facts))])

    async def control(self, what: str, by: str, **facts: object) -> None:
        """Record an action of an operator or of the sidecar: start, stop, reload, mode, switches, keys."""
        await self.write("control", shape.control(what, by, facts))

    async def write(self, event: Event, record: dict[str, Any]) -> None:
        """Stamp a record and write it; the record then belongs to the writer. Raises Refusal(AUDIT_UNAVAILABLE)."""
        stamped = self._stamp(event, record)
        if self._durability == "best_effort":
            self.writer.post(stamped, partial(self._count, event))
            return
        try:
            await self.writer.append(stamped, partial(self._count, event))
        except OSError as error:
            raise UnwrittenRecord(error) from None  # what cannot be recorded must not happen (threats I3, O2)

    def _count(self, event: str, error: OSError | None) -> None:
        if self._metrics is not None:
            self._metrics.audit_recorded(event, "written" if error is None else "failed")

    async def keep(self, about: Mapping[str, Any]) -> NamedResult | None:
        """Store a result (`result_store.evidence_record` without id and time). Returns the reference for the outcome;
        None if `best_effort` lost it. Raises Refusal: RESPONSE_REFUSED for one that is too large, AUDIT_UNAVAILABLE."""
        record_id = self.new_id()
        known = {"id": record_id, "timestamp": self._timestamp(self.clock.time()), "salt": self.new_id()}
        line = evidence_line({**about, **known})
        try:
            torn_bytes = await self.writer.run(partial(self._evidence.append, line))
        except OSError as error:
            self._count("evidence", error)
            if self._durability != "best_effort":  # otherwise the caller would get a result that cannot be proven later
                raise UnwrittenRecord(error) from None
            return None
        self._count("evidence", None)
        if torn_bytes:
            await self.control("evidence-recovered", "sidecar", torn_bytes=torn_bytes)
        return NamedResult.of(record_id, line)

    async def look(self) -> None:
        """Do what is due by time: a checkpoint, a new file. Called periodically."""
        if self.trail.is_due():
            with suppress(OSError):  # the next call tries again
                await self.writer.run(self.trail.look)

    async def seal(self) -> None:
        """Write a checkpoint of everything written so far. Raises OSError."""
        await self.writer.run(self.trail.seal)

    async def close(self) -> None:
        """Write queued records and close the files. Later records fail."""
        await self.writer.close()
        self._evidence.close()


@dataclass(slots=True, eq=False)
class Recording:
    """The record of one request while it runs. The pipeline sets the plain attributes as it learns them.

    In shadow mode the record states what would have denied the call: the policy decision, and the `excused` refusals.
    `charged` is 1 while the call may be forwarded, 0 once the charges of `limits` were returned. `tool_error` says that
    the response reports a failure at the upstream. `redactions` counts what was removed from the response; None if no
    rule examined it. `names` decides which names are known; other names in a refused call are recorded as digests.
    `upstream` and `method` are for a request that ends before there is a call. `stages_s` holds the seconds spent, by
    stage."""

    audit: Audit = field(repr=False)
    protocol: str
    peer: str
    request_id: str | int | None = None
    trace_id: str | None = None
    run_id: str | None = None
    thread_id: str | None = None
    task_id: str | None = None
    caller: Caller | None = None
    call: Call | None = None
    decision: Decision | None = None
    limits: Iterable[LimitState] = ()
    charged: int = 1
    upstream: str = ""
    federation: Mapping[str, Any] | None = None
    method: str = ""
    names: shape.Names | None = None
    enforcement: Enforcement = "enforce"
    excused: tuple[str, ...] = ()
    tool_error: bool = False
    credential_fault: CredentialFault | None = None
    bytes_in: int = 0
    redactions: int | None = None
    stages_s: dict[str, float] = field(default_factory=dict)
    done: bool = False
    decision_id: str = field(init=False)
    _started_mono_s: float = field(init=False)
    _marked_mono_s: float = field(init=False)
    _told_limits: tuple[Iterable[LimitState], int, list[dict[str, Any]]] = field(
        init=False, default=((), 0, []), repr=False
    )
    _known: dict[str, Any] | None = field(init=False, default=None, repr=False)
    _kept: list[NamedResult] = field(init=False, default_factory=list, repr=False)

    def __post_init__(self) -> None:
        self.decision_id = self.audit.new_id()
        self._started_mono_s = self._marked_mono_s = self.audit.clock.monotonic()

    @property
    def duration_s(self) -> float:
        return self.audit.clock.monotonic() - self._started_mono_s

    def mark(self, stage: str) -> None:
        """Assign the time since the last mark to `stage`, which is one of our names, never a caller's."""
        now = self.audit.clock.monotonic()
        self.stages_s[stage] = self.stages_s.get(stage, 0.0) + now - self._marked_mono_s
        self._marked_mono_s = now

    async def decided(self) -> None:
        """Write `decision`, immediately before the upstream is written to. Raises Refusal: AUDIT_UNAVAILABLE, or
        MALFORMED_CALL for arguments that cannot be hashed."""
        if self._known is not None or self.done:
            raise AssertionError("a decision is recorded once, and before the end")
        self._known = self._gather(await self._hashed(self._args_hash), charged=self.charged)
        try:
            await self.audit.write("decision", {**self._known})
        except Refusal as refusal:
            if not may_be_written(refusal):
                self._known = None
            raise

    @property
    def is_decided(self) -> bool:
        """Whether a decision was recorded, so that an outcome is required."""
        return self._known is not None

    @property
    def args_hash(self) -> str | None:
        return None if self._known is None else self._known["args_hash"]

    def replaced(self, count: int) -> None:
        self.redactions = (self.redactions or 0) + count

    async def keep(self, **about: Any) -> None:
        """Store a result before the caller gets it; the outcome will name it. `about` is that of
        `result_store.evidence_record`, without the run. Raises Refusal: RESPONSE_REFUSED, AUDIT_UNAVAILABLE."""
        if len(self._kept) >= shape.ENTRIES:  # an outcome cannot name more; the caller may resume the stream
            raise Refusal(Reason.AUDIT_UNAVAILABLE, "too many results on one stream are to be kept")
        named = await self.audit.keep(evidence_record(run_id=shape.optional_text(self.run_id), **about))
        if named is not None:
            self._kept.append(named)

    async def judged(self, question: Question, decision: Decision, enforcement: Enforcement = "enforce") -> None:
        """Write the policy decision on something inside this request: a request from the server to its client, or the
        response to an earlier call. Raises Refusal(AUDIT_UNAVAILABLE)."""
        record = self._gather(None, charged=0) | self._described(decision, enforcement)
        reason = None if enforcement == "shadow" else decision.reason
        record |= {"decision_id": self.audit.new_id(), "tool": None, "method": question.action, "reason": reason}
        record |= {"action": question.action, "object": question.object}
        await self.audit.write("decision", record)

    async def outcome(self, *, http_status: int, bytes_out: int, reason: Reason | None = None) -> None:
        """Write how the call ended. `bytes_out` is the size of the response body. Raises Refusal(AUDIT_UNAVAILABLE)."""
        await self._end("outcome", reason, http_status, bytes_out)

    async def refused(self, refusal: Refusal, *, http_status: int, bytes_out: int | None = None) -> None:
        """Write that the request was refused: a `refusal`, or the `outcome` of a call that was already decided. Raises
        Refusal(AUDIT_UNAVAILABLE), unless that is the refusal itself."""
        if refusal.limit is not None and all(state.name != refusal.limit.name for state in self.limits):
            self.limits = (*self.limits, refusal.limit)
        self.credential_fault = refusal.credential_fault
        event: Event = "refusal" if self._known is None else "outcome"
        try:
            await self._end(event, refusal.reason, http_status, bytes_out)
        except Refusal:
            if refusal.reason is not Reason.AUDIT_UNAVAILABLE:
                raise
            self.done = True  # the caller gets 503; a further record is not attempted

    async def _end(self, event: Event, reason: Reason | None, http_status: int, bytes_out: int | None) -> None:
        if self.done:
            raise AssertionError("a request has one terminal record")
        if self._known is not None:
            record = {**self._known}
        else:
            record = self._gather(await self._hashed(self._args_hash_if_any), charged=0)
            if self.names is not None:
                allowed = self.decision is not None and self.decision.allowed
                foreign = self.audit.describer.foreign
                record |= foreign(self.caller, record, self.names, self.call, allowed=allowed)
        answer = ANSWERS[reason] if reason is not None else None
        record["task_id"] = shape.optional_text(self.task_id)  # the response may have created it
        record["redactions"] = self.redactions
        record["redaction_applied"] = record["redaction_applied"] or bool(self.redactions)
        record["evidence"] = [named._asdict() for named in self._kept]
        record["federation"] = self.federation
        record["status"] = answer.status if answer else "success"
        record["reason"] = reason
        record["credential_fault"] = self.credential_fault
        record["error_message"] = answer.message if answer else None
        record["tool_error"] = self.tool_error if event == "outcome" else None
        record["limits"] = self._limits(0 if self._known is None else self.charged)
        record["http_status"] = http_status
        record["bytes_out"] = bytes_out
        record["duration_ms"] = shape.to_ms(self.duration_s)
        record["latency"] = shape.milliseconds(self.stages_s)
        self.done = True  # also if the caller does not wait for it
        try:
            await self.audit.write(event, record)
        except Refusal as refusal:
            self.done = may_be_written(refusal)
            raise

    def _limits(self, charged: int) -> list[dict[str, Any]]:
        states, told_charged, told = self._told_limits
        if states is not self.limits or told_charged != charged:
            told = shape.limits(self.limits, charged)
            self._told_limits = (self.limits, charged, told)
        return told

    def _args_hash(self) -> str | None:
        return None if self.call is None else self.audit.describer.args_hash(self.caller, self.call.question)

    async def _hashed(self, args_hash: Callable[[], str | None]) -> str | None:
        """Hash outside the event loop if it may take long (threats I11)."""
        return args_hash() if self.bytes_in <= HASHED_HERE_BYTES else await asyncio.to_thread(args_hash)

    def _args_hash_if_any(self) -> str | None:
        try:
            return self._args_hash()
        except Refusal:  # unhashable arguments are refused, and that refusal must be recorded
            return None

    def _gather(self, args_hash: str | None, *, charged: int) -> dict[str, Any]:
        call, caller, decision, describer = self.call, self.caller, self.decision, self.audit.describer
        asked_as = self.request_id if call is None or self.request_id is not None else call.request_id
        record = {
            **shape.BLANK,
            "decision_id": self.decision_id,
            "request_id": shape.request_id(asked_as),
            "trace_id": shape.optional_text(self.trace_id),
            "run_id": shape.optional_text(self.run_id),
            "thread_id": shape.optional_text(self.thread_id),
            "task_id": shape.optional_text(self.task_id),
            "peer": shape.optional_text(self.peer),
            "protocol": shape.optional_text(self.protocol),
            "upstream": shape.optional_text(self.upstream),
            "federation": self.federation,
            "method": shape.optional_text(self.method),
            "args_hash": args_hash,
            "limits": self._limits(charged),
            "enforcement": self.enforcement,
            "bytes_in": self.bytes_in,
            "latency": shape.milliseconds(self.stages_s),
        }
        if caller is not None:
            record |= describer.caller(caller)
        if call is not None:
            record |= shape.about_call(call)
            if describer.clear:
                record["clear_arguments"] = describer.clear.of(call.question)
        if decision is not None:
            record |= self._described(decision, self.enforcement)
        if self.excused:
            record["would_deny"] = [*record["would_deny"], *self.excused]
        return record

    def _described(self, decision: Decision, enforcement: Enforcement) -> dict[str, Any]:
        fields = self.audit.describer.decision(self.caller, decision)
        fields["enforcement"] = enforcement
        if enforcement == "shadow" and not decision.allowed:
            fields["would_deny"] = shape.rule_names((*decision.would_deny, *decision.denied_by))
        return fields


def _stamping(instance: str, key_id: str, clock: Clock, new_id: Callable[[], str]) -> Stamp:
    """Adds instance, time and key id to records. Not thread-safe."""
    timestamp, bounded = timestamps(), shape.text(instance, shape.ID_CHARS)

    def stamped(event: str, record: dict[str, Any]) -> dict[str, Any]:
        record["event"] = event
        record["id"] = new_id()
        record["timestamp"] = timestamp(clock.time())
        record["instance"] = bounded
        record["key_id"] = key_id
        return record

    return stamped


class UnwrittenRecord(Refusal):
    """A record that could not be written. `late`: it was started, so it may still be written."""

    def __init__(self, error: OSError) -> None:
        super().__init__(Reason.AUDIT_UNAVAILABLE, retry_after_s=1.0)
        self.late = error.errno == errno.ETIMEDOUT


def may_be_written(refusal: Refusal) -> bool:
    """Whether the refused record may be written nonetheless; then no other is written in its place."""
    return isinstance(refusal, UnwrittenRecord) and refusal.late
