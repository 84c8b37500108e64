"""The policy enforcement point: one pipeline that every request passes, and the frontends of the protocols.

The call depth of the most frequent call, a stateless request that a server answers with one JSON object:

    from the listener to policy     from the frontend to the socket
    1  Pipeline.answer              1  Forwarder.ask
    2  Stages.carry_out             2  GuardedTransport.exchange
    3  Snapshot.decide              3  HttpUpstream.exchange
    4  Engine.decide                4  ClientConnection.exchange
"""
