"""Runs agents on schedules.

    schedule_state.py   the stored state of a schedule, its state table, and the due time that is owed
    fit_checks.py       whether a schedule fits the agents and the rules
    scheduler.py        orders runs when they are due, and carries out operators' orders

An order is made like every other task (`tasks/api/task_orders.py`), on behalf of the schedule, which is an NHI of
its own. With replicas, one of them holds a schedule, and another takes over if it dies. That saves work; it is not
what makes a due time run once. The task of a due time has an id made of the schedule and that time, and the store
of tasks accepts an id once.
"""
