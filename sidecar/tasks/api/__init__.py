"""The task API: callers order work from agents over plain HTTP instead of A2A.

    task_record.py         the stored record of a task and its state tables; `sidecar/storage/` stores it
    models.py              request and response models, from the original data models, and the public form of a task
    request_reader.py      reads a request as one canonical operation of A2A
    frontend.py            carries requests out
    task_orders.py         creates tasks, from requests, schedules and operators' orders
    task_lifecycle.py      sends one task once and follows it to its end
    task_runner.py         runs all tasks that this sidecar holds
    waiting_messages.py    stores messages of A2A that wait for approval as tasks

An accepted task is stored before its caller gets an answer, and is carried out even if the caller disconnects. A task
is never sent twice, because the agent may have executed an unanswered one.
"""
