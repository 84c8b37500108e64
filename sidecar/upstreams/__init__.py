"""What stands behind us, and how do we speak with it?

transport.py    how any upstream looks from here
channel.py      a line that carries messages both ways, made to look so
wired.py        whose line is it, and for how long is it kept
stdio.py        a program on pipes: started, bounded, started again
http.py         one message out over HTTP, its answer back; failures become refusals
legacy_sse.py   a server of the HTTP+SSE transport of 2024-11-05; detecting.py: which of the two it is
credentials/    what is shown to it, so that it knows who calls
assembling.py   which parts make up one upstream
watched.py      does it do its part: an upstream around an upstream, which a breaker may close
breaker.py      may it be asked right now, or is it given a rest
registry.py     how each one stands: status, counts, latency, the last error
health.py       probes: how is the one that nobody calls
report.py       how is one, asked here and now
lost_sessions.py  does a server that lost a session say so as MCP says it
bridging/       a caller of one era before a server of the other
sessions.py     whose session is this, and which upstream session stands behind it
roaming.py      how does another replica go on with it
catalogue.py    which tools it has: kept fresh, shared, waited for
listing.py      asking for them, in whichever era it speaks
tools.py        one tool: its compiled schema, or why it is quarantined
"""

from sidecar.upstreams.assembling import upstream_from
from sidecar.upstreams.bridging import Bridge, Patience
from sidecar.upstreams.catalogue import Catalogue
from sidecar.upstreams.credentials import Signer, signer_from
from sidecar.upstreams.lost_sessions import LostSessions
from sidecar.upstreams.registry import Account
from sidecar.upstreams.tools import Tool
from sidecar.upstreams.transport import Answer, Outbound, Upstream, Waiting
from sidecar.upstreams.watched import Watched

__all__ = [
    "Account",
    "Answer",
    "Bridge",
    "Catalogue",
    "LostSessions",
    "Outbound",
    "Patience",
    "Signer",
    "Tool",
    "Upstream",
    "Waiting",
    "Watched",
    "signer_from",
    "upstream_from",
]
