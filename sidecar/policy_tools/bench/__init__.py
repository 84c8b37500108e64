"""Measures decisions of this policy and of generated ones.

ladder       generates policies of any size, with rows, roles, wildcards and denials, and questions about them
measurement  measures one policy: p50, p99, load time, memory; each generated size in its own process
"""
