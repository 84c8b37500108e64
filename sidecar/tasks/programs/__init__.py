"""Runs CLI programs as A2A agents.

program_agent.py         answers A2A operations for one program; card.py builds its card
executions.py            all runs of this sidecar: accepted, resumed, limited
run_lifecycle.py         one run from its order to its end
run_record.py            the stored record of a run; run_saver.py writes it, stored_text.py bounds its texts
concurrency.py           queues runs; write_leases.py lets one run write at a time, across replicas
run_events.py            the events of a run for callers; broadcast.py sends it to all subscribers
attempt.py               one attempt: its order, its events, its end; runners.py chooses the runner of an agent
one_shot.py              a program that is started for one prompt
conversations.py         programs that continue for a conversation: conversation.py
line_protocol.py, json_rpc.py    the protocols of a turn with such a program
supervised_process.py    a running program: its input, output, usage and end
prompts.py, command_line.py, working_folders.py    the program that is started for a prompt, and its folder
output_cleaner.py        removes control sequences and secrets from output
"""
