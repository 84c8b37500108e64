"""Records each request's decision, outcome or refusal before it takes effect.

    recording = Recording(audit, protocol="mcp", peer="127.0.0.1:5000")
    recording.caller = ...                                    facts, as the pipeline learns them
    recording.marks["auth"] = recording.now_s()               when a stage has ended
    await recording.decided()                                 the record first, then the upstream
    await recording.outcome(http_status=200, bytes_out=512)   or .refused(refusal, http_status=403): exactly one of them

`decided`, `outcome` and `refused` return when the record is written: passed to the operating system (`strict`), or on
disk (`disk`). If it cannot be written, they raise Refusal(AUDIT_UNAVAILABLE) and the request is refused. A failed final
record may be tried once more, as the resulting refusal, unless it is `done` nonetheless.

Cancelling a waiting caller does not undo a started write. With `best_effort` callers do not wait, and losses are
counted.
"""

import asyncio
import errno
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from sidecar.audit import record as shape
from sidecar.audit.carrier import ChainedCarrier
from sidecar.audit.chain import Unsealed
from sidecar.audit.digest import AuditKey
from sidecar.audit.file_sink import FoundEnd
from sidecar.audit.log_blocks import RecentLines
from sidecar.audit.record import Event, Record
from sidecar.audit.record_ids import Clock, date_of, time_ordered_ids, timestamp
from sidecar.audit.result_store import NamedResult, ResultFile, evidence_line, evidence_record
from sidecar.audit.rotation import Attester, ChainSink, RotatingSink
from sidecar.audit.writer import Counts, RecordWriter, WriteJob
from sidecar.errors import CredentialFault, LimitState, Reason, Refusal
from sidecar.observability.metrics import Metrics
from sidecar.settings.audit import RotationSettings
from sidecar.vocabulary import Call, Caller, Decision, Question

