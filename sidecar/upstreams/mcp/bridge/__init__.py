"""Bridges stateless and session-based MCP.

A `Bridge` is an `McpTransport` around an `McpTransport`. It translates before any other layer sees a message, so
policy, filtering, limits and audit handle one MCP revision at a time, the caller's. Messages of a server with both
session and stateless revisions are never translated.

    bridge.py                 sends a message directly, or over one of the two bridges
    server_eras.py            the revisions that the server supports, as observed
    stateless_to_session.py   a stateless caller in front of a server with sessions only
    borrowed_sessions.py      the sessions at the server that such callers share, and their subscribers
    borrowed_calls.py         the calls in such a session, which may wait for their callers' input
    session_to_stateless.py   a caller with a session in front of a stateless server: emulated sessions
    input_rounds.py           one call at such a server, in as many rounds as the server needs input
    unsolicited.py            the streams of unsolicited messages, and what one subscriber gets of them
    translation.py            translates messages between revisions, without any I/O

docs/reference/mcp.md has the table of how the bridge translates each method and notification;
tests/flow/test_crossings.py walks it.
"""
