"""Measures decisions of this policy and of generated ones.

ladder      policies of any size, drawn: rows, roles, wildcards, denials, and questions about them
rungs       one size measured in a process of its own: p50, p99, time to load, memory
rivals      other engines on the equivalent policy, each bounded in time
"""
