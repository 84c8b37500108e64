"""How is a program on the command line an A2A agent like any other?

    wire.py        what A2A asks of an agent, answered by runs: `upstreams.agents.AgentWire`
    card.py        what it says of itself
    executions.py  which runs there are, and who sees to each
    course.py      one run from its order to its end: its turn (turns.py, leases.py), its tries (retrying.py),
                   what is kept of it (saving.py, left_behind.py), who hears of it (hearing.py)
    states.py      the seed's state machine as a table, and what may be tried again
    record.py      what is known of one run
    prompts.py     what a message becomes: a prompt, and what its caller may choose beside it
    telling.py     a run as A2A's Task, and what is told of it
    running.py     what one try looks like to whoever ordered it: an order, and events
    runner.py      which runner makes the tries of an agent
    one_shot.py    a process that is told once: what is started (commands.py), where its files lie (folders.py)
    attended.py    a process started, told, heard, measured (usage.py) and ended (ends.py: what that means)
    cleaning.py    what it says, made safe to show while it says it; sanitizing.py: what of it is kept
    sessions.py    the processes that conversations keep
    one_turn.py    a process that is asked once, over JSON-RPC
    partner.py     turns with one process; talk.py is how a turn is told and heard: lines.py, or JSON-RPC in rpc.py

A program comes from the operator's settings alone; what a caller says reaches it as data. `processes/` starts and ends
it; who may call it is decided where that is decided for every agent.
"""
