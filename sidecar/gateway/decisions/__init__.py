"""Decisions for other enforcement points, which enforce them themselves.

A question passes the same pipeline as a call, with the same parsers, policy, checks and limits, and ends before the
upstream. It leaves one audit record, which names the enforcement point.

    point.py             decides: `DecisionPoint.decide`
    checked.py           the frontends of MCP and A2A, which answer a permitted call instead of sending it
    authzen.py           AuthZEN's evaluations; authzen_messages.py reads requests, authzen_names.py translates names
    authzen_search.py    AuthZEN's searches
    auth_request.py      nginx's auth_request, which enters an upstream as a whole
    ext_authz.py         Envoy in HTTP service mode, and what its gRPC mode shares
    ext_authz_grpc.py    Envoy over gRPC
"""
