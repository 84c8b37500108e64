"""Runs agents on schedules.

    transitions.py      which way a schedule may go, and what becomes of a time at which it is due
    schedule_state.py    how a schedule stands, as a store keeps it
    due_times.py       what is owed to it now: which due time, and how many were missed
    fit_checks.py     whether a schedule fits the agents and the rules
    scheduler.py   who looks at the clock, and orders

An order goes the way of every other task (`tasks/api/task_orders.py`), on behalf of the schedule: an NHI of its own.
With replicas one of them has a schedule on its hands, and another takes over if it dies. That saves work, and is not
what makes a due time run once: the task that it becomes has an id made of the schedule and that time, and the store of
tasks takes an id once.
"""
