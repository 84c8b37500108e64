"""The task API: ordering work from agents without speaking A2A.

    records      a task in the seeds' words, the agent's own state beside it, and what of it is done: two tables; they
                 are kept by `sidecar/storage/`
    models       what is said at these addresses: the seed's models
    reading      what a request at these addresses wants: one canonical operation of A2A
    front        what happens to it, beside what happens to every request
    following    one task on its way: sent once, and followed to its end
    running      all tasks that this sidecar has on its hands

A task that was taken is on disk before its caller hears of it, and is carried out whoever is gone by then. Nothing is
ever sent twice: the agent may have done what it did not answer.
"""
