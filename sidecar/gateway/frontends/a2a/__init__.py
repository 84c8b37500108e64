"""Serves calls to agents over every version and binding of A2A.

front      what happens to a request at an agent's address
reading    what it wants: one canonical operation, whatever it is written in
owning     whose tasks and conversations it is about
contexts   what a conversation is called at its agent
dialects   how answers and refusals look to who called
"""
