"""The audit log: decisions and outcomes in a chain of hashes that anyone can verify.

record      the shape of a line: every field, bounded
stamps      ids and times
digest      keyed digests of arguments and facts; the key
chain       a line's seal, the anchor beside the file
evidence    results that are kept beside the log, and named by it
writer      the thread that writes, and who waits for it
file        onto the file whole or not at all; what a start finds
trail       between the two: checkpoints, and when a file is set aside
checkpoints what attests where the log ended; herald tells it to others, rollback asks them at a start
parts       which files are one log
carriers    the same where nothing can be taken back: output (a pipe), redis_stream, otlp (otlp_form: its bytes)
gather      what went elsewhere, as files again
copies      what the file took, elsewhere too
sinks       which of these the settings mean
recorder    one request's evidence while it is under way; control events
verify      reads it all back and says what that proves: scan (many lines at once), walk (one by one), report
following   reads it as it grows; statistics counts it
render      a record for people
"""

from sidecar.audit.digest import AuditKey, load_key, load_or_make_key
from sidecar.audit.record_ids import Clock, time_ordered_ids
from sidecar.audit.recorder import Audit, Recording

__all__ = [
    "Audit",
    "AuditKey",
    "Clock",
    "Recording",
    "load_key",
    "load_or_make_key",
    "time_ordered_ids",
]
