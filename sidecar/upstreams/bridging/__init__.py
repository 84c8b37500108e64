"""How does a caller of one era speak with a server of the other?

Through a `Bridge`: an `Upstream` around an `Upstream`. It translates before anybody else sees a message, so policy,
filtering, limits and audit know one era at a time: the caller's own. A server of both eras is never translated for.

    bridge.py      which way does a message go: directly, or over one of the two bridges
    eras.py        which eras the server speaks, as far as it has shown
    lending.py     a stateless caller before a server that knows sessions only
    lent.py        the sessions that we lend to such callers: whose, and for how long
    courses.py     one call in such a session, which may wait for its caller's next word
    holding.py     the calls that wait, and who may come back for one
    told.py        such a call's answer, as far as its caller is to have it now
    hearing.py     the stream of such a session; subscribing.py: who subscribed to what comes on it
    playing.py     a session's caller before a stateless server: sessions that we play for it
    rounds.py      one call at such a server, in as many rounds as the server has questions
    words.py       the words of one era in the other's, without any I/O
    crossings.py   the table: how every method and notification crosses, or that it cannot
"""

from sidecar.upstreams.bridging.bridge import PATIENT, Bridge, Patience

__all__ = ["PATIENT", "Bridge", "Patience"]