Durability = Literal["strict", "disk", "best_effort"]
Enforcement = Literal["enforce", "shadow", "degraded"]
NO_ROTATION = RotationSettings()
HASHED_HERE_BYTES = 64 * 1024  # of a body; its arguments are hashed in less than 10 ms
EVIDENCE = "evidence"  # in counts: results that are stored


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
        """Records the irregularities that the last run left (`found`). Raises OSError. `new_id` returns a new
        unguessable id; `evidence_path` is the file for results, created on first use; without an `attester` there are
        no checkpoints; `clear_arguments` are the pointers, by object, of arguments that are recorded in clear."""
        self.found = found.what
        """The irregularities found at start, in the terms of `file_sink`; for the operator's log."""
        self._evidence = ResultFile(evidence_path, to_disk=durability == "disk")
        controls = ControlRecorder(instance, key.id, clock, time_ordered_ids(clock))
        self.trail = RotatingSink(sink, controls, clock, attester, rotation, self._evidence)
        self.writer = RecordWriter(self.trail)
        self._waits = durability != "best_effort"
        row = self._no_row if metrics is None else metrics.audit_row
        self._counts: Mapping[str, Counts] = {
            event: (row(event, "written"), row(event, "failed")) for event in (*shape.EVENTS, EVIDENCE)
        }
        place = shape.json_text(shape.text(instance, shape.ID_CHARS)).replace("%", "%%")
        self._stamp = shape.form(shape.STAMP) % ('"%s"', '"%s.%06dZ"', place)
        self.describer = shape.Describer(key, clear_arguments)
        self.key, self.clock, self.new_id = key, clock, new_id
        self.under_way = 0
        """Calls with a recorded decision but no recorded outcome."""
        if found.what:
            sink.append([controls.control(shape.RECOVERED, "sidecar", found.facts)])

    async def control(self, what: str, by: str, **facts: object) -> None:
        """Records an action of an operator or of the sidecar: start, stop, reload, mode, switches, keys. Raises
        Refusal(AUDIT_UNAVAILABLE)."""
        job = self.write("control", shape.control(self.key.id, what, by, facts))
        if job is not None and (error := await job) is not None:
            raise UnwrittenRecord(error)

    def write(self, event: Event, record: Record) -> WriteJob | None:
        """Gives a record its id and time, and writes it. Returns None if it is written or, with `best_effort`, queued;
        otherwise the job, whose result is None or an error. Raises Refusal(AUDIT_UNAVAILABLE)."""
        now_s = self.clock.time()
        whole_s = int(now_s)  # see `timestamp`
        record[shape.STAMP] = self._stamp % (self.new_id(), date_of(whole_s), (now_s - whole_s) * 1e6)
        job = WriteJob(shape.STARTS[event], ",".join(record), self._counts[event])
        if not self._waits:
            self.writer.post(job)
            return None
        try:
            return self.writer.put(job, alone=not self.under_way)
        except OSError as error:
            raise UnwrittenRecord(error) from None  # an action that cannot be recorded must not happen

    @staticmethod
    def _no_row(event: str, result: str) -> list[float]:
        return [0.0]

    async def keep(self, about: Mapping[str, Any]) -> NamedResult | None:
        """Stores a result (`result_store.evidence_record` without id and time). Returns the reference for the outcome;
        None if `best_effort` lost it. Raises Refusal: RESPONSE_REFUSED for a result that is too large,
        AUDIT_UNAVAILABLE."""
        record_id = self.new_id()
        known = {"id": record_id, "timestamp": timestamp(self.clock.time()), "salt": self.new_id()}
        line = evidence_line({**about, **known})
        try:
            torn_bytes = await self.writer.run(partial(self._evidence.append, line))
        except OSError as error:
            self._counts[EVIDENCE][1][0] += 1
            if self._waits:  # otherwise the caller would receive a result that cannot be proven later
                raise UnwrittenRecord(error) from None
            return None
        self._counts[EVIDENCE][0][0] += 1
        if torn_bytes:
            await self.control("evidence-recovered", "sidecar", torn_bytes=torn_bytes)
        return NamedResult.of(record_id, line)

    async def look(self) -> None:
        """Does the work that is due by time: a checkpoint, a new file. Called periodically."""
        if self.trail.is_due():
            with suppress(OSError):  # the next call tries again
                await self.writer.run(self.trail.look)

    def recent(self) -> RecentLines | None:
        """The newest lines of a log without a file, for current viewers; None for a file."""
        sink = self.trail.sink
        return sink.recent() if isinstance(sink, ChainedCarrier) else None

    async def seal(self) -> None:
        """Writes a checkpoint of everything written so far. Raises OSError."""
        await self.writer.run(self.trail.seal)

    async def close(self) -> None:
        """Writes queued records and closes the files. Later records fail."""
        await self.writer.close()
        self._evidence.close()


