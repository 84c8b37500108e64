"""The policy enforcement point: one pipeline that every request passes, and the frontends that speak each protocol.

A call on the common way, a stateless request that a server answers with one JSON object, is this deep:

    from the listener to policy     from the frontend to the socket
    1  Pipeline.handle              1  Forwarder._ask
    2  Pipeline._answered           2  GuardedTransport.exchange
    3  Stages.carry_out             3  HttpUpstream.exchange
    4  Snapshot.decide              4  HttpAddress.send
    5  Engine.decide                5  ClientConnection.exchange
"""
