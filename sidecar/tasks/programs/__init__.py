"""Runs CLI programs as A2A agents.

program_agent.py         answers A2A operations for one program; card.py builds its card
executions.py            all runs of this sidecar: accepted, resumed, limited
run_lifecycle.py         one run from its order to its end
run_record.py            the stored record of a run; run_saver.py writes it, stored_text.py bounds its texts
concurrency.py           queues runs; write_leases.py lets one run write at a time, across replicas
run_events.py            what callers are sent of a run; broadcast.py sends it to all subscribers
attempt.py               one attempt: its order, its events, its end; runners.py chooses the runner
one_shot.py              a program that is started for one prompt
conversations.py         programs that are kept for a conversation: conversation.py
line_protocol.py, json_rpc.py    how a turn with a kept program is spoken
supervised_process.py    a running program: its input, output, usage and end
prompts.py, command_line.py, working_folders.py    what is started for a prompt, and where
output_cleaner.py        removes control sequences and secrets from output
"""
