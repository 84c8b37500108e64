"""Bridges stateless and session-based MCP.

Through a `Bridge`: an `Upstream` around an `Upstream`. It translates before anybody else sees a message, so policy,
filtering, limits and audit know one era at a time: the caller's own. A server of both eras is never translated for.

    bridge.py      which way does a message go: directly, or over one of the two bridges
    server_eras.py        which eras the server speaks, as far as it has shown
    stateless_to_session.py     a stateless caller before a server that knows sessions only
    borrowed_sessions.py        the sessions that we lend to such callers: whose, and for how long
    borrowed_calls.py     one call in such a session, which may wait for its caller's next word
    held_calls.py     the calls that wait, and who may come back for one
    stateless_answers.py        such a call's answer, as far as its caller is to have it now
    server_messages.py     the stream of such a session; subscriptions.py: who subscribed to what comes on it
    session_to_stateless.py     a session's caller before a stateless server: sessions that we play for it
    input_rounds.py      one call at such a server, in as many rounds as the server has questions
    translation.py       the words of one era in the other's, without any I/O
    method_table.py   the table: how every method and notification crosses, or that it cannot
"""

from sidecar.upstreams.mcp.bridge.bridge import PATIENT, Bridge, BridgeDeadlines

__all__ = ["PATIENT", "Bridge", "BridgeDeadlines"]
