"""Serves calls to agents over every version and binding of A2A.

frontend.py            handles a request at an agent's address
exchange.py            one decided operation at its agent
approval_wait.py       messages that wait for a person's approval
unsent_tasks.py        operations on the tasks of such messages
request_reader.py      reads one canonical operation from any version and binding
response_writers.py    writes answers and refusals in the caller's version and binding
task_ownership.py      owners of tasks and contexts
task_pages.py          lists of the caller's tasks
context_ids.py         context ids as the agent sees them
cards.py               agent cards
push_notifications.py  registration and forwarding of push notifications, and their configurations in messages
grpc.py                A2A over gRPC
"""