class Recording:
    """The record of one request while it runs. The pipeline sets the plain attributes as it learns them.

    In shadow mode the record states what would have denied the call: the policy decision, and the `excused` refusals.
    `charged` is 1 while the call may be forwarded, 0 once the charges of `limits` were returned. `tool_error`: the
    response reports a failure at the upstream. `redactions` counts the redactions in the response; None if no rule
    examined it. `names` determines which names are known; other names in a refused call are recorded as digests.
    `enforcement_point` is the one that asked for the decision, "" for a call. `approval` is the approval that the call
    used: its id, and who gave it. `upstream` and `method` are for a request that ends before there is a call. `marks`
    holds the end of each stage, in their order; a stage may be marked again until the next one is, or until the
    decision is recorded. Its keys are the sidecar's names, never a caller's."""

    request_id: str | int | None = None
    trace_id: str | None = None
    run_id: str | None = None
    thread_id: str | None = None
    task_id: str | None = None
    enforcement_point: str = ""
    caller: Caller | None = None
    call: Call | None = None
    decision: Decision | None = None
    limits: tuple[LimitState, ...] | shape.ChargedLimits = ()
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
    done: bool = False
    args_hash: str | None = None
    approval: Mapping[str, object] | None = None
    _is_under_way: bool = False
    _record: Record | None = None
    """The decision's segments, once it is recorded; the outcome begins as their copy."""
    _latency: dict[str, float]
    """The latency of the decision, once it is recorded."""
    _redacts: bool = False
    _told: tuple[object, ...] = ()
    """The limits of `_record`, the amounts charged to them, and its task."""
    _results: Sequence[NamedResult] = ()
    _words: tuple[str, ...] = ()
    """The parameters of `record.about`."""

    def __init__(self, audit: Audit, protocol: str, peer: str, request_id: str | int | None = None) -> None:
        self.audit, self.protocol, self.peer = audit, protocol, peer
        if request_id is not None:
            self.request_id = request_id
        self.marks: dict[str, float] = {}
        self.decision_id = audit.new_id()
        self.now_s = audit.clock.monotonic
        self.started_s = self.now_s()

    @property
    def duration_s(self) -> float:
        return self.now_s() - self.started_s

    async def decided(self) -> None:
        """Writes `decision`, immediately before the upstream is written to. Raises Refusal: AUDIT_UNAVAILABLE, or
        MALFORMED_CALL for arguments that cannot be hashed."""
        if self._record is not None or self.done:
            raise AssertionError("a decision is recorded once, and before the end")
        describer = self.audit.describer
        known = describer.who.get(id(self.caller)) or describer.caller(self.caller)
        aside = self._hash_aside(known)
        self.args_hash = self._hash(known) if aside is None else await aside
        self._told = self.limits, self.charged, self.task_id
        self._record = record = self._gather(known, self.charged, self.args_hash, self.decision_id)
        self._latency = {}
        record[shape.ANSWER] = shape.answer(self.started_s, self.marks, self._latency, self.bytes_in)
        try:
            if (job := self.audit.write("decision", record)) is not None and (error := await job) is not None:
                raise UnwrittenRecord(error)
        except Refusal as refusal:
            if not may_be_written(refusal):
                self._record = self.args_hash = None
            raise
        self._is_under_way = True
        self.audit.under_way += 1

    async def hashed(self) -> str:
        """Returns the hash of the call's arguments. Raises Refusal(MALFORMED_CALL) for arguments that cannot be
        hashed."""
        known = self.audit.describer.caller(self.caller)
        aside = self._hash_aside(known)
        return (self._hash(known) if aside is None else await aside) or ""

    @property
    def is_decided(self) -> bool:
        """Whether a decision was recorded, so that an outcome is required."""
        return self._record is not None

    def replaced(self, count: int) -> None:
        self.redactions = (self.redactions or 0) + count

    async def keep(self, **about: Any) -> None:
        """Stores a result before the caller gets it; the outcome will name it. `about` is that of
        `result_store.evidence_record`, without the run. Raises Refusal: RESPONSE_REFUSED, AUDIT_UNAVAILABLE."""
        if len(self._results) >= shape.ENTRIES:  # an outcome cannot name more; the caller may resume the stream
            raise Refusal(Reason.AUDIT_UNAVAILABLE, "too many results of one stream are to be stored")
        named = await self.audit.keep(evidence_record(run_id=shape.optional_text(self.run_id), **about))
        if named is not None:
            self._results = [*self._results, named]

    async def judged(self, question: Question, decision: Decision, enforcement: Enforcement = "enforce") -> None:
        """Writes the policy decision on a message inside this request: a request from the server to its client, or the
        response to an earlier call. Raises Refusal(AUDIT_UNAVAILABLE)."""
        known = self.audit.describer.caller(self.caller)
        record = self._gather(known, 0, None, self.audit.new_id())
        about = {**shape.about(*self._words), "tool": None, "method": question.action}
        about |= {"action": question.action, "object": question.object}
        record[shape.CALL] = shape.segment(shape.CALL, about)
        record[shape.END] = shape.segment(shape.END, {"reason": None if enforcement == "shadow" else decision.reason})
        shape.describe(record, decision, enforcement)
        record[shape.GROUND] = shape.ground(record[shape.GROUND], decision.facts, known.digests)
        record[shape.ANSWER] = shape.answer(self.started_s, self.marks, {}, self.bytes_in)
        if (job := self.audit.write("decision", record)) is not None and (error := await job) is not None:
            raise UnwrittenRecord(error)

    async def outcome(
        self, *, http_status: int, bytes_out: int | None, reason: Reason | None = None, event: Event = "outcome"
    ) -> None:
        """Writes how the call ended or, with `event` "decision", the answer to an enforcement point. `bytes_out` is the
        size of the response body. Raises Refusal: AUDIT_UNAVAILABLE, or MALFORMED_CALL like `decided`."""
        if self.done:
            raise AssertionError("a request has one terminal record")
        if self._record is not None:
            record, latency = self._record.copy(), self._latency.copy()
            if self._told != (self.limits, self.charged, self.task_id):  # the response may have created a task
                record[shape.LIMITS] = self.audit.describer.limits(self.limits, self.charged)
                record[shape.TASK] = shape.task(self.task_id)
        else:
            record, latency = await self._gather_whole(is_permitted=event == "decision"), {}
        if self.federation is not None:
            record[shape.FEDERATION] = shape.segment(shape.FEDERATION, {"federation": self.federation})
        if self.credential_fault is not None:
            record[shape.FAULT] = shape.segment(shape.FAULT, {"credential_fault": self.credential_fault})
        if self.redactions is not None or self._results:
            content = {
                "redaction_applied": self._redacts or bool(self.redactions),
                "redactions": self.redactions,
                "evidence": [named._asdict() for named in self._results],
            }
            record[shape.CONTENT] = shape.segment(shape.CONTENT, content)
        record[shape.END] = shape.end(reason, self.tool_error if event == "outcome" else None)
        record[shape.ANSWER] = shape.answer(
            self.started_s, self.marks, latency, self.bytes_in, http_status, bytes_out, self.now_s()
        )
        self.done = True  # even if the caller does not wait for it
        if self._is_under_way:
            self._is_under_way = False
            self.audit.under_way -= 1
        try:
            if (job := self.audit.write(event, record)) is not None and (error := await job) is not None:
                raise UnwrittenRecord(error)
        except Refusal as refusal:
            self.done = may_be_written(refusal)
            raise

    async def refused(self, refusal: Refusal, *, http_status: int, bytes_out: int | None = None) -> None:
        """Writes that the request was refused: a `refusal`, or the `outcome` of a call that was already decided. Raises
        Refusal(AUDIT_UNAVAILABLE), unless that is the refusal itself."""
        if refusal.limit is not None and all(state.name != refusal.limit.name for state in self.limits):
            self.limits = (*self.limits, refusal.limit)
        self.credential_fault = refusal.credential_fault
        event: Event = "refusal" if self._record is None else "outcome"
        try:
            await self.outcome(http_status=http_status, bytes_out=bytes_out, reason=refusal.reason, event=event)
        except Refusal:
            if refusal.reason is not Reason.AUDIT_UNAVAILABLE:
                raise
            self.done = True  # the caller receives 503; no further record is attempted

    async def _gather_whole(self, *, is_permitted: bool) -> Record:
        """Returns the only record of a request. In a refusal, unknown names are digests. Raises Refusal(MALFORMED_CALL)
        for a permitted call whose arguments cannot be hashed."""
        known = self.audit.describer.caller(self.caller)
        try:
            aside = self._hash_aside(known)
            self.args_hash = self._hash(known) if aside is None else await aside
        except Refusal:  # unhashable arguments are refused, and that refusal must be recorded
            if is_permitted:
                raise
        record = self._gather(known, self.charged if is_permitted else 0, self.args_hash, self.decision_id)
        if self.names is not None:
            allowed = self.decision is not None and self.decision.allowed
            about = shape.about(*self._words)
            hashed = self.audit.describer.foreign(self.caller, about, self.names, self.call, allowed=allowed)
            if hashed:
                about |= hashed
                self._redacts = about.get("redaction_applied", self._redacts)
                for place in (shape.PROTOCOL, shape.CALL, shape.CONTENT):
                    record[place] = shape.segment(place, {"redaction_applied": self._redacts, **about})
        return record

    def named(self) -> dict[str, Any]:
        """The fields `protocol`, `upstream`, `method` and `tool` as in the record: unknown names of a call that was
        refused without a decision record are digests."""
        call = self.call
        if call is None:
            fields = shape.about(self.protocol, "", self.upstream, self.method)
        else:
            asked = call.question
            words = self.protocol, call.protocol_version, call.upstream, call.method
            fields = shape.about(*words, asked.object, asked.action, asked.server, asked.name)
        if self.names is not None and self._record is None:
            allowed = self.decision is not None and self.decision.allowed
            fields |= self.audit.describer.foreign(self.caller, fields, self.names, call, allowed=allowed)
        return {name: fields[name] for name in ("protocol", "upstream", "method", "tool")}

    def _hash_aside(self, known: shape.KnownCaller) -> Awaitable[str | None] | None:
        """Returns `_hash` in a thread for a large body; None for the others, so that they are not awaited."""
        return None if self.bytes_in <= HASHED_HERE_BYTES else asyncio.to_thread(self._hash, known)

    def _hash(self, known: shape.KnownCaller) -> str | None:
        if self.call is None:
            return None
        asked = self.call.questions[0]
        return known.digests.args_hash(asked.action, asked.object, asked.arguments)

    def _gather(self, known: shape.KnownCaller, charged: int, args_hash: str | None, decision_id: str) -> Record:
        """Returns the facts that are known before the answer, in the order of `LAYOUT`."""
        describer, decision, asked_as = self.audit.describer, self.decision, self.request_id
        if self.call is None:
            self._words = self.protocol, "", self.upstream, self.method
            arguments: Mapping[str, Any] = {}
        else:
            _, version, upstream, method, questions, call_id, _, _, _ = self.call
            object_, action, server, name, arguments, _ = asked = questions[0]
            self._words = self.protocol, version, upstream, method, object_, action, server, name
            if asked_as is None:
                asked_as = call_id
        if decision is None:
            links, answer, facts = None, None, None
        else:
            links, answer, facts = decision.links, decision[:-1], decision.facts
        key = self._words, self.enforcement, id(links)
        same = describer.calls.get(key)
        if same is None or same.answer != answer:
            same = describer.call(key, decision)
        record = same.record.copy()
        record[shape.IDS] = shape.ids(decision_id, asked_as, self.trace_id, self.run_id, self.thread_id)
        record[shape.PEER] = shape.peer(self.peer, self.enforcement_point)
        record[shape.CREDENTIAL], record[shape.CHAIN] = known.credential, known.chain
        if self.task_id:
            record[shape.TASK] = shape.task(self.task_id)
        if self.federation is not None:
            record[shape.FEDERATION] = shape.segment(shape.FEDERATION, {"federation": self.federation})
        self._redacts = False
        if arguments or not same.shows_all:
            self._redacts = True
            record[shape.CONTENT] = shape.REDACTED
        if describer.clear is not None and self.call is not None:
            fields = {"args_hash": args_hash, "clear_arguments": describer.clear.of(asked)}
            record[shape.ARGUMENTS] = shape.segment(shape.ARGUMENTS, fields)
        elif args_hash is not None:
            record[shape.ARGUMENTS] = shape.ARGS_HASH % args_hash
        if self.excused:
            shape.describe(record, decision, self.enforcement, self.excused)
        if facts:
            record[shape.GROUND] = shape.ground(record[shape.GROUND], facts, known.digests)
        record[shape.LIMITS] = describer.limits(self.limits, charged)
        if self.approval is not None:
            record[shape.APPROVAL] = shape.segment(shape.APPROVAL, {"approval": self.approval})
        return record


class ControlRecorder:
    """Makes control records without a writer. Not thread-safe."""

    def __init__(self, instance: str, key_id: str, clock: Clock, new_id: Callable[[], str]) -> None:
        self._instance, self._key_id = shape.text(instance, shape.ID_CHARS), key_id
        self._clock, self._new_id = clock, new_id

    def control(self, what: str, by: str, facts: Mapping[str, object]) -> Unsealed:
        record = shape.control(self._key_id, what, by, facts)
        stamp = {"id": self._new_id(), "timestamp": timestamp(self._clock.time()), "instance": self._instance}
        record[shape.STAMP] = shape.segment(shape.STAMP, stamp)
        return shape.unsealed("control", record)


class UnwrittenRecord(Refusal):
    """A record that could not be written. `late`: it was started, so it may still be written."""

    def __init__(self, error: OSError) -> None:
        super().__init__(Reason.AUDIT_UNAVAILABLE, retry_after_s=1.0)
        self.late = error.errno == errno.ETIMEDOUT


def may_be_written(refusal: Refusal) -> bool:
    """Whether the refused record may nonetheless be written. If so, no other is written in its place."""
    return isinstance(refusal, UnwrittenRecord) and refusal.late
