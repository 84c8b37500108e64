"""A2A messages in every version and binding.

    operations   the eleven operations, and what each is called where
    schema       how a message is read, once and strictly
    messages     the messages of 1.0, which is the canonical form
    v03          0.3 as JSON-RPC has it, to and from 1.0
    proto03      0.3 as its Protocol Buffers have it, to and from 1.0
    cards03      a card of 0.3, to and from 1.0
    cards        an agent's card as ours: our addresses, the caller's skills, our signature
    wire         messages as bytes of Protocol Buffers, for gRPC
    errors       what an agent can refuse in its own words

No I/O: bytes and parsed JSON in, typed values out.
"""
