"""What stands behind us, and how do we speak with it?

exchange.py    one message out, its answer back; failures become refusals
sessions.py    whose session is this, and which upstream session stands behind it
catalogue.py   which tools it has: kept fresh, shared, waited for
listing.py     asking for them, in whichever era it speaks
tools.py       one tool: its compiled schema, or why it is quarantined
"""

from sidecar.upstreams.catalogue import Catalogue
from sidecar.upstreams.exchange import Answer, Credential, Upstream, refusal_from, upstream_from
from sidecar.upstreams.tools import Tool

__all__ = ["Answer", "Catalogue", "Credential", "Tool", "Upstream", "refusal_from", "upstream_from"]
