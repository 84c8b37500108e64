"""Runs agents on schedules.

    schedule_state.py   the stored state of a schedule, its state table, and the due time to make up for
    fit_checks.py       whether a schedule fits the agents and the rules
    scheduler.py        orders runs when they are due, and carries out operators' orders

An order becomes a task like any other (`tasks/api/task_orders.py`), on behalf of the principal of the schedule, by
default an NHI of its own. With replicas, one of them holds a schedule, and another takes over if it dies. That only
saves work. A due time runs once because the id of its task is derived from the schedule and that time, and the task
store accepts an id once.
"""
