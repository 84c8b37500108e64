"""Measures decisions of this policy and of generated ones.

ladder       generates policies of any size, with rows, roles, wildcards and denials, and questions about them
measurement  measures one size in its own process: p50, p99, load time, memory
runner       starts the measuring processes and bounds their time
own_policy   derives questions from a policy's own rows
rivals       other engines on the equivalent policy, each bounded in time
"""
