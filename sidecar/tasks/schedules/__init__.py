"""Runs agents on schedules.

    transitions.py      the states of a schedule, and the results of a due time
    schedule_state.py   the stored state of a schedule
    due_times.py        which due time is owed now, and how many were missed
    fit_checks.py       whether a schedule fits the agents and the rules
    scheduler.py        orders runs when they are due

An order is made like every other task (`tasks/api/task_orders.py`), on behalf of the schedule, which is an NHI of
its own. With replicas, one of them holds a schedule, and another takes over if it dies. That saves work; it is not
what makes a due time run once. The task of a due time has an id made of the schedule and that time, and the store
of tasks accepts an id once.
"""
