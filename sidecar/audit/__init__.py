"""Writes the audit log: decisions and outcomes in a verifiable hash chain.

record                the fields of a record, each bounded; clear selects arguments that are recorded in clear
record_ids            ids and timestamps
digest                keyed digests of arguments and facts; the audit key
chain                 the seal of a line; the anchor next to the file
result_store          results that are stored next to the log and named by its outcomes
writer                appends in the event loop while that is quick, otherwise in a thread
file_sink             appends to the file whole or not at all; checks the file at start
rotation              writes checkpoints and rotates the file
checkpoints           signed statements of where the log ended; checkpoint_publisher publishes them, rollback compares
                      them with the log at start
segments              which files make up one log
carrier               sinks that cannot remove lines: stdout_carrier (a pipe), redis_carrier, otlp_carrier
                      (otlp_messages: its encoding)
gather                sorts lines collected elsewhere into files
sinks                 opens the sinks of the settings
recorder              the records of one request while it runs; control records
verify                reads the log back and states what it proves: line_walk, verification_report; verify_process does
                      so in a process of its own
tail                  reads the log as it grows
search                finds records newest first, by a record_filter, in log_blocks of several logs
rendering             formats a record for people
"""
