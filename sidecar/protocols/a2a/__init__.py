"""A2A messages in every version and binding.

    operations   the eleven operations, and their names in each version and binding
    schema       parses messages, once and strictly
    messages     the types of the messages of 1.0, which is the canonical form, and of 0.3
    forms        the form of parameters and results in each version and binding
    v03          the messages of 0.3, in JSON and in Protocol Buffers, to and from 1.0
    cards03      cards of 0.3, to and from 1.0
    cards        rewrites an agent's card: the sidecar's addresses, the caller's skills, the sidecar's signature
    http         the addresses of HTTP+JSON
    wire         messages as bytes of Protocol Buffers, for gRPC
    status       the details of a gRPC status
    errors       the errors of A2A in each binding

No I/O: bytes and parsed JSON in, typed values out.
"""
