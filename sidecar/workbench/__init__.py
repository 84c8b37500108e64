"""Is the policy what its owners mean it to be? Policy as code, on the engine that serves.

places      where the models and rows lie that a command speaks about
"""
