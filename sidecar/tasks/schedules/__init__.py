"""Runs agents on schedules.

    schedule_state.py   the stored state of a schedule, its state table, and the due time to make up for
    fit_checks.py       whether a schedule fits the agents and the rules
    scheduler.py        orders runs when they are due, and carries out operators' orders

An order becomes a task like any other (`tasks/api/task_orders.py`), on behalf of the schedule, which is an NHI of its
own. With replicas, one of them holds a schedule, and another takes over if it dies. This saves work, but does not
ensure that a due time runs once: the task of a due time has an id made of the schedule and that time, and the task
store accepts an id once.
"""
